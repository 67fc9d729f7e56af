"""Two runs side by side: is one faster, or did the machine's speed change?

Rows are paired by workload and prompt. Times of two runs weren't measured in alternation, so drift of the machine
between them shows up as a difference; plain decode, measured in both runs, shows how large that drift is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from fledge.base.errors import DataError
from fledge.bench.report.formats import Table, interval, number, percent, times
from fledge.bench.report.render import render
from fledge.bench.results import AnswerRow, BenchResult
from fledge.bench.statistics import Difference, compare_paired
from fledge.bench.summary import workload_summary

_COLUMNS = ("workload", "figure", "prompts", "first", "second", "ratio", "95 %", "verdict")
_FIGURES: dict[str, Callable[[AnswerRow], float | None]] = {
    "ms": lambda row: row.tpot_ms,
    "plain ms": lambda row: row.tpot_plain_ms,
    "speed-up": lambda row: row.speedup,
    "tau": lambda row: row.tau,
    "TTFT ms": lambda row: row.ttft_ms,
}


@dataclass(frozen=True)
class Line:
    """One figure of one workload in both runs."""

    workload: str
    prompts: int
    figure: str
    first: float
    second: float
    difference: Difference

    @property
    def cells(self) -> list[str]:
        """As a table shows it."""
        ratio = self.difference.ratio
        figures = [number(self.first, 2), number(self.second, 2), times(ratio.value)]
        sure = [interval(ratio.low, ratio.high), self.difference.verdict]
        return [self.workload, self.figure, str(self.prompts), *figures, *sure]


@dataclass(frozen=True)
class RunComparison:
    """All figures of two runs' own heads, and differences in how they were measured."""

    names: tuple[str, str]
    lines: list[Line]
    differences: list[str]
    warning: str

    @property
    def table(self) -> Table:
        """All lines, as they are printed and as the page has them."""
        return Table(_COLUMNS, [line.cells for line in self.lines])


def compare_runs(first: BenchResult, second: BenchResult, names: tuple[str, str]) -> RunComparison:
    """Compare the first head of both runs, prompt by prompt."""
    for name, result in zip(names, (first, second), strict=True):
        if not result.heads:
            raise DataError(f"{name} measured no head; compare runs that did")
    rows = [_by_prompt(result) for result in (first, second)]
    common = [key for key in rows[0] if key in rows[1]]
    if not common:
        raise DataError(
            f"{names[0]} and {names[1]} have no prompt in common; measure both on the same workloads"
        )
    lines = []
    for workload in dict.fromkeys(key[0] for key in common):
        pairs = [(rows[0][key], rows[1][key]) for key in common if key[0] == workload]
        for figure, value in _FIGURES.items():
            both = [(x, y) for a, b in pairs if (x := value(a)) and (y := value(b))]
            if both:
                difference = compare_paired([x for x, _ in both], [y for _, y in both])
                if figure == "tau":  # over all rounds, as everywhere else
                    before, after = (
                        workload_summary(list(rows)).tau or 0.0 for rows in zip(*pairs, strict=True)
                    )
                else:
                    before, after = (median(values) for values in zip(*both, strict=True))
                lines.append(Line(workload, len(both), figure, before, after, difference))
    return RunComparison(names, lines, _settings(first, second), _drift(lines))


def render_comparison(comparison: RunComparison) -> str:
    """One page, in the report's own style."""
    return render("compare.html", comparison=comparison)


def _by_prompt(result: BenchResult) -> dict[tuple[str, str], AnswerRow]:
    return {
        (row.workload, row.question_id): row for row in result.rows(result.heads[0]) if row.rejected is None
    }


def _settings(first: BenchResult, second: BenchResult) -> list[str]:
    """Differences in how the two were measured."""
    parts = [
        ("target", first.subject.model_dump(), second.subject.model_dump()),
        ("machine", first.machine.model_dump(), second.machine.model_dump()),
        ("version", first.versions, second.versions),
        ("option", first.options.model_dump(), second.options.model_dump()),
    ]
    return [
        f"{part} {key}: {one.get(key)} → {other.get(key)}"
        for part, one, other in parts
        for key in sorted({*one, *other})
        if one.get(key) != other.get(key)
    ]


def _drift(lines: list[Line]) -> str:
    """Plain decode is the same program in both runs: if its time changed, the machine did."""
    changed = [line for line in lines if line.figure == "plain ms" and line.difference.significant]
    if not changed:
        return ""
    worst = max(changed, key=lambda line: abs(line.difference.ratio.value - 1))
    change = worst.difference.ratio.value - 1
    return (
        f"Plain decode itself took {percent(abs(change), 1)} {'more' if change > 0 else 'less'} time in the second run "
        f"({worst.workload}): the machine or the engine changed between the runs. Compare speed-ups, not milliseconds."
    )
