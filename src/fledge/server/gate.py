"""Around the application: checks of size, time, key and content type; errors; the access log; metrics.

A request's handler runs in its own task, beside one that watches the connection, and is cancelled as soon as the client
disconnects.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import time
import uuid
from collections.abc import Container, Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fledge.base.errors import ServerError
from fledge.server.errors import ApiError
from fledge.server.metrics import Metrics
from fledge.server.options import ServerOptions
from fledge.server.stream import ReaderStalled

logger = logging.getLogger("fledge.server.access")

OPEN_ROUTES = frozenset({"/", "/health", "/v1/health", "/ping", "/ready", "/metrics"})  # no key needed
_PORT = re.compile(r":\d*$")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")  # client-supplied ids that are accepted
# Seconds for draining the rest of a too large body: a client that is still sending doesn't read the response.
_DISCARD_S = 10.0


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(
        self, app: ASGIApp, options: ServerOptions, metrics: Metrics, routes: Container[str]
    ) -> None:
        """`routes`: the paths of the application's routes."""
        self._app = app
        self._routes = routes
        self._options = options
        self._metrics = metrics
        self._keys = [_digest(key.encode()) for key in options.api_keys]
        self._open = OPEN_ROUTES | ({options.health_route} if options.health_route else set())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["path"].endswith("/") and scope["path"] not in self._routes:
            # A redirect would lead clients behind a TLS proxy to http://, and many don't send a body twice.
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        visit = _Visit(scope, send)
        if scope["method"] == "HEAD":  # handled as GET; the HTTP server drops the body
            scope = {**scope, "method": "GET"}
        scope.setdefault("state", {})["visit"] = visit
        try:
            self._check(scope, visit)
            body = await self._body(scope, receive, visit)
            await self._handle(scope, body, receive, visit)
        except ApiError as error:
            await visit.answer(error)
        except ReaderStalled:
            visit.left = True
        except asyncio.CancelledError:
            visit.left = True
            raise
        except Exception:
            logger.exception("internal error on %s", scope["path"])
            await visit.answer(ApiError(500, "internal server error; see its log", code="internal_error"))
        finally:
            self._record(scope, visit)

    def _check(self, scope: Scope, visit: _Visit) -> None:
        """Raise an ApiError for requests without a key, and for those that look like an attack.

        Two lengths of a body, which servers in a row may read as different requests (RFC 9112, 6.1); a content type
        that only a web page's form sends; and without keys a domain name that leads here (DNS rebinding).
        """
        if _header(scope, b"content-length") and _header(scope, b"transfer-encoding"):
            raise ApiError(
                400,
                "the body has both a Content-Length and a Transfer-Encoding; send one of them",
                code="ambiguous_length",
                headers={"Connection": "close"},
            )
        if not self._keys and _is_local(scope) and _may_be_rebound(_header(scope, b"host")):
            raise ApiError(
                403,
                "without API keys this server answers on this address to localhost and IP addresses, not to domain "
                "names; use one of those, or start it with API keys",
                code="unknown_host",
            )
        if self._keys and scope["path"] not in self._open and scope["method"] != "OPTIONS":
            digest = _digest(_bearer(scope) or _header(scope, b"x-api-key"))
            matches = [
                hmac.compare_digest(digest, key) for key in self._keys
            ]  # compare all, for constant time
            if not any(matches):
                raise ApiError(
                    401,
                    "the API key is missing or wrong; send `Authorization: Bearer <key>`, or `x-api-key: <key>`",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
            visit.client = _name(digest)
        if scope["method"] == "POST":
            kind = _header(scope, b"content-type").split(b";")[0].strip().lower()
            if kind != b"application/json":
                raise ApiError(
                    415, "send the body as Content-Type: application/json", code="unsupported_media_type"
                )

    async def _body(self, scope: Scope, receive: Receive, visit: _Visit) -> bytes:
        """The complete body, if it is small enough and arrives in time."""
        limit = self._options.max_body
        too_large = ApiError(
            413, f"the body is larger than {limit} bytes; send less", code="request_too_large"
        )
        announced = _header(scope, b"content-length")
        if announced.isdigit() and int(announced) > limit:
            if _header(scope, b"expect").lower() != b"100-continue":
                await _discard(receive)
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._options.body_timeout):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        visit.left = True
                        raise ApiError(499, "the client disconnected", code="cancelled")
                    body += message.get("body", b"")
                    if len(body) > limit:
                        body.clear()
                        if message.get("more_body", False):
                            await _discard(receive)
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body didn't arrive within {self._options.body_timeout:g} s; send it faster",
                code="timeout",
            ) from None

    async def _handle(self, scope: Scope, body: bytes, receive: Receive, visit: _Visit) -> None:
        """Run the application; cancel it if the client disconnects before the answer is complete."""
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            if messages:
                return messages.pop()
            await asyncio.Event().wait()  # forever: `watch` notices a disconnect
            raise AssertionError("never")

        work = asyncio.ensure_future(self._app(scope, replay, visit.send))
        watch = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not visit.complete:
                visit.left = True
                work.cancel()
            await asyncio.wait({work})
            if not work.cancelled():
                work.result()  # raises what the application raised
        finally:
            for task in (work, watch):
                task.cancel()
            await asyncio.gather(work, watch, return_exceptions=True)

    def _record(self, scope: Scope, visit: _Visit) -> None:
        path = getattr(scope.get("route"), "path", scope["path"])
        route = path if path in self._routes else "other"  # otherwise clients could create time series
        self._metrics.http.labels(route, str(visit.status or 499)).inc()
        if visit.left:
            self._metrics.disconnects.inc()
        if scope["path"] in OPEN_ROUTES and visit.status == 200:
            return  # probes and scrapes would fill the log
        fields = {
            "request_id": visit.id,
            "client": visit.client,
            "method": visit.method,
            "path": scope["path"][:200],
            "status": visit.status or 499,
            "ms": round((time.perf_counter() - visit.begun) * 1e3, 1),
            "left": visit.left or None,
            **visit.notes,
        }
        logger.info("request", extra={"fields": {k: v for k, v in fields.items() if v is not None}})


