"""Retries of transient failures of remote stores: 503, too many requests, a reset or stalled connection.

Object stores fail occasionally; their client libraries retry some of it. Remaining failures are retried here with
growing pauses, for reads and writes: each transfer is a whole object or a fixed range, so repeating it is safe.
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
ATTEMPTS = 5  # on top of the retries of the stores' own clients
FIRST_PAUSE = 0.25  # seconds; doubles each time
TRANSIENT_STATUS = {408, 425, 429, 500, 502, 503, 504}
REFUSED_STATUS = {400, 413, 422}  # by the fault of what was sent: too long, say
# s3fs maps 503 to EBUSY, 500 to EREMOTEIO, and unmapped errors to EIO.
_ERRNO = {errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EIO), errno.EIO, errno.EPIPE}
_ERRNO |= {errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ETIMEDOUT}
# Libraries whose errors without a status concern the connection and so are transient, except ValueErrors.
_CLIENTS = ("aiohttp.", "aiobotocore.", "urllib3.", "requests.")
# By name, since the libraries may not be installed. botocore has many others for credentials and settings.
_NAMES = {"ConnectionError", "HTTPClientError", "ResponseParserError", "IncompleteReadError"}
_NAMES |= {"FlexibleChecksumError", "ChecksumError", "TransportError"}  # also gcsfs's and google-auth's


def retried(action: Callable[[], T], place: str) -> T:
    """The result of `action`, tried up to ATTEMPTS times while it fails for a transient reason."""
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


class OneRetryLine(logging.Filter):
    """Replaces a client library's line per attempt by one."""

    def __init__(self) -> None:
        super().__init__()
        self._said = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Log the first one, and drop all."""
        if not self._said:
            self._said = True
            logger.warning("%s; trying again (--verbose shows each attempt)", record.getMessage())
        return False


def is_transient(error: BaseException) -> bool:
    """True if the same request may succeed a moment later."""
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | NotADirectoryError):
        return False
    if any(isinstance(one, OSError) and one.errno == socket.EAI_NONAME for one in (error, error.__context__)):
        return False  # no network, or a wrong host
    if isinstance(error, ConnectionError | TimeoutError):
        return True
    status = _http_status(error)
    if status is not None:
        return status in TRANSIENT_STATUS
    if isinstance(error, OSError) and error.errno in _ERRNO:
        return True
    if isinstance(error, ValueError):
        return False
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    return type(error).__module__.startswith(_CLIENTS)


def _http_status(error: BaseException) -> int | None:
    """The HTTP status a store failed with, if known."""
    client_error = botocore_error(error)
    if client_error is not None:
        status = client_error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(error, "status", None) or getattr(error, "code", None)
    return int(status) if str(status).isdigit() and int(status) >= 400 else None


def botocore_error(error: BaseException) -> Any:
    """botocore's ClientError behind an error of s3fs, with the store's response; None for other stores."""
    for one in (error, error.__cause__):
        if isinstance(getattr(one, "response", None), Mapping):
            return one
    return None
