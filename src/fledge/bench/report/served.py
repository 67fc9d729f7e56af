"""The report's block about servers measured over HTTP: the article's two charts, and every comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from fledge.bench.load import LoadResult
from fledge.bench.load.results import Comparison, level_key
from fledge.bench.report.charts import Axes, Series, line_chart
from fledge.bench.report.formats import ABSENT, number, percent, times

Level = tuple[int | None, float | None]  # as `level_key` has it
_STYLES = ("s-plain", "s-trained", "s-released", "s-third", "s-fourth")
_CHARTS = {
    "median_tpot_ms": ("Time per output token", "median, ms; lower is better", "ms per output token"),
    "output_throughput": ("Output throughput", "tokens/s; higher is better", "tokens/s"),
    "median_ttft_ms": ("Time to first token", "median, ms; lower is better", "ms to the first token"),
}
_COLUMNS = {  # of fields that only some tests have
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
    """All of the block."""

    legend: list[tuple[str, str]]  # (style, server)
    intro: str
    charts: list[Chart]
    columns: list[str]
    rows: list[list[str]]
    verdicts: list[str]
    notes: list[str]


def served_view(load: LoadResult | None) -> ServedView | None:
    """Figures are medians over the repeats of a level."""
    if load is None:
        return None
    styles = dict(zip(load.servers, _STYLES * len(load.servers), strict=False))
    models = ", ".join(dict.fromkeys(load.models.values()))
    options = load.options
    intro = (
        f"{models} over HTTP, workload {load.workload}, up to {options.get('max_tokens')} new tokens, "
        f"{options.get('repeats')} repeats of each level in alternation."
    )
    return ServedView(
        legend=[(style, server) for server, style in styles.items()],
        intro=intro,
        charts=_charts(load, styles),
        columns=[
            "load",
            "server",
            "TPOT",
            "TTFT",
            "tokens/s",
            "speed-up (95 %)",
            "τ",
            "same answers",
            "noise",
            *(_COLUMNS[field] for field in _extra_fields(load)),
        ],
        rows=_table(load),
        verdicts=[*_failures(load), *_remarks(load)],
        notes=[*load.notes, *_rounds(load)],
    )


def _extra_fields(load: LoadResult) -> list[str]:
    """Fields that only some tests ask for."""
    return [field for field in _COLUMNS if any(field in row for row in load.rows)]


def _rounds(load: LoadResult) -> list[str]:
    """Where the time of a round goes, for servers that tell it."""
    found: dict[str, list[dict[str, float]]] = {}
    for row in load.rows:
        if phases := row.get("phase_ms_per_round"):
            found.setdefault(row["backend"], []).append(phases)
    lines = []
    for server, rows in found.items():
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
        charts.append(Chart(title, note, line_chart(series, axes, description=f"{title} against {axis}")))
    return [chart for chart in charts if chart.svg]


def _points(rows: Sequence[dict[str, Any]], key: str, field: str) -> list[tuple[float, float]]:
    by_level: dict[float, list[float]] = {}
    for row in rows:
        if row[field] is not None and row[key] != float("inf"):
            by_level.setdefault(float(row[key]), []).append(row[field])
    return [(level, median(values)) for level, values in sorted(by_level.items())]


def _failures(load: LoadResult) -> list[str]:
    """Whose requests failed: a ratio that is rejected for it doesn't tell, and a single server has no ratios."""
    lines = []
    for level, server, rows in _blocks(load):
        if failed := sum(row["failed"] for row in rows):
            errors = sorted({error for row in rows for error in row.get("errors", ())})
            sent = failed + sum(row["completed"] for row in rows)
            lines.append(
                f"{_load(level)}, {server}: {failed} of {sent} requests failed: {'; '.join(errors[:2])}"
            )
    return lines


def _remarks(load: LoadResult) -> list[str]:
    return [
        f"{_load((c.concurrency, c.request_rate))}, {c.server}: {told}"
        for c in load.comparisons
        if (told := f"rejected, {c.rejected}" if c.rejected else c.remark)
    ]


def _blocks(load: LoadResult) -> Iterator[tuple[Level, str, list[dict[str, Any]]]]:
    """Each level's rows by server, in the order of the table."""
    for level in dict.fromkeys(level_key(row) for row in load.rows):
        for server in load.servers:
            rows = [row for row in load.rows if row["backend"] == server and level_key(row) == level]
            if rows:
                yield level, server, rows


def _table(load: LoadResult) -> list[list[str]]:
    found = {(c.server, c.concurrency, c.request_rate): c for c in load.comparisons}
    extra = _extra_fields(load)
    return [
        _line(server, level, rows, found.get((server, *level)), extra)
        for level, server, rows in _blocks(load)
    ]


def _line(
    server: str,
    level: Level,
    rows: Sequence[dict[str, Any]],
    c: Comparison | None,
    extra: Sequence[str],
) -> list[str]:
    def middle(field: str) -> float | None:
        values = [row[field] for row in rows if row.get(field) is not None]
        return median(values) if values else None

    speedup = same = noise = ABSENT
    if c is not None:
        interval = f" ({number(c.speedup_low, 2)}–{number(c.speedup_high, 2)})" if c.speedup_low else ""
        speedup = "rejected" if c.rejected else times(c.speedup) + interval
        same = f"{c.identical} of {c.compared}" if c.compared else ABSENT
        noise = percent(c.noise, 1)
    figures = [number(middle("median_tpot_ms"), 2), number(middle("median_ttft_ms"), 0)]
    figures += [number(middle("output_throughput")), speedup, number(middle("accept_length"), 2), same, noise]
    return [_load(level), server, *figures, *(number(middle(field), 2) for field in extra)]


def _load(level: Level) -> str:
    concurrency, rate = level
    if concurrency is not None:
        return f"{concurrency} in flight"
    return f"{rate:g}/s" if rate is not None else "log"
