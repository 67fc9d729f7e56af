"""Line and column charts as inline SVG, without scripts or own fonts, with colours from the page's CSS variables.

A chart is drawn 420 units wide and scales with its place on the page: slightly larger beside another one on a desktop,
slightly smaller on a phone. Classes `s-NAME` colour a series, so light and dark need only one drawing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Literal, NamedTuple

WIDTH, HEIGHT = 420.0, 236.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 12.0, 14.0, 36.0
_ASIDE = 5.0  # between the points of lines with intervals at one x value
_ROOM = 0.12  # of a chart's height, below its lowest point for the label
_RING = 6.5


class Series(NamedTuple):
    """One line or one set of columns. `style` is the CSS class that colours it."""

    label: str
    style: str
    points: Sequence[tuple[float, float]]
    intervals: Sequence[tuple[float, float]] = ()  # (low, high) of each point of a line; (): unknown


class Axes(NamedTuple):
    """Labels, formats and ticks. `x_values` fixes the ticks of the x axis."""

    x_label: str
    y_label: str
    x_scale: Literal["linear", "log2"] = "linear"
    x_values: Sequence[float] | None = None
    y_from: float | None = 0.0  # None: from just below the lowest value
    x_lines: Sequence[float] = ()  # vertical reference lines
    y_line: float | None = None  # a horizontal reference line
    mark_lowest: bool = False  # mark and label the lowest point of all
    y_format: Callable[[float], str] = lambda value: compact(value)
    y_tick: Callable[[float], str] | None = None  # None: as any value
    y_ticks: int = 5  # approximate number of ticks


class _Frame(NamedTuple):
    """Maps values to positions on the drawing."""

    x: Callable[[float], float]
    y: Callable[[float], float]
    x_ticks: list[float]
    y_ticks: list[float]


def line_chart(series: Sequence[Series], axes: Axes, *, markers: bool = True, description: str = "") -> str:
    """Lines over a numeric x axis; each marker has a tooltip. "" if there is nothing to draw."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    frame = _frame(_extent(drawn, axes), axes)
    parts = _axes(frame, axes)
    aside = _ASIDE if any(low < high for one in drawn for low, high in one.intervals) else 0.0
    placed: list[tuple[float, float, float]] = []  # y, its interval's low end, and its position
    for place, one in enumerate(drawn):
        lefts = [frame.x(x) + (place - (len(drawn) - 1) / 2) * aside for x, _ in one.points]
        ys = [y for _, y in one.points]
        ends = one.intervals or [(y, y) for y in ys]
        for left, (low, high) in zip(lefts, ends, strict=True):
            if low < high:
                line = f'x1="{left:.1f}" x2="{left:.1f}" y1="{frame.y(low):.1f}" y2="{frame.y(high):.1f}"'
                parts.append(f'<line class="whisker {one.style}" {line}/>')
        path = " ".join(f"{left:.1f},{frame.y(y):.1f}" for left, y in zip(lefts, ys, strict=True))
        parts.append(f'<polyline class="line {one.style}" points="{path}"/>')
        if markers:
            for left, (x, y) in zip(lefts, one.points, strict=True):
                tip = escape(f"{one.label}: {axes.y_format(y)} {axes.y_label} at {compact(x)}")
                at = f'cx="{left:.1f}" cy="{frame.y(y):.1f}"'
                parts.append(f'<circle class="dot {one.style}" {at} r="3.4"><title>{tip}</title></circle>')
        placed += [(y, low, left) for y, (low, _), left in zip(ys, ends, lefts, strict=True)]
    if axes.mark_lowest:
        parts += _mark(frame, axes, *min(placed))
    return _svg(parts, description)


def _mark(frame: _Frame, axes: Axes, y: float, low: float, left: float) -> list[str]:
    """A ring around the lowest point, and its value below, towards the middle."""
    side, aside = ("end", 8) if left > WIDTH / 2 else ("start", -8)
    below = max(frame.y(low), frame.y(y) + _RING) + 13
    ring = f'<circle class="ring" cx="{left:.1f}" cy="{frame.y(y):.1f}" r="{_RING}"/>'
    return [ring, _text(left + aside, below, f"lowest {axes.y_format(y)}", f"mark {side}")]


