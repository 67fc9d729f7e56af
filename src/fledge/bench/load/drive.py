"""When requests are sent: conversations of a workload in a closed loop, at Poisson times, or as recorded in a log.

    closed loop   a slot takes the next conversation when its last one has ended
    open loop     a conversation starts when it is due, however busy the server is; latencies count from then

A conversation's next turn is sent when the previous answer is complete, in the same slot. Like chat clients, it omits
the model's reasoning.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import aiohttp

from fledge.base.errors import DataError
from fledge.base.storage import read_bytes
from fledge.bench.load.client import Call, RequestRecord, send
from fledge.bench.workloads import Prompt, Workload, read_workload

_FORM = '{"timestamp": 0.25, "turns": ["Hello!"], "output_tokens": 64}'


@dataclass(frozen=True)
class Arrival:
    """A conversation and the due time of its first turn, in seconds after the start; None: when a slot is free."""

    prompt: Prompt
    due: float | None


def closed_loop(prompts: Sequence[Prompt], count: int) -> list[Arrival]:
    """`count` conversations in order, starting over at the end."""
    return [Arrival(prompts[index % len(prompts)], None) for index in range(count)]


def poisson(prompts: Sequence[Prompt], count: int, rate: float, seed: int) -> list[Arrival]:
    """`count` conversations with exponential gaps of mean 1 / rate; an infinite rate sends all at once."""
    generator = random.Random(seed)
    arrivals, now = [], 0.0
    for index in range(count):
        arrivals.append(Arrival(prompts[index % len(prompts)], now))
        now += generator.expovariate(rate) if rate != math.inf else 0.0
    return arrivals


def read_traffic(url: str, speed: float = 1.0) -> tuple[Workload, list[Arrival]]:
    """A traffic log: JSON lines of `turns` with a `timestamp` in seconds, replayed `speed` times as fast."""
    if not 0 < speed < math.inf:
        raise DataError(f"--speed is {speed}; give a number above 0: 2 is twice as fast as recorded")
    workload = read_workload(url, _FORM)
    times = []
    for number, line in enumerate(read_bytes(url).decode("utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        stamp = json.loads(line).get("timestamp")
        if isinstance(stamp, bool) or not isinstance(stamp, (int, float)) or not math.isfinite(stamp):
            raise DataError(
                f"{url}, line {number}: `timestamp` must be a number of seconds; write each line like {_FORM}"
            )
        times.append(float(stamp))
    first = min(times)
    ordered = sorted(zip(times, workload.prompts, strict=True), key=lambda pair: pair[0])
    return workload, [Arrival(prompt, (stamp - first) / speed) for stamp, prompt in ordered]


class Driven(NamedTuple):
    """All requests of a level, in completion order, and the seconds from the first send to the last completion."""

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
            messages = arrival.prompt.opening
            for turn, text in enumerate(arrival.prompt.turns):
                messages.append({"role": "user", "content": text})
                now = time.perf_counter()
                record = RequestRecord(
                    arrival.prompt.question_id, turn, due if due is not None and turn == 0 else now
                )
                own = replace(call, max_tokens=arrival.prompt.max_tokens(turn, call.max_tokens))
                await send(session, own, messages, record, arrival.prompt.extras)
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