class _Visit:
    """State of one request, from its arrival to its log line. It contains no prompt."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.begun = time.perf_counter()
        self.method, self.path = scope["method"], scope["path"]
        header = _header(scope, b"x-request-id").decode("latin-1")
        self.id = header if _REQUEST_ID.fullmatch(header) else uuid.uuid4().hex
        self.client = (scope.get("client") or ("local",))[0]
        self.notes: dict[str, object] = {}
        self.status: int | None = None
        self.complete = False
        self.left = False
        self._send = send

    async def send(self, message: Message) -> None:
        """Forward a message, and track the progress of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self.id.encode())]
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True
        await self._send(message)

    async def answer(self, error: ApiError) -> None:
        """Send an error, unless a response has started or the client has disconnected."""
        if self.status is not None or self.left:
            return
        response = error.response(self.path)
        start = {"type": "http.response.start", "status": error.status, "headers": response.raw_headers}
        await self.send(start)
        await self.send({"type": "http.response.body", "body": response.body})


def _is_local(scope: Scope) -> bool:
    """True if the connection came in on a loopback address."""
    address = _address((scope.get("server") or ("",))[0])
    return address is not None and address.is_loopback


def _may_be_rebound(host: bytes) -> bool:
    """True if a Host header is a domain name, whose owner decides where it leads."""
    name = _PORT.sub("", host.decode("latin-1")).strip("[]").rstrip(".").lower()
    return "." in name and not name.endswith(".localhost") and _address(name) is None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def check_clients(names: Sequence[str], keys: Sequence[str]) -> None:
    """Raise a ServerError for a name that no client can have: with keys theirs, without an IP address."""
    known = {_name(_digest(key.encode())) for key in keys}
    for name in names:
        if name not in known if keys else _address(name) is None:
            raise ServerError(
                f"no client is called {name!r}; clients are named as in the log, by "
                + (f"their keys: {', '.join(sorted(known))}" if keys else "their IP addresses")
            )


def _name(digest: bytes) -> str:
    """Name of a key in logs."""
    return "key-" + digest.hex()[:12]


def _digest(key: bytes) -> bytes:
    """Keys are compared as digests, so that timing reveals neither their content nor their length."""
    return hashlib.sha256(key).digest()


def _bearer(scope: Scope) -> bytes:
    scheme, _, key = _header(scope, b"authorization").partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _header(scope: Scope, name: bytes) -> bytes:
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in headers if key == name), b"")


async def _discard(receive: Receive) -> None:
    try:
        async with asyncio.timeout(_DISCARD_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
