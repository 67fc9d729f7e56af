"""Several servers of one target that share its requests.

A server that fails rests, longer each time, while the others do its work. A request that failed is sent to another
server at once, or again after a pause if all of them rest. So a killed server costs a few failed requests, and is used
again once it is back.

    A   ok   fails   rests 1 s            fails   rests 2 s            ok
    B   ok   ok      what A failed at     ok      what A failed at     ok
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fledge.base.errors import DataError
from fledge.base.retry import TRANSIENT_STATUS
from fledge.features.options import FeatureServers

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger("fledge")

T = TypeVar("T")
_LONGEST_PAUSE_S = 30.0  # seconds, upper limit of the exponential backoff


class RequestFailed(Exception):
    """A request that may succeed at another server, or later. The text completes "the server ..."."""


@dataclass
class FeatureServer:
    """One server and how it does."""

    url: str
    client: httpx2.Client  # with its address
    model: str = ""  # the name it serves, once known
    in_flight: int = 0
    failures: int = 0  # since its last success
    rests_until: float = 0.0  # by time.monotonic

    def request(self, method: str, path: str, body: Any = None) -> httpx2.Response:
        """The server's reply; raises RequestFailed if there is none or the server is busy."""
        import httpx2

        try:
            reply = self.client.request(method, path, json=body)
        except httpx2.HTTPError as error:
            raise RequestFailed(f"doesn't answer ({type(error).__name__} {error})") from error
        if reply.status_code in TRANSIENT_STATUS:
            raise RequestFailed(f"is busy (status {reply.status_code})")
        return reply


class Servers:
    """Sends requests to whichever server is free. Thread-safe."""

    def __init__(self, options: FeatureServers, pause: Callable[[float], None] = time.sleep) -> None:
        import httpx2  # of the data extra

        self._options, self._pause = options, pause
        self._lock = threading.Lock()
        limits = httpx2.Limits(max_connections=None)
        timeout = httpx2.Timeout(options.timeout_s, connect=min(10.0, options.timeout_s))
        self._servers = []
        for url in (url.rstrip("/").removesuffix("/v1") for url in options.urls):
            try:
                client = httpx2.Client(base_url=url, timeout=timeout, limits=limits)
            except httpx2.InvalidURL as error:
                raise DataError(
                    f"features.server.urls: {url} isn't a valid address ({error}); correct it"
                ) from error
            self._servers.append(FeatureServer(url, client, options.model))

    def ask(self, send: Callable[[FeatureServer], T]) -> T:
        """The result of `send`, which raises RequestFailed where another attempt may help.

        Raises a DataError after `retries` pauses.
        """
        pauses, attempts = 0, (self._options.retries + 1) * len(self._servers)
        for _ in range(attempts):
            server = self._take()
            before = server.failures
            try:
                result = send(server)
            except RequestFailed as error:
                failed = error
                all_rest = self._failed(server, before)
            except BaseException:
                self._release(server)
                raise
            else:
                self._release(server)
                server.failures = 0
                return result
            if all_rest:
                if pauses == self._options.retries:
                    break
                seconds = self._seconds(pauses)
                logger.info("%s: %s; trying again in %.0f s", server.url, failed, seconds)
                self._pause(seconds)
                pauses += 1
        raise DataError(
            f"{server.url} {failed}; finished shards are kept: check the server's log, and run again to resume"
        ) from failed

    def _take(self) -> FeatureServer:
        """The server to use: of those that don't rest, or else that failed least, the one with the fewest requests."""
        with self._lock:
            now = time.monotonic()

            def order(server: FeatureServer) -> tuple[bool, int, int]:
                rests = server.rests_until > now
                return rests, server.failures if rests else 0, server.in_flight

            server = min(self._servers, key=order)
            server.in_flight += 1
            return server

    def _release(self, server: FeatureServer) -> None:
        with self._lock:
            server.in_flight -= 1

    def _failed(self, server: FeatureServer, before: int) -> bool:
        """Note a failure of a request that began after `before` failures; whether all servers rest now."""
        with self._lock:
            server.in_flight -= 1
            now = time.monotonic()
            if server.failures == before:  # else requests sent together failed together: that is one failure
                server.rests_until = now + self._seconds(server.failures)
                server.failures += 1
            return all(one.rests_until > now for one in self._servers)

    def _seconds(self, before: int) -> float:
        """Seconds of a pause or rest after `before` others."""
        return min(_LONGEST_PAUSE_S, self._options.backoff_s * 2 ** min(before, 16))
