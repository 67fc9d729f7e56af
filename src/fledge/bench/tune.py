"""`fledge tune`: every tree shape at every concurrency on this machine, interleaved, and the Pareto front.

    tokens/s  ^        o 7-8-32
              |   o 4-4-16         a shape is on the front if no other is both faster for one
              |        x 2-4-8     request (TPOT) and faster for all (throughput)
              +--------------> TPOT

`tuned.json` contains the best shape per concurrency, where the planner starts:
`Engine(target, head, tuned=read_tuned(url))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

from pydantic.dataclasses import dataclass as checked

from fledge.base.storage import write_json
from fledge.bench.concurrency import run_level
from fledge.bench.machine import Machine, machine_facts, versions
from fledge.bench.options import AnswerTokens, Count, Levels
from fledge.bench.report.formats import Table, interval, number, times
from fledge.bench.results import LevelRow
from fledge.bench.statistics import compare_paired, interleaved, range_note
from fledge.bench.workloads import own_workload
from fledge.data.options import Progress, silent
from fledge.engine import PLAIN, Engine, TreeShape
from fledge.engine.shape_text import shape_text
from fledge.heads import Head
from fledge.target import Target

GRID = (
    TreeShape(1, 4, 4),
    TreeShape(2, 4, 8),
    TreeShape(3, 1, 4),
    TreeShape(3, 4, 8),
    TreeShape(4, 4, 16),
    TreeShape(6, 4, 16),
    TreeShape(5, 8, 32),
    TreeShape(7, 8, 32),
)
_WARM_TOKENS = 8
_MARGIN = 8  # spare tokens beyond prompt and answer


@checked(frozen=True)
class TuneOptions:
    """Options of the measurement."""

    shapes: tuple[TreeShape, ...] = GRID
    concurrency: Levels = (1, 4, 16)
    prompts: Count = 8
    max_tokens: AnswerTokens = 64
    repeats: Count = 3


@dataclass(frozen=True)
class ShapeRow:
    """One shape at one concurrency: medians over the repeats."""

    concurrency: int
    shape: TreeShape
    tpot_ms: float
    throughput: float
    tau: float
    gain: float  # throughput over plain decode's
    gain_low: float
    gain_high: float
    on_front: bool = False


@dataclass(frozen=True)
class Tuned:
    """All rows, and the best shape for each concurrency."""

    rows: list[ShapeRow]
    best: Mapping[int, TreeShape]
    options: TuneOptions
    machine: Machine

    @property
    def table(self) -> Table:
        """The printed table; shapes on the front are marked."""
        rows = []
        for row in self.rows:
            figures = [number(row.tpot_ms, 2), number(row.throughput), number(row.tau, 2), times(row.gain)]
            sure = [interval(row.gain_low, row.gain_high), "*" if row.on_front else ""]
            rows.append([str(row.concurrency), shape_text(row.shape), *figures, *sure])
        columns = ("in flight", "shape", "TPOT ms", "tokens/s", "tau", "over plain", "95 %", "front")
        return Table(columns, rows)

    @property
    def verdicts(self) -> list[str]:
        """The best shape of each concurrency in words."""
        best = [f"{level} in flight: {shape_text(shape)}" for level, shape in self.best.items()]
        return [*best, *range_note(self.options.repeats)]

    def save(self, url: str) -> None:
        """Write all results, for the engine and for scripts."""
        value: dict[str, Any] = {
            "version": 1,
            "best": {str(level): asdict(shape) for level, shape in self.best.items()},
            "rows": [asdict(row) for row in self.rows],
            "options": asdict(self.options),
            "machine": self.machine.model_dump(),
            "versions": versions(),
        }
        write_json(url, value)


def tune_shapes(target: Target, head: Head, options: TuneOptions, progress: Progress = silent) -> Tuned:
    """Measure plain decode and every shape at every concurrency, in alternation."""
    every = own_workload().limited(options.prompts).token_ids(target)
    context = max(map(len, every)) + options.max_tokens + _MARGIN
    shapes = [PLAIN, *(shape for shape in options.shapes if shape != PLAIN)]
    names = {shape_text(shape): shape for shape in shapes}
    rows: list[ShapeRow] = []
    turns = interleaved(options.concurrency, list(names), options.repeats)
    for level, here in groupby(turns, lambda turn: turn.level):
        engines = {
            # Without a prefix cache, since prompts are repeated here.
            name: Engine(target, head, max_batch=level, max_context=context, tree=shape, prefix_cache=False)
            for name, shape in names.items()
        }
        requests = [every[n % len(every)] for n in range(max(len(every), 2 * level))]
        for name, engine in engines.items():  # first calls are slow and would count against plain decode
            run_level(engine, name, requests[:level], level, _WARM_TOKENS)
        rows_by_name: dict[str, list[LevelRow]] = {name: [] for name in engines}
        for turn in here:
            row = run_level(engines[turn.name], turn.name, requests, level, options.max_tokens)
            rows_by_name[turn.name].append(row)
            note = f"{level} in flight, {turn.name}: {row.output_throughput:.0f} tokens/s"
            progress(turn.number, turn.total, note)
        rows += pareto([_shape_row(level, shape, rows_by_name) for shape in shapes])
    best = {level: best_shape(rows, level) for level in options.concurrency}
    return Tuned(rows, best, options, machine_facts(target.decoder.device))


def pareto(rows: Sequence[ShapeRow]) -> list[ShapeRow]:
    """Mark the rows that no other row beats in both TPOT and throughput."""

    def beaten(row: ShapeRow) -> bool:
        return any(
            other.tpot_ms <= row.tpot_ms
            and other.throughput >= row.throughput
            and (other.tpot_ms, other.throughput) != (row.tpot_ms, row.throughput)
            for other in rows
        )

    return [replace(row, on_front=not beaten(row)) for row in rows]


def best_shape(rows: Sequence[ShapeRow], level: int) -> TreeShape:
    """The shape with the highest throughput among those faster than plain decode by their whole interval."""
    sure = [row for row in rows if row.concurrency == level and row.gain_low > 1.0]
    return max(sure, key=lambda row: row.throughput).shape if sure else PLAIN


def _shape_row(level: int, shape: TreeShape, by_name: Mapping[str, Sequence[LevelRow]]) -> ShapeRow:
    shape_rows = by_name[shape_text(shape)]
    plain = [row.output_throughput for row in by_name[shape_text(PLAIN)]]
    gain = compare_paired(plain, [row.output_throughput for row in shape_rows]).ratio
    return ShapeRow(
        concurrency=level,
        shape=shape,
        tpot_ms=median(row.median_tpot_ms for row in shape_rows),
        throughput=median(row.output_throughput for row in shape_rows),
        tau=median(row.tau for row in shape_rows),
        gain=gain.value,
        gain_low=gain.low,
        gain_high=gain.high,
    )
