"""The report's blocks about rounds: time of their phases, what limits the speed-up next, which trees were used.

speed-up = tau * t_plain / (t_draft + t_verify + t_accept + t_extend + t_host)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fledge.bench.report.formats import Bar, BarGroup, Table, number, percent, times
from fledge.bench.report.speed import Naming
from fledge.bench.results import WITHOUT_LOOKUP, AnswerRow, BenchResult
from fledge.bench.shapes import read_shape_name
from fledge.bench.summary import acceptance_by_depth

PHASES = ("draft", "verify", "accept", "extend", "host")
_BETTER = 0.1  # added acceptance at every depth
_DEEPEST = 6  # deeper trees share a column


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


def limit_groups(bench: BenchResult | None, naming: Naming) -> list[BarGroup]:
    """Per head, the speed-up of its mean round as measured and with each term made ideal, largest gain first."""
    if bench is None:
        return []
    means = mean_rounds(bench)
    heads = [head for head in means if not head.endswith(WITHOUT_LOOKUP)]
    return [_limits(bench.rows(head), naming.labels[head], means[head]) for head in heads]


def _limits(rows: Sequence[AnswerRow], label: str, mean: MeanRound) -> BarGroup:
    ms, tau, total, step = mean.phases, mean.tau, mean.ms, mean.step
    drafted = sum(row.drafted_rounds for row in rows) / sum(row.rounds for row in rows)
    drafting = ms["draft"] + ms["extend"]
    ideal = {
        "drafting at no cost": (tau, total - drafting),
        "a verify at the price of a plain step": (tau, total - max(ms["verify"] - step, 0.0)),
        "accept and host hidden": (tau, total - ms["accept"] - ms["host"]),
        f"{100 * _BETTER:.0f} points more acceptance at every depth": (
            better_tau(acceptance_by_depth(rows), tau, drafted),
            total,
        ),
    }
    now = mean.speedup
    speedups = {name: t * step / left for name, (t, left) in ideal.items() if left > 0}
    order = sorted(speedups, key=lambda name: -speedups[name])
    scale = max([now, *speedups.values()])
    bars = [Bar("as measured", "s-plain", times(now), 100 * now / scale)]
    bars += [Bar(name, "s-third", times(speedups[name]), 100 * speedups[name] / scale) for name in order]
    share = percent((total - ms["verify"]) / total)
    sentence = (
        f"{order[0][:1].upper()}{order[0][1:]} would bring {times(speedups[order[0]])} instead of {times(now)}. "
        f"{share} of a round is spent outside the verify."
    )
    return BarGroup(label, sentence, bars)


def better_tau(by_depth: Sequence[float], tau: float, drafted: float = 1.0) -> float:
    """Tau if the conditional acceptance of every depth were ten points higher.

    `drafted`: the share of rounds with a draft. `by_depth` covers these rounds, and only they would gain.
    """
    now = later = 0.0
    reached = better = 1.0
    for share in by_depth:
        conditional = share / reached if reached else 0.0
        reached = share
        better *= min(1.0, conditional + _BETTER)
        now, later = now + share, later + better
    return tau + drafted * (later - now)


def shape_table(bench: BenchResult | None, naming: Naming) -> Table:
    """Share of rounds by tree depth, a line per head and number of requests in flight.

    By depth, since a planner that decides every round uses dozens of shapes.
    """
    used: list[tuple[str, int, Mapping[str, int]]] = []
    if bench is not None:
        used += [(head, 1, bench.shapes.get(head, {})) for head in bench.heads]
        levels = (row for row in bench.levels if row.engine in bench.heads and row.concurrency > 1)
        used += [(row.engine, row.concurrency, row.shapes) for row in levels]
    columns = ["head", "in flight", "plain", "lookup alone"]
    columns += [f"{depth} deep" for depth in range(1, _DEEPEST)]
    rows = [
        [naming.labels[head], str(level), *_by_depth(shapes)]
        for head, level, shapes in used
        if any(shapes.values())
    ]
    return Table([*columns, f"{_DEEPEST}+ deep", "nodes"], rows)


def _by_depth(shapes: Mapping[str, int]) -> list[str]:
    """Shares of plain decode, of lookup alone, and of each depth; then the mean number of nodes of a draft tree."""
    rounds, nodes, drafted = [0] * (_DEEPEST + 2), 0, 0
    for name, count in shapes.items():
        shape = read_shape_name(name)
        if shape.nodes > 1:
            rounds[1 + min(shape.depth, _DEEPEST)] += count
            nodes, drafted = nodes + count * shape.nodes, drafted + count
        else:
            rounds[0] += count
    total = sum(rounds)
    return [*(percent(count / total) for count in rounds), number(nodes / drafted if drafted else None)]
