"""Throughput over plain decode by concurrent requests, a line per head: no point of this chart should be below 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fledge.bench.report.charts import Axes, Series, compact, line_chart
from fledge.bench.report.formats import times
from fledge.bench.report.speed import Naming
from fledge.bench.results import PLAIN, RANDOM, LevelRow
from fledge.bench.statistics import Interval

Gains = Mapping[str, Mapping[int, Interval]]  # by head and requests at once


def level_gains(levels: Sequence[LevelRow]) -> Gains:
    """The gains of a sweep."""
    return by_head((row.engine, row.concurrency, row.over_plain) for row in levels if row.engine != PLAIN)


def by_head(points: Iterable[tuple[str | None, int | None, Interval | None]]) -> Gains:
    """(head, requests, ratio) tuples in their order, grouped by head; incomplete ones are dropped."""
    gains: dict[str, dict[int, Interval]] = {}
    for head, level, gain in points:
        if head is not None and level is not None and gain is not None:
            gains.setdefault(head, {})[level] = gain
    return gains


def gain_chart(gains: Gains, naming: Naming, description: str = "throughput over plain decode") -> str:
    """The chart, its lowest point marked; "" if there is nothing to draw."""
    series = [
        Series(
            naming.labels[head],
            naming.styles[head],
            [(level, gain.value) for level, gain in points.items()],
            [(gain.low, gain.high) for gain in points.values()],
        )
        for head, points in gains.items()
    ]
    axes = Axes(
        "requests at once",
        "plain decode",
        x_scale="log2",
        x_values=sorted({float(level) for points in gains.values() for level in points}),
        y_from=None,
        y_line=1.0,
        mark_lowest=True,
        y_format=times,
        y_tick=compact,
        y_ticks=8,  # so that little space is empty below 1
    )
    return line_chart(series, axes, description=description)


def gain_note(gains: Gains, naming: Naming) -> str:
    """Note on what the chart should show, and its lowest point; "" without a chart."""
    if not gains:
        return ""
    head, level, ratio = lowest(gains)
    worst = " A random head has learnt nothing: the worst case." if RANDOM in gains else ""
    return (
        f"The planner may leave speculation out of any round, so no point should lie below 1×.{worst} "
        f"The lowest: {times(ratio)}, {naming.labels[head]} with {level} in flight."
    )


def lowest(gains: Gains) -> tuple[str, int, float]:
    """The head, level and ratio of the marked point."""
    every = ((gain.value, head, level) for head, points in gains.items() for level, gain in points.items())
    ratio, head, level = min(every)
    return head, level, ratio
