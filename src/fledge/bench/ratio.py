"""One quantity over another, measured within one run: a line of the table that `fledge bench ratios` prints."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pydantic import BaseModel

from fledge.base.storage import write_json
from fledge.bench.report.formats import Table
from fledge.bench.report.gains import Gains, by_head
from fledge.bench.results import Machine
from fledge.bench.statistics import Interval, compare_paired

_COLUMNS = ("", "base", "other", "ratio", "")


class Ratio(BaseModel):
    """One line of the table: `other` over `base`, medians in `unit`, and their ratio with its 95 % interval."""

    what: str
    base: float
    other: float
    unit: str
    ratio: Interval | None = None  # None: shares that stand for themselves
    note: str = ""
    head: str | None = None  # of greedy throughput over plain decode's, with
    level: int | None = None  # so many requests at once: a point of the chart

    @property
    def cells(self) -> list[str]:
        """The line as it is shown."""
        found = ""
        if self.ratio is not None:
            found = f"{self.ratio.value:.3f}"
            if self.ratio.count > 1:
                found += f" ({self.ratio.low:.3f} to {self.ratio.high:.3f})"
        figures = [f"{value:.4g} {self.unit}" for value in (self.base, self.other)]
        return [self.what, *figures, found, self.note]


class Ratios(BaseModel):
    """All lines, and what they were measured on."""

    target: str
    command: str = ""
    date: str
    machine: Machine
    versions: dict[str, str]
    lines: list[Ratio]

    @property
    def table(self) -> Table:
        """As it is printed."""
        return Table(_COLUMNS, [line.cells for line in self.lines])

    @property
    def gains(self) -> Gains:
        """The chart's points: what the part levels measured."""
        return by_head((line.head, line.level, line.ratio) for line in self.lines)

    def save(self, url: str) -> None:
        """Write it as JSON."""
        write_json(url, self.model_dump())


def paired(what: str, base: Sequence[float], other: Sequence[float], unit: str, note: str = "") -> Ratio:
    """Measured in blocks, in each of which both had their turn."""
    return Ratio(
        what=what,
        base=median(base),
        other=median(other),
        unit=unit,
        ratio=compare_paired(base, other).ratio,
        note=note,
    )


def single(what: str, base: float, other: float, unit: str) -> Ratio:
    """A ratio of two medians, which has no interval."""
    ratio = other / base
    return Ratio(what=what, base=base, other=other, unit=unit, ratio=Interval(ratio, ratio, ratio, 1))
