"""The report's charts, computed from a benchmark's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fledge.bench.report.charts import Axes, Series, column_chart, line_chart
from fledge.bench.report.facts import Curve
from fledge.bench.report.formats import Table, number, percent
from fledge.bench.report.speed import Naming
from fledge.bench.results import Costs, LevelRow

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


def verify_chart(costs: Costs) -> str:
    """Verify cost by rows, relative to a plain step."""
    points = [(1.0, 1.0), *((float(rows), ratio) for rows, ratio in sorted(costs.verify.items()) if rows > 1)]
    axes = Axes("rows in one forward", "× a plain step", x_scale="log2", x_values=[x for x, _ in points])
    return line_chart(
        [Series("verify", "s-trained", points)], axes, description="Plain steps that a verify takes, by rows"
    )


def cost_table(costs: Costs) -> Table:
    """Every timed forward."""
    forwards = [("plain step", 1, costs.plain_step_ms, 1.0)]
    forwards += [("verify", rows, costs.verify_ms[rows], ratio) for rows, ratio in costs.verify.items()]
    if costs.draft_step is not None:
        forwards.append(("draft step", costs.draft_rows or 0, costs.draft_step_ms or 0.0, costs.draft_step))
    if costs.extend is not None:
        forwards.append(("draft-extend", costs.extend_rows or 0, costs.extend_ms or 0.0, costs.extend))
    cells = [[name, str(rows), number(ms, 2), number(ratio, 2)] for name, rows, ms, ratio in forwards]
    return Table(("forward", "rows", "ms", "× plain"), cells)


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
