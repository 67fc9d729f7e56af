"""The same requests with 1, 2, 4, ... of them in flight: time per output token and throughput, by engine.

Closed loop: whenever a request ends the next one is sent, until all are answered.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median, quantiles

from fledge.bench.measure import Progress
from fledge.bench.results import LevelRow
from fledge.bench.shapes import rounds_since, shape_rounds
from fledge.bench.statistics import interleaved
from fledge.engine import Completion, Engine, SamplingParams


def sweep(
    engines: Mapping[str, Engine],
    prompts: Sequence[list[int]],
    levels: Sequence[int],
    *,
    max_tokens: int,
    min_requests: int,
    repeats: int = 1,
    temperature: float = 0.0,
    progress: Progress,
) -> list[LevelRow]:
    """Every engine at every level, on the same prompts, in alternation; of the repeats the one of median throughput."""
    found: defaultdict[tuple[int, str], list[LevelRow]] = defaultdict(list)
    for turn in interleaved(levels, list(engines), repeats):
        requests = [prompts[n % len(prompts)] for n in range(max(min_requests, 2 * turn.level))]
        row = run_level(engines[turn.name], turn.name, requests, turn.level, max_tokens, temperature)
        found[turn.level, turn.name].append(row)
        note = f"{turn.name}, {turn.level} at once: {row.output_throughput:.0f} tokens/s"
        progress(turn.number, turn.total, note)
    return [_middle(found[level, name]) for level in levels for name in engines]


def _middle(rows: Sequence[LevelRow]) -> LevelRow:
    return sorted(rows, key=lambda row: row.output_throughput)[(len(rows) - 1) // 2]


def run_level(
    engine: Engine,
    name: str,
    requests: Sequence[list[int]],
    concurrency: int,
    max_tokens: int | Sequence[int],
    temperature: float = 0.0,
) -> LevelRow:
    """Answer all requests, `concurrency` at a time; `max_tokens` of each, or of all. A request's number is its seed."""
    lengths = [max_tokens] * len(requests) if isinstance(max_tokens, int) else max_tokens
    waiting = list(enumerate(zip(requests, lengths, strict=True)))[::-1]
    answers: list[Completion] = []
    in_flight = 0
    before = shape_rounds(engine)
    begin = time.perf_counter()
    while waiting or in_flight:
        while waiting and in_flight < concurrency:
            seed, (prompt, tokens) = waiting.pop()
            engine.submit(prompt, SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed))
            in_flight += 1
        for result in engine.step():
            if result.completion is not None:
                answers.append(result.completion)
                in_flight -= 1
    seconds = time.perf_counter() - begin
    row = level_row(name, concurrency, answers, seconds)
    return row.model_copy(update={"shapes": rounds_since(before, engine)})


def level_row(name: str, concurrency: int, answers: Sequence[Completion], seconds: float) -> LevelRow:
    """The level's figures. Answers of a single token have no time per output token."""
    stats = [answer.stats for answer in answers]
    tpots = [one.tpot_ms for one in stats if one.tokens > 1] or [0.0]
    tokens, rounds = sum(one.tokens for one in stats), sum(one.rounds for one in stats)
    return LevelRow(
        concurrency=concurrency,
        engine=name,
        requests=len(answers),
        output_tokens=tokens,
        seconds=seconds,
        output_throughput=tokens / seconds,
        median_tpot_ms=median(tpots),
        p95_tpot_ms=quantiles(tpots, n=20, method="inclusive")[-1] if len(tpots) > 1 else mean(tpots),
        median_ttft_ms=median(one.ttft_ms for one in stats),
        tau=sum(one.tau * one.rounds for one in stats) / rounds if rounds else 1.0,
    )
