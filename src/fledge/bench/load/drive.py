"""Sends one level's conversations and keeps the time.

    closed loop   a slot takes the next conversation when its last one has ended
    open loop     a conversation starts when it is due, however busy the server is; its latencies count from then

A conversation's further turns follow as soon as the answer to the one before is whole, in the same slot. What the
model thought before it answered isn't sent back, as chat clients don't, either.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

import aiohttp

from fledge.bench.load.arrivals import Arrival
from fledge.bench.load.client import Call, RequestRecord, send


class Driven(NamedTuple):
    """All requests of a level, in the order they ended, and the seconds from the first sent to the last ended."""

    records: list[RequestRecord]
    seconds: float


async def drive(
    session: aiohttp.ClientSession, call: Call, arrivals: Sequence[Arrival], concurrency: int | None
) -> Driven:
    """Send all conversations; `concurrency` limits how many are in flight (None: no limit)."""
    records: list[RequestRecord] = []
    slots = asyncio.Semaphore(concurrency or max(len(arrivals), 1))
    begin = time.perf_counter()

    async def converse(arrival: Arrival) -> None:
        due = begin + arrival.due if arrival.due is not None else None
        try:
            messages: list[dict[str, str]] = []
            for turn, text in enumerate(arrival.prompt.turns):
                messages.append({"role": "user", "content": text})
                now = time.perf_counter()
                record = RequestRecord(
                    arrival.prompt.question_id, turn, due if due is not None and turn == 0 else now
                )
                await send(session, call, messages, record)
                records.append(record)
                if not record.ok:
                    return
                messages.append({"role": "assistant", "content": record.content})
        finally:
            slots.release()

    tasks = []
    for arrival in arrivals:
        if arrival.due is not None:
            await asyncio.sleep(begin + arrival.due - time.perf_counter())
        await slots.acquire()
        tasks.append(asyncio.create_task(converse(arrival)))
    await asyncio.gather(*tasks)
    return Driven(records, time.perf_counter() - begin)
