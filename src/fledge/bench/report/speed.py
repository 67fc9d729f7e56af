"""The report's blocks about speed, identity and load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fledge.base.console import plural
from fledge.bench.load import LoadResult
from fledge.bench.report.formats import Bar, BarGroup, Table, interval, number, percent, times
from fledge.bench.results import (
    PLAIN,
    RANDOM,
    RELEASED,
    TRAINED,
    WITHOUT_LOOKUP,
    BenchResult,
    LevelRow,
    Subject,
)
from fledge.bench.summary import WorkloadSummary, workload_summary
from fledge.bench.workloads import OWN_WORKLOAD

ByHead = Mapping[str, Mapping[str, WorkloadSummary]]  # head -> workload or category -> figures
_MAX_LISTED = 12
_FASTER = 1.005  # rounds to 1.01×


@dataclass(frozen=True)
class Naming:
    """The display name of each engine, and the CSS class of its colour."""

    labels: Mapping[str, str]
    styles: Mapping[str, str]


@dataclass(frozen=True)
class Hero:
    """A head's figures in the first block."""

    label: str
    style: str
    figures: WorkloadSummary
    same: str
    same_note: str
    different: int  # differing answers of all workloads
    alone: WorkloadSummary | None  # without prompt lookup, if measured


def name_engines(heads: Sequence[str]) -> Naming:
    """Names and colours: the first head has the first colour, the released and random ones fixed ones."""
    labels = {PLAIN: "plain decode", TRAINED: "this run's head", RELEASED: "released head"}
    labels |= {f"{name}{WITHOUT_LOOKUP}": f"{label}{WITHOUT_LOOKUP}" for name, label in labels.items()}
    colours = iter(("s-trained", "s-third", "s-fourth"))
    styles = {head: "s-released" if head == RELEASED else next(colours, "s-fourth") for head in heads}
    return Naming(
        labels={name: labels.get(name, name) for name in (PLAIN, *heads, RANDOM)},
        styles={PLAIN: "s-plain", **styles, RANDOM: "s-random"},
    )


def numbers(subject: Subject) -> str:
    """The forms of the target's numbers."""
    return (
        f"{subject.quantization} weights, otherwise {subject.dtype}"
        if subject.quantization
        else subject.dtype
    )


def workload_title(name: str) -> str:
    """A workload's name on the page."""
    return "fledge's mixed set" if name == OWN_WORKLOAD else name


def make_heroes(bench: BenchResult | None, naming: Naming) -> list[Hero]:
    """One card per head: its speed on the first workload, and whether its answers are the same over all workloads.

    A head measured without prompt lookup, too, has one card for both.
    """
    if bench is None or not bench.answers:
        return []
    workload = bench.workload_names()[0]
    heroes = []
    for head in bench.heads:
        if head.endswith(WITHOUT_LOOKUP):
            continue
        every, bare = (workload_summary(bench.rows(name)) for name in (head, f"{head}{WITHOUT_LOOKUP}"))
        different = every.different + bare.different
        same, note = f"{every.identical} of {every.prompts}", "answers identical token for token"
        if different:
            prompts = plural(every.prompts + bare.prompts, "answer")
            same, note = f"{different} differ", f"of {prompts}: see below"
        elif every.near_tie:
            others = "the other parts" if every.near_tie == 1 else f"the other {every.near_tie} part"
            note = f"answers identical; {others} at a near-tie of the top two logits"
        first = workload_summary(bench.rows(head, workload))
        label, style = naming.labels[head], naming.styles[head]
        alone = workload_summary(bench.rows(f"{head}{WITHOUT_LOOKUP}", workload))
        measured = None if alone.speedup is None else alone
        heroes.append(Hero(label, style, first, same, note, different, measured))
    return heroes


def headline(heroes: Sequence[Hero]) -> str:
    """The report in one line, with one number: the speed-up of the first head, which is this run's."""
    speedup = heroes[0].figures.speedup if heroes else None
    if speedup is None:
        return "Plain decode, measured without a draft head"
    same = "but outputs differ" if any(hero.different for hero in heroes) else "same output"
    if speedup < _FASTER:
        return f"No faster: {speedup:.2f}× plain decode, {same}"
    return f"{times(speedup)} the speed of plain decode, {same}"


