"""What is sent when: conversations of a workload in a closed loop, at Poisson times, or as they once came in."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from fledge.bench.workloads import Prompt, Workload, read_workload
from fledge.errors import DataError
from fledge.storage import read_bytes


@dataclass(frozen=True)
class Arrival:
    """A conversation and when its first turn is due, in seconds after the start; None: when a slot is free."""

    prompt: Prompt
    due: float | None


def closed_loop(prompts: Sequence[Prompt], count: int) -> list[Arrival]:
    """`count` conversations, taken in order and again from the start."""
    return [Arrival(prompts[index % len(prompts)], None) for index in range(count)]


def poisson(prompts: Sequence[Prompt], count: int, rate: float, seed: int) -> list[Arrival]:
    """`count` conversations with exponential gaps of mean 1 / rate; an infinite rate sends all at once."""
    generator = random.Random(seed)
    arrivals, now = [], 0.0
    for index in range(count):
        arrivals.append(Arrival(prompts[index % len(prompts)], now))
        now += generator.expovariate(rate) if rate != float("inf") else 0.0
    return arrivals


def read_traffic(url: str, speed: float = 1.0) -> tuple[Workload, list[Arrival]]:
    """A traffic log: JSON lines of `turns` with a `timestamp` in seconds, replayed `speed` times as fast."""
    if not 0 < speed < math.inf:
        raise DataError(f"--speed is {speed}; give a number above 0: 2 is twice as fast as it came")
    workload = read_workload(url)
    times = []
    for number, line in enumerate(read_bytes(url).decode("utf-8-sig").split("\n"), start=1):
        if not line.strip():
            continue
        stamp = json.loads(line).get("timestamp")
        if isinstance(stamp, bool) or not isinstance(stamp, (int, float)) or not math.isfinite(stamp):
            raise DataError(
                f"{url}, line {number}: `timestamp` must be a number of seconds; "
                'write each line like {"timestamp": 0.25, "turns": ["Hello!"]}'
            )
        times.append(float(stamp))
    first = min(times)
    ordered = sorted(zip(times, workload.prompts, strict=True), key=lambda pair: pair[0])
    return workload, [Arrival(prompt, (stamp - first) / speed) for stamp, prompt in ordered]
