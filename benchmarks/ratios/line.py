"""One quantity relative to another, measured within one run: a line of the table of `python -m benchmarks.ratios`."""

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
    ratio: Interval | None = None  # None: plain shares
    note: str = ""
    head: str | None = None  # the head of a point in the chart of throughput over plain,
    level: int | None = None  # and its number of concurrent requests

    @property
    def cells(self) -> list[str]:
        """The cells of the line."""
        shown = ""
        if self.ratio is not None:
            shown = f"{self.ratio.value:.3f}"
            if self.ratio.count > 1:
                shown += f" ({self.ratio.low:.3f} to {self.ratio.high:.3f})"
        figures = [f"{value:.4g} {self.unit}" for value in (self.base, self.other)]
        return [self.what, *figures, shown, self.note]


class Ratios(BaseModel):
    """All lines, and the setup they were measured on."""

    target: str
    command: str = ""
    date: str
    machine: Machine
    versions: dict[str, str]
    lines: list[Ratio]

    @property
    def table(self) -> Table:
        """The printed table."""
        return Table(_COLUMNS, [line.cells for line in self.lines])

    @property
    def gains(self) -> Gains:
        """The chart's points, from the part `levels`."""
        return by_head((line.head, line.level, line.ratio) for line in self.lines)

    def save(self, url: str) -> None:
        """Write it as JSON."""
        write_json(url, self.model_dump())


def paired(what: str, base: Sequence[float], other: Sequence[float], unit: str, note: str = "") -> Ratio:
    """A ratio measured in blocks that each contain both."""
    return Ratio(
        what=what,
        base=median(base),
        other=median(other),
        unit=unit,
        ratio=compare_paired(base, other).ratio,
        note=note,
    )


def single(what: str, base: float, other: float, unit: str) -> Ratio:
    """A ratio of two medians, without an interval."""
    ratio = other / base
    return Ratio(what=what, base=base, other=other, unit=unit, ratio=Interval(ratio, ratio, ratio, 1))
