"""Server-sent events, at the reader's pace: a slow one holds up nobody, one that takes nothing is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fledge.server.errors import ApiError

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": still here\n\n"
_KEEP_ALIVE_S = 15.0


def event(data: bytes) -> bytes:
    """One event that carries a line of JSON."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends events as they come, and a comment when none has come for a while."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        deadline: float,
        late: bytes,
        stall_timeout: float,
        close: Callable[[], None],
    ) -> None:
        """At `deadline`, in the loop's time, `late` is sent and the stream ends; `close` is called however it ends."""
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._deadline = deadline
        self._late = late
        self._stall_timeout = stall_timeout
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        upcoming: asyncio.Future[bytes | None] | None = None
        now = asyncio.get_running_loop().time
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            data: bytes | None = b""
            while data is not None:
                upcoming = upcoming or asyncio.ensure_future(_next(self._events))
                await asyncio.wait({upcoming}, timeout=min(_KEEP_ALIVE_S, max(self._deadline - now(), 0)))
                if upcoming.done():
                    data, upcoming = upcoming.result(), None
                elif now() >= self._deadline:
                    await self._pass(send, self._late)
                    break
                else:
                    data = _KEEP_ALIVE
                if data is not None:
                    await self._pass(send, data)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if upcoming is not None:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
            self._close()

    async def _pass(self, send: Send, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise ApiError(408, "the reader has stalled", code="stalled") from None


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    """The next event; None at the end."""
    return await anext(events, None)
