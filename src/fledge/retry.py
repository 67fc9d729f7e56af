"""Trying again what a remote store refused for the moment: 503, too many requests, a reset or a stalled connection.

Object stores fail now and then; their client libraries retry some of it. What still comes through is tried again here
with growing pauses, reads and writes alike: each transfer is a whole object or a fixed range, so repeating one is safe.
"""

from __future__ import annotations

import errno
import logging
import random
import socket
import time
from collections.abc import Callable
from typing import TypeVar

logger = logging.getLogger("fledge")

T = TypeVar("T")
ATTEMPTS = 5  # object stores' own clients have tried several times before each of these
FIRST_PAUSE = 0.25  # seconds; doubles each time
_STATUS = {408, 425, 429, 500, 502, 503, 504}
_ERRNO = {errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.EIO}
# Libraries whose errors without a status are of the connection, and so transient.
_CLIENTS = ("aiohttp.", "aiobotocore.", "botocore.", "urllib3.", "requests.")


def retried(action: Callable[[], T], place: str) -> T:
    """What `action` returns, tried up to ATTEMPTS times while it fails for a passing reason."""
    for attempt in range(1, ATTEMPTS):
        try:
            return action()
        except Exception as error:
            if not is_transient(error):
                raise
            pause = FIRST_PAUSE * 2 ** (attempt - 1) * (1 + random.random() / 4)
            logger.info("%s: %s; trying again in %.1f s", place, error or type(error).__name__, pause)
            time.sleep(pause)
    return action()


def is_transient(error: BaseException) -> bool:
    """Whether the same request may well succeed a moment later."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    status = getattr(error, "status", None) or getattr(error, "code", None)
    if str(status).isdigit():
        return int(str(status)) in _STATUS
    if isinstance(error, OSError) and error.errno == socket.EAI_NONAME:  # no network, or a wrong host
        return False
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    if isinstance(error, OSError) and error.errno in _ERRNO:
        return True
    return type(error).__module__.startswith(_CLIENTS)
