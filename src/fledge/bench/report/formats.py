"""Formatting of figures, tables and bars in the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

ABSENT = "–"


class Table(NamedTuple):
    """Formatted cells, for the page and Markdown."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Bar:
    """One bar of a list; `share` of the scale, 0 to 100."""

    label: str
    style: str
    text: str
    share: float


@dataclass(frozen=True)
class BarGroup:
    """Bars with a common name."""

    name: str
    note: str
    bars: list[Bar]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(_escaped, line)) + " |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def number(value: float | None, digits: int = 1) -> str:
    """`1234.56` -> `1,234.6`; an absent figure is a dash."""
    return ABSENT if value is None else f"{value:,.{digits}f}"


def times(value: float | None) -> str:
    """`1.624` -> `1.62×`."""
    return ABSENT if value is None else f"{value:.2f}×"


def interval(low: float | None, high: float | None) -> str:
    """`1.52–1.71`."""
    return f"{number(low, 2)}–{number(high, 2)}"


def percent(value: float | None, digits: int = 0) -> str:
    """`0.934` -> `93%`."""
    return ABSENT if value is None else f"{100 * value:.{digits}f}%"


def clock(seconds: float | None) -> str:
    """`75` -> `1 min 15 s`, `3700` -> `1 h 02 min`."""
    if seconds is None:
        return ABSENT
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {remainder:02d} s" if minutes else f"{remainder} s"


def human_count(count: float | None) -> str:
    """`1234` -> `1,234`, `1234567` -> `1.23 M`, `7.06e10` -> `70.6 B`."""
    if count is None:
        return ABSENT
    if count >= 1e9:
        return f"{count / 1e9:.3g} B"
    if count >= 1e6:
        return f"{count / 1e6:.3g} M"
    return f"{count:,.0f}"
