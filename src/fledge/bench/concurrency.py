"""The same requests with 1, 2, 4, ... of them in flight: time per output token and throughput, by engine.

Closed loop: whenever a request ends the next one is sent, until all are answered.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from fledge.bench.options import BenchOptions
from fledge.bench.results import LevelRow
from fledge.bench.shapes import rounds_since, shape_rounds
from fledge.bench.statistics import interleaved
from fledge.data.options import Progress
from fledge.engine import Completion, Engine, SamplingParams


def sweep(
    engines: Mapping[str, Engine], prompts: Sequence[list[int]], options: BenchOptions, progress: Progress
) -> list[LevelRow]:
    """Every engine at every level, on the same prompts, in alternation; of the repeats the one of median throughput."""
    found: defaultdict[tuple[int, str], list[LevelRow]] = defaultdict(list)
    for turn in interleaved(options.concurrency, list(engines), options.sweep_repeats):
        count = max(options.sweep_requests, 2 * turn.level)
        requests = [prompts[n % len(prompts)] for n in range(count)]
        engine, tokens = engines[turn.name], options.sweep_tokens
        row = run_level(engine, turn.name, requests, turn.level, tokens, options.temperature)
        found[turn.level, turn.name].append(row)
        note = f"{turn.name}, {turn.level} at once: {row.output_throughput:.0f} tokens/s"
        progress(turn.number, turn.total, note)
    return [_middle(found[level, name]) for level in options.concurrency for name in engines]


def _middle(rows: Sequence[LevelRow]) -> LevelRow:
    return sorted(rows, key=lambda row: row.output_throughput)[(len(rows) - 1) // 2]


class ClosedLoop:
    """Answers all requests with one engine, `concurrency` at a time, step by step. A request's number is its seed."""

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[list[int]],
        concurrency: int,
        max_tokens: int | Sequence[int],
        temperature: float = 0.0,
    ) -> None:
        """`max_tokens`: of each request, or one number for all."""
        lengths = [max_tokens] * len(requests) if isinstance(max_tokens, int) else max_tokens
        self.answers: list[Completion] = []
        self.seconds = 0.0  # that this loop has worked
        self._engine, self._concurrency, self._temperature = engine, concurrency, temperature
        self._waiting = list(enumerate(zip(requests, lengths, strict=True)))[::-1]
        self._in_flight = 0

    @property
    def done(self) -> bool:
        """Whether all requests are answered."""
        return not self._waiting and not self._in_flight

    def step(self) -> None:
        """Send what fits, and let the engine do one step."""
        begin = time.perf_counter()
        while self._waiting and self._in_flight < self._concurrency:
            seed, (prompt, tokens) = self._waiting.pop()
            params = SamplingParams(max_tokens=tokens, temperature=self._temperature, seed=seed)
            self._engine.submit(prompt, params)
            self._in_flight += 1
        for result in self._engine.step():
            if result.completion is not None:
                self.answers.append(result.completion)
                self._in_flight -= 1
        self.seconds += time.perf_counter() - begin


def run_level(
    engine: Engine,
    name: str,
    requests: Sequence[list[int]],
    concurrency: int,
    max_tokens: int | Sequence[int],
    temperature: float = 0.0,
) -> LevelRow:
    """Answer all requests with one engine (see `ClosedLoop`)."""
    loop, before = ClosedLoop(engine, requests, concurrency, max_tokens, temperature), shape_rounds(engine)
    while not loop.done:
        loop.step()
    # Answers of a single token have no time per output token.
    stats = [answer.stats for answer in loop.answers]
    tpots = [one.tpot_ms for one in stats if one.tokens > 1] or [0.0]
    tokens = sum(one.tokens for one in stats)
    return LevelRow(
        concurrency=concurrency,
        engine=name,
        requests=len(stats),
        output_tokens=tokens,
        seconds=loop.seconds,
        output_throughput=tokens / loop.seconds,
        median_tpot_ms=median(tpots),
        p95_tpot_ms=float(np.percentile(tpots, 95)),
        median_ttft_ms=median(one.ttft_ms for one in stats),
        tau=_tau(loop.answers),
        shapes=rounds_since(before, engine),
    )


class Throughput(NamedTuple):
    """One engine's figures among others."""

    tokens_per_second: float
    tau: float


def run_side_by_side(loops: Mapping[str, ClosedLoop]) -> dict[str, Throughput]:
    """Run all loops at once: the next step is always that of the loop that has worked for the least time.

    A slow moment of the machine then meets all of them, so that ratios are several times as exact as from turns of
    seconds. Latencies of single requests mean nothing here. Engines that work between their steps, as on a GPU, can't
    be compared like this.
    """
    while waiting := [loop for loop in loops.values() if not loop.done]:
        min(waiting, key=lambda loop: loop.seconds).step()
    return {
        name: Throughput(
            sum(answer.stats.tokens for answer in loop.answers) / loop.seconds, _tau(loop.answers)
        )
        for name, loop in loops.items()
    }


def _tau(answers: Sequence[Completion]) -> float:
    rounds = sum(answer.stats.rounds for answer in answers)
    return sum(answer.stats.tau * answer.stats.rounds for answer in answers) / rounds if rounds else 1.0
