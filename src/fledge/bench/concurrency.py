"""Throughput and latencies of every engine with 1, 2, 4, ... requests in flight, relative to plain decode.

Closed loop: whenever a request ends, the next one is sent until all are answered. Every measurement of a level, here
and in `python -m benchmarks.ratios`, uses the same load:

    requests   several per slot, with answers of different lengths as in real use (`answer_length`); towards the end
               fewer are in flight than the level says
    repeats    one uncounted wave, which teaches the planner what this batch size costs, then all requests
               several times; ratios are taken within a repeat
    turns      on a CPU step by step, so that slow spells of the machine affect all engines equally
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from fledge.bench.results import PLAIN, LevelRow
from fledge.bench.statistics import alternation, compare_paired
from fledge.data.options import Progress, silent
from fledge.engine import Completion, Engine, SamplingParams

_FIGURES = ("seconds", "output_throughput", "median_tpot_ms", "p95_tpot_ms", "median_ttft_ms", "tau")
_SHORTEST, _LONGEST = 0.5, 1.5  # of answers, relative to the requested tokens
_GOLDEN = (math.sqrt(5) - 1) / 2  # the fractions of its multiples are evenly spread and distinct


class Load(NamedTuple):
    """The amount of work at one level."""

    tokens: int  # per answer, on average
    repeats: int
    fewest: int  # requests
    per_slot: int  # requests, if these are more
    temperature: float = 0.0


def sweep(
    engines: Mapping[str, Engine],
    prompts: Sequence[list[int]],
    levels: Sequence[int],
    load: Load,
    progress: Progress = silent,
) -> Iterator[list[LevelRow]]:
    """Level by level, a row per engine including plain decode: medians over the repeats, ratios within them."""
    on_cpu = engines[PLAIN].target.decoder.device.type == "cpu"
    done, total = 0, len(levels) * (load.repeats + 1)
    for level in levels:
        requests = [prompts[n % len(prompts)] for n in range(max(load.fewest, load.per_slot * level))]
        lengths = [answer_length(n, load.tokens) for n in range(len(requests))]
        rows_of: dict[str, list[LevelRow]] = {name: [] for name in engines}
        for repeat, order in enumerate(alternation(list(engines), load.repeats + 1)):
            count = len(requests) if repeat else max(load.fewest, level)
            loops = {
                name: ClosedLoop(engines[name], requests[:count], level, lengths[:count], load.temperature)
                for name in order
            }
            for together in [list(loops.values())] if on_cpu else [[loop] for loop in loops.values()]:
                run_side_by_side(together)
            if repeat:
                for name, loop in loops.items():
                    rows_of[name].append(loop.figures(name))
            done += 1
            speeds = (f"{name} {rows[-1].output_throughput:.0f}" for name, rows in rows_of.items() if rows)
            progress(done, total, f"{level} at once, tokens/s: {', '.join(speeds)}" if repeat else "")
        yield [_over_plain(rows, rows_of[PLAIN]) for rows in rows_of.values()]


def _over_plain(rows: Sequence[LevelRow], plain: Sequence[LevelRow]) -> LevelRow:
    ratio = compare_paired(*([row.output_throughput for row in series] for series in (plain, rows))).ratio
    ratios = {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high, "repeats": ratio.count}
    return rows[0].model_copy(
        update=ratios | {name: median(getattr(row, name) for row in rows) for name in _FIGURES}
    )


def answer_length(number: int, tokens: int) -> int:
    """The length of a level's answer: half to one and a half times `tokens`, different from its neighbours'.

    Users' answers don't end together. Equal lengths would, under plain decode alone, which would profit: the prompts
    that follow would be prefilled in one forward.
    """
    share = _SHORTEST + (_LONGEST - _SHORTEST) * (number * _GOLDEN % 1)
    return max(round(share * tokens), 1)


def longest_answer(tokens: int) -> int:
    """An upper bound of `answer_length`."""
    return math.ceil(_LONGEST * tokens)


class ClosedLoop:
    """Answers all requests with one engine, `concurrency` at a time, step by step. A request's index is its seed.

    Latencies are measured on the loop's own clock, which stops between its steps.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Sequence[list[int]],
        concurrency: int,
        max_tokens: int | Sequence[int],
        temperature: float = 0.0,
    ) -> None:
        """`max_tokens`: per request, or one number for all."""
        lengths = [max_tokens] * len(requests) if isinstance(max_tokens, int) else max_tokens
        self.answers: list[Completion] = []
        self.seconds = 0.0  # of work in this loop
        self._engine, self._concurrency, self._temperature = engine, concurrency, temperature
        self._waiting = list(enumerate(zip(requests, lengths, strict=True)))[::-1]
        self._sent: dict[int, float] = {}  # send times of requests in flight, by id
        self._first: dict[int, float] = {}  # times of their first tokens
        self._ttfts_ms: list[float] = []
        self._tpots_ms: list[float] = []

    @property
    def done(self) -> bool:
        """True if all requests are answered."""
        return not self._waiting and not self._sent

    def step(self) -> None:
        """Send the requests that fit, and run one step of the engine."""
        begin = time.perf_counter()
        while self._waiting and len(self._sent) < self._concurrency:
            seed, (prompt, tokens) = self._waiting.pop()
            params = SamplingParams(max_tokens=tokens, temperature=self._temperature, seed=seed)
            self._sent[self._engine.submit(prompt, params)] = self.seconds
        results = self._engine.step()
        self.seconds += time.perf_counter() - begin
        for result in results:
            first = self._first.setdefault(result.request_id, self.seconds)
            if (answer := result.completion) is not None:
                self.answers.append(answer)
                self._ttfts_ms.append((first - self._sent.pop(result.request_id)) * 1e3)
                if (more := answer.stats.tokens - 1) > 0:  # a single token has no time per output token
                    self._tpots_ms.append((self.seconds - first) / more * 1e3)

    def figures(self, name: str) -> LevelRow:
        """The figures of the answers; `name` is the engine's."""
        stats = [answer.stats for answer in self.answers]
        rounds = sum(one.rounds for one in stats)
        tokens = sum(one.tokens for one in stats)
        tpots = self._tpots_ms or [0.0]
        return LevelRow(
            concurrency=self._concurrency,
            engine=name,
            requests=len(stats),
            output_tokens=tokens,
            seconds=self.seconds,
            output_throughput=tokens / self.seconds,
            median_tpot_ms=median(tpots),
            p95_tpot_ms=float(np.percentile(tpots, 95)),
            median_ttft_ms=median(self._ttfts_ms),
            tau=sum(one.tau * one.rounds for one in stats) / rounds if rounds else 1.0,
        )


def run_side_by_side(loops: Sequence[ClosedLoop]) -> None:
    """Run all loops concurrently: the next step is always that of the loop with the least work time.

    Slow spells of the machine then affect all of them, so ratios are several times as precise as with turns of seconds.
    Engines that work between their steps, as on a GPU, can't be compared this way.
    """
    while waiting := [loop for loop in loops if not loop.done]:
        min(waiting, key=lambda loop: loop.seconds).step()
