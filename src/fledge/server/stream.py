"""Server-sent events at the reader's pace: a slow reader blocks no one else, a stalled one is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fledge.server.strict import StrictBody

DONE = b"data: [DONE]\n\n"


class StreamOptions(StrictBody):
    """Usage reporting of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(None, description="usage in every chunk")


class ReaderStalled(Exception):
    """A stream's reader has taken nothing for too long, so the connection is dropped."""


def event(data: bytes) -> bytes:
    """One event that carries a line of JSON."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends events as they arrive, and nothing else: some clients take a comment for a broken event."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        *,
        deadline: float,
        timeout_event: Callable[[], bytes],
        stall_timeout: float,
        close: Callable[[], None],
    ) -> None:
        """At `deadline`, in the loop's time, `timeout_event` ends the stream; `close` is always called."""
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._events = events
        self._deadline = deadline
        self._timeout_event = timeout_event
        self._stall_timeout = stall_timeout
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            # One timer for the whole stream and no task per event, since an event's path to the socket is part of TPOT.
            try:
                async with asyncio.timeout_at(self._deadline), aclosing(self._events) as events:
                    async for data in events:
                        await self._pass(send, data)
            except TimeoutError:
                await self._pass(send, self._timeout_event())
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._close()

    async def _pass(self, send: Send, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._stall_timeout):
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except TimeoutError:
            raise ReaderStalled from None
