"""The same tokens by plain decode and by each head, to scale: what happens when, from the mean round.

plain decode   |----|----|----|----|----|----|----|----|      a step per token
with a head    |d|verify|ae|d|verify|ae|d|verify|ae|          rounds of draft, verify, accept, extend and host
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fledge.bench.report.formats import number
from fledge.bench.report.speed import Bar, BarGroup, Naming
from fledge.bench.results import BenchResult

PHASES = ("draft", "verify", "accept", "extend", "host")
TOKENS = 24  # drawn


@dataclass(frozen=True)
class MeanRound:
    """One head's rounds on average over all its answers."""

    phases: Mapping[str, float]  # milliseconds
    tau: float
    step: float  # milliseconds of plain decode for a token of the same answers

    @property
    def ms(self) -> float:
        """Of the whole round."""
        return sum(self.phases.values())


def mean_round(bench: BenchResult, head: str) -> MeanRound | None:
    """None for a head without timed rounds."""
    rows = [row for row in bench.rows(head) if row.phases_ms and row.rounds]
    rounds = sum(row.rounds for row in rows)
    if not rounds:
        return None
    phases = {name: sum(row.phases_ms.get(name, 0.0) for row in rows) / rounds for name in PHASES}
    tokens = sum(row.round_tokens for row in rows)
    plain = sum(row.tpot_plain_ms * row.round_tokens for row in rows)
    return MeanRound(phases, tokens / rounds, plain / tokens) if any(phases.values()) else None


def mean_rounds(bench: BenchResult | None) -> dict[str, MeanRound]:
    """By head, of those that have timed rounds."""
    means = {head: mean_round(bench, head) for head in bench.heads} if bench else {}
    return {head: mean for head, mean in means.items() if mean is not None}


def timeline(bench: BenchResult | None, naming: Naming) -> list[BarGroup]:
    """Each engine's time, plain decode's first; shares are of the longest. Nothing if no head has timed rounds."""
    found = mean_rounds(bench)
    if not found:
        return []
    step = next(iter(found.values())).step
    counts = {head: math.ceil(TOKENS / mean.tau) for head, mean in found.items()}
    longest = max([TOKENS * step, *(counts[head] * mean.ms for head, mean in found.items())])
    boxes = [
        Bar("step", "p-plain", f"token {n + 1}: {step:.1f} ms", 100 * step / longest) for n in range(TOKENS)
    ]
    lanes = [BarGroup("plain decode", f"{TOKENS} steps, {number(TOKENS * step, 0)} ms", boxes)]
    for head, mean in found.items():
        boxes = [
            Bar(name, f"p-{name}", f"round {n + 1}, {name}: {ms:.2f} ms", 100 * ms / longest)
            for n in range(counts[head])
            for name, ms in mean.phases.items()
            if ms > 0
        ]
        note = f"{counts[head]} rounds of {mean.tau:.2f} tokens, {number(counts[head] * mean.ms, 0)} ms"
        lanes.append(BarGroup(naming.labels[head], note, boxes))
    return lanes
