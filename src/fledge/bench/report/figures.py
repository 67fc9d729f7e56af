"""The report's charts, computed from a benchmark's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fledge.bench.report.charts import Axes, Series, column_chart, line_chart
from fledge.bench.report.facts import Curve
from fledge.bench.report.formats import percent
from fledge.bench.report.speed import Naming
from fledge.bench.results import LevelRow

_MAX_CURVE_POINTS = 240


def load_chart(levels: Sequence[LevelRow], naming: Naming, field: str) -> str:
    """A level's figure against concurrency, one line per engine."""
    titles = {
        "median_tpot_ms": "ms per output token",
        "median_ttft_ms": "ms to the first token",
    }
    engines = list(dict.fromkeys(row.engine for row in levels))
    series = [
        Series(
            naming.labels[engine],
            naming.styles[engine],
            [(row.concurrency, getattr(row, field)) for row in levels if row.engine == engine],
        )
        for engine in engines
    ]
    ticks = sorted({float(row.concurrency) for row in levels})
    axes = Axes("requests in flight", titles[field], x_scale="log2", x_values=ticks)
    return line_chart(series, axes, description=f"{titles[field]} against requests in flight")


def depth_chart(by_head: Mapping[str, Sequence[float]], naming: Naming) -> str:
    """Share of rounds whose accepted path reached each depth, by head."""
    series = [
        Series(naming.labels[head], naming.styles[head], list(enumerate(shares, start=1)))
        for head, shares in by_head.items()
    ]
    axes = Axes("depth in the draft tree", "of rounds", y_format=lambda value: percent(value))
    return column_chart(series, axes, description="Share of rounds that accept a draft of each depth")


def curve_chart(
    curve: Curve,
    label: str,
    *,
    smooth: bool = False,
    y_from: float | None = None,
    marks: Sequence[float] = (),
) -> str:
    """A training curve; `smooth` draws the raw values faintly behind their running mean, `marks` are dashed lines."""
    if len(curve) < 2:
        return ""
    points = thinned(curve)
    axes = Axes("training step", label, y_from=y_from, x_lines=marks)
    lines, markers = [Series(label, "s-trained", points)], len(points) <= 40
    if smooth:
        mean = Series(f"{label}, running mean", "s-trained", running_mean(points))
        lines, markers = [Series(label, "s-faint", points), mean], False
    return line_chart(lines, axes, markers=markers, description=f"{label} while training")


def thinned(points: Curve) -> Curve:
    """At most a few hundred points: means of adjacent ones."""
    size = -(-len(points) // _MAX_CURVE_POINTS)
    if size <= 1:
        return points
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def running_mean(points: Curve) -> Curve:
    """A running mean over about a twelfth of the curve."""
    reach = max(1, len(points) // 24)
    out = []
    for index, (x, _) in enumerate(points):
        near = points[max(0, index - reach) : index + reach + 1]
        out.append((x, sum(y for _, y in near) / len(near)))
    return out
