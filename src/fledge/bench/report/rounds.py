"""The report's block about rounds: the time of their phases.

speed-up = tau * t_plain / (t_draft + t_verify + t_accept + t_extend + t_host)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fledge.bench.report.formats import Bar, BarGroup, times
from fledge.bench.report.speed import Naming
from fledge.bench.results import BenchResult

PHASES = ("draft", "verify", "accept", "extend", "host")


@dataclass(frozen=True)
class MeanRound:
    """One head's average round over all its answers."""

    phases: Mapping[str, float]  # milliseconds
    tau: float
    step: float  # milliseconds per token of plain decode on the same answers

    @property
    def ms(self) -> float:
        """Milliseconds of the whole round."""
        return sum(self.phases.values())

    @property
    def speedup(self) -> float:
        """By the equation."""
        return self.tau * self.step / self.ms


def mean_rounds(bench: BenchResult | None) -> dict[str, MeanRound]:
    """By head, for heads with timed rounds."""
    if bench is None:
        return {}
    rounds_by_head = {}
    for head in bench.heads:
        rows = [row for row in bench.rows(head) if row.phases_ms and row.rounds]
        rounds = sum(row.rounds for row in rows)
        phases = {name: sum(row.phases_ms.get(name, 0.0) for row in rows) / max(rounds, 1) for name in PHASES}
        if any(phases.values()):
            tokens = sum(row.round_tokens for row in rows)
            plain = sum(row.tpot_plain_ms * row.round_tokens for row in rows)
            rounds_by_head[head] = MeanRound(phases, tokens / rounds, plain / tokens)
    return rounds_by_head


def round_groups(bench: BenchResult | None, naming: Naming) -> list[BarGroup]:
    """Per head: mean milliseconds of each phase of a round, and the resulting speed-up; on top plain decode's step,
    on the same scale."""
    means = mean_rounds(bench)
    if not means:
        return []
    step = next(iter(means.values())).step
    longest = max([step, *(mean.ms for mean in means.values())])
    plain = Bar("one token", "p-plain", f"{step:.1f} ms", 100 * step / longest)
    groups = [BarGroup("plain decode", f"{step:.1f} ms for one token", [plain])]
    for head, mean in means.items():
        segments = [
            Bar(name, f"p-{name}", f"{name} {ms:.2f} ms", 100 * ms / longest)
            for name, ms in mean.phases.items()
        ]
        text = f"τ {mean.tau:.2f} × {mean.step:.1f} ms ÷ {mean.ms:.1f} ms per round = {times(mean.speedup)}"
        groups.append(BarGroup(naming.labels[head], text, segments))
    return groups