def served_headline(load: LoadResult) -> str:
    """A load test in one line: the first valid ratio, at the lowest load, and the same server's at the highest."""
    believed = [one for one in load.comparisons if not one.rejected and one.speedup is not None]
    if not believed:
        return f"{' and '.join(load.servers)}, measured over HTTP"
    first = next(iter(believed))
    last = next(one for one in reversed(believed) if one.server == first.server)
    text = f"{first.server}: tokens {times(first.speedup)} as fast as {load.servers[0]}"
    return text if last is first else f"{text}, {times(last.speedup)} at the highest load"


def scale_of(parts: Sequence[ByHead]) -> float:
    """The largest speed-up on the page, plus a margin."""
    speedups = [one.speedup or 0.0 for part in parts for groups in part.values() for one in groups.values()]
    return max([1.2, *speedups]) * 1.02


def bar_groups(by_head: ByHead, naming: Naming, scale: float, title: Callable[[str], str]) -> list[BarGroup]:
    """Speed-ups of all heads by workload or category."""
    groups = []
    for name in _names(by_head):
        by_name = {head: parts[name] for head, parts in by_head.items() if name in parts}
        bars = [
            Bar(
                naming.labels[head],
                naming.styles[head],
                f"{times(one.speedup)} · τ {number(one.tau, 2)}",
                100 * (one.speedup or 0.0) / scale,
            )
            for head, one in by_name.items()
        ]
        groups.append(BarGroup(title(name), plural(next(iter(by_name.values())).prompts, "prompt"), bars))
    return groups


def workload_table(by_head: ByHead, naming: Naming) -> Table:
    """All figures behind the bars."""
    columns = ("workload", "head", "prompts", "speed-up", "95 %", "noise", "τ", "plain ms", "ms per token")
    rows = []
    for name in _names(by_head):
        for head, parts in by_head.items():
            if f := parts.get(name):
                cells = [workload_title(name), naming.labels[head], str(f.prompts), times(f.speedup)]
                cells += [interval(f.speedup_low, f.speedup_high), percent(f.noise, 1), number(f.tau, 2)]
                cells += [number(f.tpot_plain_ms, 2), number(f.tpot_ms, 2)]
                rows.append([*cells, *map(str, (f.identical, f.near_tie, f.different, f.rejected))])
    return Table((*columns, "identical", "near-tie", "different", "rejected"), rows)


def level_table(levels: Sequence[LevelRow], naming: Naming) -> Table:
    """All figures behind the load charts."""
    columns = (
        "in flight",
        "engine",
        "requests",
        "TPOT ms",
        "TPOT p95 ms",
        "TTFT ms",
        "tokens/s",
        "over plain",
    )
    rows = []
    for row in levels:
        cells = [str(row.concurrency), naming.labels[row.engine], str(row.requests)]
        cells += [number(row.median_tpot_ms, 2), number(row.p95_tpot_ms, 2), number(row.median_ttft_ms, 0)]
        cells += [number(row.output_throughput), times(row.ratio), interval(row.ratio_low, row.ratio_high)]
        rows.append([*cells, number(row.tau, 2)])
    return Table((*columns, "interval", "τ"), rows)


def rejected_rows(bench: BenchResult | None, naming: Naming) -> list[str]:
    """Rows with implausible times, and why."""
    rows = [row for row in bench.answers if row.rejected] if bench else []
    lines = [f"{naming.labels[r.head]}, {r.workload} {r.question_id}: {r.rejected}" for r in rows]
    return _listed(lines)


def near_tie_rows(bench: BenchResult | None, naming: Naming) -> list[str]:
    """Where answers differ at a near-tie, and how close it is."""
    rows = [row for row in bench.answers if row.outcome == "near_tie"] if bench else []
    lines = [
        f"{naming.labels[r.head]}, {r.workload} {r.question_id}: token {r.differs_at}, logits "
        f"{r.gap or 0.0:.4f} apart, rounding step {r.rounding or 0.0:.4f}"
        for r in rows
    ]
    return _listed(lines)


def _names(by_head: ByHead) -> list[str]:
    return list(dict.fromkeys(name for parts in by_head.values() for name in parts))


def _listed(lines: list[str]) -> list[str]:
    more = len(lines) - _MAX_LISTED
    return lines if more <= 0 else [*lines[:_MAX_LISTED], f"and {more} more in bench/answers.jsonl"]
