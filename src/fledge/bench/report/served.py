"""The report's block about servers measured over HTTP: three charts, and every comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fledge.base.console import plural
from fledge.bench.load import LoadResult
from fledge.bench.load.results import Comparison
from fledge.bench.report.charts import Axes, Series, line_chart
from fledge.bench.report.formats import ABSENT, Table, interval, number, percent, times
from fledge.bench.statistics import median_of, range_note

_STYLES = ("s-plain", "s-trained", "s-released", "s-third", "s-fourth")
_CHARTS = {
    "median_tpot_ms": ("Time per output token", "median, ms; lower is better", "ms per output token"),
    "output_throughput": ("Output throughput", "tokens/s; higher is better", "tokens/s"),
    "median_ttft_ms": ("Time to first token", "median, ms; lower is better", "ms to the first token"),
}
_AXIS = "requests in flight"
_COLUMNS = ("load", "server", "TPOT", "TTFT", "tokens/s", "speed-up (95 %)", "τ", "same answers", "noise")


@dataclass(frozen=True)
class Chart:
    """A titled drawing."""

    title: str
    note: str
    svg: str


@dataclass(frozen=True)
class ServedView:
    """All data of the block."""

    legend: list[tuple[str, str]]  # (style, server)
    intro: str
    charts: list[Chart]
    table: Table
    verdicts: list[str]
    notes: list[str]


def served_view(load: LoadResult | None) -> ServedView | None:
    """The block's data; figures are medians over the repeats of a level."""
    if load is None:
        return None
    styles = dict(zip(load.servers, _STYLES * len(load.servers), strict=False))
    models = ", ".join(dict.fromkeys(load.models.values()))
    options = load.options
    longest = max(
        (row["max_tokens"] for row in load.rows if "max_tokens" in row), default=options.get("max_tokens")
    )
    intro = (
        f"{models} over HTTP, workload {load.workload}, up to {longest} new tokens, "
        f"{plural(int(options.get('repeats', 0)), 'repeat')} of each level in alternation."
    )
    return ServedView(
        legend=[(style, server) for server, style in styles.items()],
        intro=intro,
        charts=_charts(load, styles),
        table=_table(load),
        verdicts=[*_failures(load), *_remarks(load)],
        notes=[
            *load.notes,
            *(range_note(options.get("repeats", 0)) if load.comparisons else []),
        ],
    )


def _charts(load: LoadResult, styles: dict[str, str]) -> list[Chart]:
    levels = sorted({float(row["max_concurrency"]) for row in load.rows})
    if len(levels) < 2:
        return []
    charts = []
    for field, (title, note, unit) in _CHARTS.items():
        series = [
            Series(server, style, _points([row for row in load.rows if row["backend"] == server], field))
            for server, style in styles.items()
        ]
        axes = Axes(_AXIS, unit, x_scale="log2", x_values=levels)
        charts.append(Chart(title, note, line_chart(series, axes, description=f"{unit} against {_AXIS}")))
    return [chart for chart in charts if chart.svg]


def _points(rows: Sequence[dict[str, Any]], field: str) -> list[tuple[float, float]]:
    by_level: dict[float, list[float]] = {}
    for row in rows:
        if row[field] is not None:
            by_level.setdefault(float(row["max_concurrency"]), []).append(row[field])
    return [(level, median(values)) for level, values in sorted(by_level.items())]


def _failures(load: LoadResult) -> list[str]:
    """Failed requests, including those of a single server, which has no ratios to reject."""
    lines = []
    for level, server, rows in _blocks(load):
        if failed := sum(row["failed"] for row in rows):
            errors = sorted({error for row in rows for error in row.get("errors", ())})
            sent = failed + sum(row["completed"] for row in rows)
            lines.append(
                f"{level} in flight, {server}: {failed} of {sent} requests failed: {'; '.join(errors[:2])}"
            )
    return lines


def _remarks(load: LoadResult) -> list[str]:
    return [
        f"{c.concurrency} in flight, {c.server}: {remark}"
        for c in load.comparisons
        if (remark := f"rejected, {c.rejected}" if c.rejected else c.remark)
    ]


def _blocks(load: LoadResult) -> Iterator[tuple[int, str, list[dict[str, Any]]]]:
    """Each level's rows by server, in table order."""
    for level in dict.fromkeys(row["max_concurrency"] for row in load.rows):
        for server in load.servers:
            rows = [row for row in load.rows if row["backend"] == server and row["max_concurrency"] == level]
            if rows:
                yield level, server, rows


def _table(load: LoadResult) -> Table:
    comparisons = {(c.server, c.concurrency): c for c in load.comparisons}
    lines = [
        _line(server, level, rows, comparisons.get((server, level))) for level, server, rows in _blocks(load)
    ]
    return Table(_COLUMNS, lines)


def _line(
    server: str,
    level: int,
    rows: Sequence[dict[str, Any]],
    c: Comparison | None,
) -> list[str]:
    def middle(field: str) -> float | None:
        return median_of(row.get(field) for row in rows)

    speedup = same = noise = ABSENT
    if c is not None:
        sure = f" ({interval(c.speedup_low, c.speedup_high)})" if c.speedup_low else ""
        speedup = "rejected" if c.rejected else times(c.speedup) + sure
        same = f"{c.identical} of {c.compared}" if c.compared else ABSENT
        noise = percent(c.noise, 1)
    figures = [number(middle("median_tpot_ms"), 2), number(middle("median_ttft_ms"), 0)]
    figures += [number(middle("output_throughput")), speedup, number(middle("accept_length"), 2), same, noise]
    return [f"{level} in flight", server, *figures]
