"""The report's block about servers measured over HTTP: three charts, and every comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fledge.base.console import plural
from fledge.bench.load import LoadResult
from fledge.bench.load.results import Comparison, Level, level_of
from fledge.bench.report.charts import Axes, Series, line_chart
from fledge.bench.report.formats import ABSENT, Table, interval, number, percent, times
from fledge.bench.statistics import median_of, range_note

_STYLES = ("s-plain", "s-trained", "s-released", "s-third", "s-fourth")
_CHARTS = {
    "median_tpot_ms": ("Time per output token", "median, ms; lower is better", "ms per output token"),
    "output_throughput": ("Output throughput", "tokens/s; higher is better", "tokens/s"),
    "median_ttft_ms": ("Time to first token", "median, ms; lower is better", "ms to the first token"),
}
_COLUMNS = ("load", "server", "TPOT", "TTFT", "tokens/s", "speed-up (95 %)", "τ", "same answers", "noise")
_MORE_COLUMNS = {  # fields that only some tests have
    "request_goodput": "goodput/s",
    "cost_per_million_output_tokens": "cost per million",
}


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
            *_rounds(load),
        ],
    )


def _rounds(load: LoadResult) -> list[str]:
    """Time per phase of a round, for servers that report it."""
    phases_by_server: dict[str, list[dict[str, float]]] = {}
    for row in load.rows:
        if phases := row.get("phase_ms_per_round"):
            phases_by_server.setdefault(row["backend"], []).append(phases)
    lines = []
    for server, rows in phases_by_server.items():
        means = {name: median(row.get(name, 0.0) for row in rows) for name in rows[-1]}
        shown = ", ".join(f"{name} {number(value, 2)}" for name, value in means.items() if value)
        if shown:
            lines.append(f"A round of {server}, mean ms (median over levels and repeats): {shown}.")
    return lines


def _charts(load: LoadResult, styles: dict[str, str]) -> list[Chart]:
    closed = [row for row in load.rows if row["max_concurrency"] is not None]
    axis, key = (
        ("requests in flight", "max_concurrency") if closed else ("requests per second", "request_rate")
    )
    rows = closed or [row for row in load.rows if row["request_rate"] is not None]
    levels = sorted({float(row[key]) for row in rows if row[key] != float("inf")})
    if len(levels) < 2:
        return []
    charts = []
    for field, (title, note, unit) in _CHARTS.items():
        series = [
            Series(server, style, _points([row for row in rows if row["backend"] == server], key, field))
            for server, style in styles.items()
        ]
        axes = Axes(axis, unit, x_scale="log2", x_values=levels)
        charts.append(Chart(title, note, line_chart(series, axes, description=f"{unit} against {axis}")))
    return [chart for chart in charts if chart.svg]


def _points(rows: Sequence[dict[str, Any]], key: str, field: str) -> list[tuple[float, float]]:
    by_level: dict[float, list[float]] = {}
    for row in rows:
        if row[field] is not None and row[key] != float("inf"):
            by_level.setdefault(float(row[key]), []).append(row[field])
    return [(level, median(values)) for level, values in sorted(by_level.items())]


def _failures(load: LoadResult) -> list[str]:
    """Failed requests, including those of a single server, which has no ratios to reject."""
    lines = []
    for level, server, rows in _blocks(load):
        if failed := sum(row["failed"] for row in rows):
            errors = sorted({error for row in rows for error in row.get("errors", ())})
            sent = failed + sum(row["completed"] for row in rows)
            lines.append(f"{level}, {server}: {failed} of {sent} requests failed: {'; '.join(errors[:2])}")
    return lines


def _remarks(load: LoadResult) -> list[str]:
    return [
        f"{Level(c.concurrency, c.request_rate)}, {c.server}: {remark}"
        for c in load.comparisons
        if (remark := f"rejected, {c.rejected}" if c.rejected else c.remark)
    ]


def _blocks(load: LoadResult) -> Iterator[tuple[Level, str, list[dict[str, Any]]]]:
    """Each level's rows by server, in table order."""
    for level in dict.fromkeys(level_of(row) for row in load.rows):
        for server in load.servers:
            rows = [row for row in load.rows if row["backend"] == server and level_of(row) == level]
            if rows:
                yield level, server, rows


def _table(load: LoadResult) -> Table:
    comparisons = {(c.server, c.concurrency, c.request_rate): c for c in load.comparisons}
    more = {field: name for field, name in _MORE_COLUMNS.items() if any(field in row for row in load.rows)}
    lines = [
        _line(server, level, rows, comparisons.get((server, *level)), more)
        for level, server, rows in _blocks(load)
    ]
    return Table((*_COLUMNS, *more.values()), lines)


def _line(
    server: str,
    level: Level,
    rows: Sequence[dict[str, Any]],
    c: Comparison | None,
    more: Iterable[str],
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
    return [str(level), server, *figures, *(number(middle(field), 2) for field in more)]
