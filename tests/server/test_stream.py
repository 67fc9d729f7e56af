"""A stream ends with what its client has to know, and whoever waits or is gone is noticed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from fledge.server import stream
from fledge.server.stream import EventStream, ReaderStalled

LATE = b"data: late\n\n"
Messages = list[dict[str, Any]]


async def sent(
    events: AsyncGenerator[bytes],
    *,
    seconds: float = math.inf,
    stall_timeout: float = 60.0,
    took: Callable[[bytes], None] = lambda data: None,
    reads: bool = True,
    closed: list[bool] | None = None,
) -> list[bytes]:
    """What a client gets of a stream that may last so many seconds; `took` hears of each piece."""
    pieces: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            if not reads:
                await asyncio.Event().wait()
            pieces.append(message["body"])
            took(message["body"])

    made = EventStream(
        events,
        deadline=asyncio.get_running_loop().time() + min(seconds, 60),
        timeout_event=LATE,
        stall_timeout=stall_timeout,
        close=lambda: None if closed is None else closed.append(True),
    )
    async with asyncio.timeout(50):
        await made({}, None, send)  # type: ignore[arg-type]
    return pieces


def test_a_silent_stream_says_that_it_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_KEEP_ALIVE_S", 0.01)

    async def run() -> list[bytes]:
        heard = asyncio.Event()

        async def events() -> AsyncGenerator[bytes]:
            yield b"data: 1\n\n"
            await heard.wait()  # for ever, if nothing is said meanwhile
            yield b"data: 2\n\n"

        return await sent(events(), took=lambda data: heard.set() if data.startswith(b":") else None)

    pieces = asyncio.run(run())
    assert [piece for piece in pieces if piece.startswith(b"data")] == [b"data: 1\n\n", b"data: 2\n\n"]
    assert pieces[-1] == b""


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
