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
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

logger = logging.getLogger("fledge")

T = TypeVar("T")
ATTEMPTS = 5  # object stores' own clients have tried several times before each of these
FIRST_PAUSE = 0.25  # seconds; doubles each time
_STATUS = {408, 425, 429, 500, 502, 503, 504}
# s3fs: EBUSY of 503, EREMOTEIO of 500, EIO of what it has no number for.
_ERRNO = {errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EIO), errno.EIO, errno.EPIPE}
_ERRNO |= {errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ETIMEDOUT}
# Libraries whose errors without a status are of the connection, and so transient, but for ValueErrors.
_CLIENTS = ("aiohttp.", "aiobotocore.", "urllib3.", "requests.")
# By name, as their libraries may not be there. botocore has many more, of credentials and settings.
_NAMES = {"ConnectionError", "HTTPClientError", "ResponseParserError", "IncompleteReadError"}
_NAMES |= {"FlexibleChecksumError", "ChecksumError", "TransportError"}  # also gcsfs's and google-auth's


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
    if any(isinstance(one, OSError) and one.errno == socket.EAI_NONAME for one in (error, error.__context__)):
        return False  # no network, or a wrong host
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    status = _http_status(error)
    if status is not None:
        return status in _STATUS
    if isinstance(error, OSError) and error.errno in _ERRNO:
        return True
    if isinstance(error, ValueError):
        return False
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    return type(error).__module__.startswith(_CLIENTS)


def _http_status(error: BaseException) -> int | None:
    """The failure that a store answered with, if it is known."""
    behind = botocore_error(error)
    if behind is not None:
        status = behind.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(error, "status", None) or getattr(error, "code", None)
    return int(status) if str(status).isdigit() and int(status) >= 400 else None


def botocore_error(error: BaseException) -> Any:
    """botocore's ClientError, which s3fs makes its errors of: it has the store's response. None of other stores."""
    for one in (error, error.__cause__):
        if isinstance(getattr(one, "response", None), Mapping):
            return one
    return None
