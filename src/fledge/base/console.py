"""Console output while stages run: a bar with an ETA on a terminal, a line every half minute in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from types import TracebackType

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

LOG_INTERVAL_S = 30.0

# A log has no width; tables need about this much. Markup and emoji codes are off: :smile: stays text.
console = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 110)


class StageProgress:
    """One stage's progress; rooms call `update(done, total, note)` as often as they like."""

    def __init__(self, name: str, output: Console = console) -> None:
        self._name = name
        self._output = output
        self._started = time.monotonic()
        self._logged = self._started
        # (time, done) of the first update: what a resume skipped
        self._first: tuple[float, float] | None = None
        self._bar = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA {task.fields[eta]}  {task.fields[note]}"),
            console=output,
            transient=True,
            disable=not output.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None, note="", eta="--:--")

    def __enter__(self) -> StageProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    @property
    def seconds(self) -> float:
        """Seconds since the stage started."""
        return time.monotonic() - self._started

    def update(self, done: float, total: float, note: str) -> None:
        """Show that `done` of `total` units are ready; `note` is shown beside the bar (a rate, a loss)."""
        now = time.monotonic()
        first = self._first = self._first or (now, done)
        eta = _eta(first, (now, done), total)
        self._bar.update(self._task, completed=done, total=total, note=note, eta=eta)
        if not self._output.is_terminal and now - self._logged >= LOG_INTERVAL_S:
            self._logged = now
            share = f"{done / total:4.0%}" if total else f"{done:,.0f}"
            self._output.print(f"  {self._name:<9} {share}  {clock(self.seconds)} so far, ETA {eta}  {note}")


def _eta(first: tuple[float, float], last: tuple[float, float], total: float) -> str:
    """The ETA, from two pairs of time and progress."""
    (started, before), (now, done) = first, last
    if not total or done <= before or now - started < 1.0:
        return "--:--"
    return clock(max(0.0, total - done) * (now - started) / (done - before))


def say(*lines: str, dim: bool = False) -> None:
    """Print lines unchanged: brackets aren't markup, and long paths aren't wrapped."""
    for line in lines:
        console.print(line, markup=False, soft_wrap=True, style="dim" if dim else None)


def clock(seconds: float) -> str:
    """`75` -> `1:15`, `3700` -> `1:01:40`."""
    minutes, seconds_left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"


def plural(count: int, noun: str) -> str:
    """`1 prompt`, `2,000 prompts`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def human_bytes(count: float) -> str:
    """`269000000` -> `269 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:,.1f} {unit}"
    return f"{count:.0f} B"


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, text_columns: int = 1
) -> None:
    """Print a table whose first columns are text and the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < text_columns else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    natural = Measurement.get(console, console.options.update(width=1000), table).maximum
    if natural > console.width:
        _narrow(table, text_columns)
    console.print(table, markup=False)


def _narrow(table: Table, text_columns: int) -> None:
    """Drop rules, padding and one-line headers, so that text is wrapped rather than numbers."""
    table.box, table.padding, table.pad_edge = box.SIMPLE_HEAD, (0, 0), False
    figures = table.columns[text_columns:]
    needed = sum(1 + max((len(str(cell)) for cell in column.cells), default=0) for column in figures)
    for column in table.columns:
        column.header = str(column.header).replace(" ", "\n")
    for column in figures:
        column.no_wrap = needed + 12 * text_columns <= console.width
