"""A stream ends with what its client has to know, and whoever waits or is gone is noticed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fledge.server.stream import EventStream, ReaderStalled

LATE = b"data: late\n\n"
Messages = list[dict[str, Any]]


async def sent(
    events: AsyncGenerator[bytes],
    *,
    seconds: float = math.inf,
    stall_timeout: float = 60.0,
    reads: bool = True,
    closed: list[bool] | None = None,
) -> list[bytes]:
    """What a client gets of a stream that may last so many seconds."""
    pieces: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            if not reads:
                await asyncio.Event().wait()
            pieces.append(message["body"])

    made = EventStream(
        events,
        deadline=asyncio.get_running_loop().time() + min(seconds, 60),
        timeout_event=lambda: LATE,
        stall_timeout=stall_timeout,
        close=lambda: None if closed is None else closed.append(True),
    )
    async with asyncio.timeout(50):
        await made({}, None, send)  # type: ignore[arg-type]
    return pieces


def test_a_silent_stream_sends_nothing_but_its_events() -> None:
    """vLLM's and SGLang's load generators count an answer with a comment in it as failed."""

    class Clock(asyncio.SelectorEventLoop):
        """Sleeps take no time."""

        ahead = 0.0

        def time(self) -> float:
            return super().time() + self.ahead

        def _run_once(self) -> None:
            if self._scheduled and not self._ready:  # type: ignore[attr-defined]
                self.ahead += max(self._scheduled[0].when() - self.time(), 0.0)  # type: ignore[attr-defined]
            super()._run_once()  # type: ignore[misc]

    async def events() -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.sleep(45)
        yield b"data: 2\n\n"

    with asyncio.Runner(loop_factory=Clock) as runner:
        assert runner.run(sent(events())) == [b"data: 1\n\n", b"data: 2\n\n", b""]


def test_a_stream_that_lasts_too_long_ends_with_what_was_late() -> None:
    closed: list[bool] = []

    async def events() -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.Event().wait()

    pieces = asyncio.run(sent(events(), seconds=0.05, closed=closed))
    assert pieces[-2:] == [LATE, b""]
    assert closed == [True]


def test_a_reader_that_takes_nothing_is_dropped() -> None:
    closed: list[bool] = []

    async def events() -> AsyncGenerator[bytes]:
        yield b"data: 1\n\n"

    with pytest.raises(ReaderStalled):
        asyncio.run(sent(events(), stall_timeout=0.05, reads=False, closed=closed))
    assert closed == [True]