def column_chart(series: Sequence[Series], axes: Axes, *, description: str = "") -> str:
    """Columns side by side at integer x values, each with its value above. "" if there is nothing to draw."""
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    ticks = sorted({x for one in drawn for x, _ in one.points})
    top = max(y for one in drawn for _, y in one.points)
    slot = (WIDTH - _LEFT - _RIGHT) / len(ticks)
    frame = _frame([(x, y) for one in drawn for x, y in one.points] + [(ticks[0], top * 1.08)], axes)
    frame = frame._replace(x=lambda x: _LEFT + slot * (ticks.index(x) + 0.5), x_ticks=ticks)
    parts = _axes(frame, axes)
    width = min(26.0, slot * 0.78 / len(drawn))
    for place, one in enumerate(drawn):
        shift = (place - len(drawn) / 2) * width
        for x, y in one.points:
            left, upper = frame.x(x) + shift, frame.y(y)
            tip = escape(f"{one.label}, {axes.x_label} {compact(x)}: {axes.y_format(y)}")
            box = f'x="{left + 1:.1f}" y="{upper:.1f}" width="{width - 2:.1f}" height="{HEIGHT - _BOTTOM - upper:.1f}"'
            parts.append(f'<rect class="column {one.style}" {box} rx="2"><title>{tip}</title></rect>')
            if width >= 17:
                parts.append(_text(left + width / 2, upper - 4, axes.y_format(y), "value"))
    return _svg(parts, description)


def compact(value: float) -> str:
    """`1234` -> `1,234`, `0.25` -> `0.25`, `12.0` -> `12`: with as few digits as possible."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that span low..high, about `count` of them."""
    if high <= low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / max(count - 1, 1)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _extent(drawn: Sequence[Series], axes: Axes) -> list[tuple[float, float]]:
    """All points that must be visible: with intervals, the reference line, and room below for the mark."""
    points = [point for one in drawn for point in one.points]
    x = points[0][0]
    points += [(x, end) for one in drawn for ends in one.intervals for end in ends]
    points += [(x, axes.y_line)] if axes.y_line is not None else []
    if axes.mark_lowest:
        low, high = min(y for _, y in points), max(y for _, y in points)
        points.append((x, low - _ROOM * (high - low)))
    return points


def _frame(points: Sequence[tuple[float, float]], axes: Axes) -> _Frame:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    y_ticks = nice_ticks(min(ys) if axes.y_from is None else axes.y_from, max(ys), axes.y_ticks)
    logarithmic = axes.x_scale == "log2"
    x_ticks = list(axes.x_values or nice_ticks(min(xs), max(xs), 6))
    left, right = (min(xs), max(xs)) if axes.x_values else (min(min(xs), x_ticks[0]), max(xs))
    x_ticks = [tick for tick in x_ticks if left <= tick <= right]

    def place(value: float) -> float:
        return math.log2(value) if logarithmic else value

    pad = 14.0 if axes.x_values else 0.0  # keeps points at the edges clear of the axis
    span = (place(right) - place(left)) or 1.0
    wide = WIDTH - _LEFT - _RIGHT - 2 * pad
    high = HEIGHT - _TOP - _BOTTOM
    return _Frame(
        x=lambda value: _LEFT + pad + wide * (place(value) - place(left)) / span,
        y=lambda value: _TOP + high * (1 - (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])),
        x_ticks=x_ticks,
        y_ticks=y_ticks,
    )


def _axes(frame: _Frame, axes: Axes) -> list[str]:
    parts = []
    for tick in frame.y_ticks:
        y = frame.y(tick)
        style = "base" if tick == frame.y_ticks[0] else "grid"
        parts.append(
            f'<line class="{style}" x1="{_LEFT:.0f}" x2="{WIDTH - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
        parts.append(_text(_LEFT - 7, y + 4, (axes.y_tick or axes.y_format)(tick), "tick end"))
    if axes.y_line is not None:
        y = frame.y(axes.y_line)
        parts.append(
            f'<line class="across" x1="{_LEFT:.0f}" x2="{WIDTH - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        )
    for line in axes.x_lines:
        x = frame.x(line)
        ends = f'y1="{_TOP:.0f}" y2="{HEIGHT - _BOTTOM:.0f}"'
        parts.append(f'<line class="across" x1="{x:.1f}" x2="{x:.1f}" {ends}/>')
    for tick in frame.x_ticks:
        parts.append(_text(frame.x(tick), HEIGHT - _BOTTOM + 16, compact(tick), "tick"))
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 3, axes.x_label, "label"))
    return parts


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(parts: Sequence[str], description: str) -> str:
    label = f' role="img" aria-label="{escape(description)}"' if description else ""
    return f'<svg class="chart" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}"{label}>{"".join(parts)}</svg>'
