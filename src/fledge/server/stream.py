"""Server-sent events, at the reader's pace: a slow one holds up nobody, one that takes nothing is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": still here\n\n"
_KEEP_ALIVE_S = 15.0


class ReaderStalled(Exception):
    """A stream's reader has taken nothing for too long; nobody is left to be told."""


def event(data: bytes) -> bytes:
    """One event that carries a line of JSON."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends events as they come, and a comment when none has come for a while."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
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
        self._passed = 0  # events so far

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        waking: asyncio.Future[None] | None = None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            waking = asyncio.ensure_future(self._keep_alive(send))
            # One timer for the whole stream, and no task per event: an event's way to the socket is part of TPOT.
            try:
                async with asyncio.timeout_at(self._deadline), aclosing(self._events) as events:
                    async for data in events:
                        await self._pass(send, data)
            except TimeoutError:
                await self._pass(send, self._late)
            waking.cancel()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if waking is not None:
                waking.cancel()
                await asyncio.gather(waking, return_exceptions=True)
            self._close()

    async def _pass(self, send: Send, data: bytes) -> None:
        self._passed += 1
        try:
            async with asyncio.timeout(self._stall_timeout):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise ReaderStalled from None

    async def _keep_alive(self, send: Send) -> None:
        """Say something when nothing has been said for a while; proxies cut silent connections."""
        while True:
            before = self._passed
            await asyncio.sleep(_KEEP_ALIVE_S)
            if before == self._passed:
                await send({"type": "http.response.body", "body": _KEEP_ALIVE, "more_body": True})
