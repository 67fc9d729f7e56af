"""The simulator compared with measurements on this machine, answer by answer.

    by forwards   an answer's tokens over its rounds, each the sum of single forwards timed in the same benchmark and
                  the host's time: does the round's equation add up to the speed-up of whole answers?
    by shape      the same from config.json and a few numbers of the machine: the bytes per second of a plain step, the
                  FLOP/s of the largest verify, a draft step's fixed cost, and the host's time per step and per kind of
                  round. Is the roofline good enough to plan with?

The tokens, the trees of each answer's rounds and the host's time (what its clock counted besides forwards) come from
the benchmark. The prediction is the median over the answers, like the measured speed-up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import numpy as np

from fledge.base.errors import DataError
from fledge.bench.plan.forward import Device, forward_seconds, head_seconds, round_seconds, seconds_left
from fledge.bench.plan.shape import HeadShape, ModelShape
from fledge.bench.report.formats import Table, number, percent, times
from fledge.bench.results import AnswerRow, BenchResult, Costs
from fledge.bench.shapes import read_shape_name
from fledge.bench.summary import workload_summary
from fledge.engine import PLAIN, TreeShape

_COLUMNS = ("head", "tau", "measured", "by forwards", "error", "by shape", "error")


def check_table(bench: BenchResult, model: ModelShape, draft_vocab: int) -> Table:
    """Measured and predicted speed-up of each head."""
    rows = []
    for head in bench.heads:
        measured = workload_summary(bench.rows(head))
        cells = [head, number(measured.tau, 2), times(measured.speedup)]
        for predicted in (
            predict_from_costs(bench, head),
            predict_from_shape(bench, head, model, draft_vocab),
        ):
            error = predicted / measured.speedup - 1 if measured.speedup else None
            cells += [times(predicted), percent(error, 1)]
        rows.append(cells)
    return Table(_COLUMNS, rows)


def predict_from_shape(bench: BenchResult, head: str, model: ModelShape, draft_vocab: int) -> float:
    """The median speed-up from the roofline, calibrated to this machine."""
    costs, host, rows = _measured(bench, head)
    small = HeadShape.of(model, draft_vocab)
    device = calibrated(costs, model, small)
    plain = round_seconds(model, small, replace(device, host=host.step / 1e3), 1, PLAIN, costs.context)

    def seconds(tree: TreeShape) -> float:
        return round_seconds(model, small, replace(device, host=host.of(tree) / 1e3), 1, tree, costs.context)

    return _median_speedup(rows, seconds, plain)


def predict_from_costs(bench: BenchResult, head: str) -> float:
    """The median speed-up from the timed single forwards."""
    costs, host, rows = _measured(bench, head)
    return _median_speedup(rows, lambda tree: round_ms(costs, tree, host), costs.plain_step_ms + host.step)


class HostTimes(NamedTuple):
    """Milliseconds of a step or round besides its forwards."""

    step: float  # of plain decode
    plain: float  # of a round without the head in an engine that speculates,
    drafted: float  # and of one with it,
    level: float  # and what each draft step adds

    def of(self, tree: TreeShape) -> float:
        """Of a round in an engine that speculates."""
        return self.drafted + (tree.depth - 1) * self.level if tree.depth else self.plain


def host_times(costs: Costs, rows: Sequence[AnswerRow]) -> HostTimes:
    """Time besides forwards on the engine's clock, per step of plain decode and per round.

    For a round this includes the time of drafting and extend besides their forwards, such as a head's catching up after
    plain rounds. Least squares over the answers separate the kinds of rounds.
    """
    counts = np.zeros((len(rows), 3))  # by answer: rounds without the head, rounds with it, draft steps
    besides = np.zeros(len(rows))
    for place, row in enumerate(rows):
        for name, count in row.shapes.items():
            tree = read_shape_name(name)
            counts[place] += (0, count, count * (tree.depth - 1)) if tree.depth else (count, 0, 0)
        _, rounds, steps = counts[place]
        forwards = {
            "draft": steps * (costs.draft_step_ms or 0.0),
            "extend": rounds * (costs.extend_ms or 0.0),
        }
        besides[place] = row.phases_ms.get("host", 0.0) + row.phases_ms.get("accept", 0.0)
        besides[place] += sum(max(row.phases_ms.get(name, 0.0) - ms, 0.0) for name, ms in forwards.items())
    solution = np.linalg.lstsq(counts, besides, rcond=None)[0]
    decoded = sum(max(row.tokens - 1, 1) for row in rows)
    plain = sum(row.phases_plain_ms.get("host", 0.0) for row in rows) / decoded
    return HostTimes(plain, *map(float, solution))


def calibrated(costs: Costs, model: ModelShape, head: HeadShape) -> Device:
    """This machine in bf16: the bandwidth of a plain step, the FLOP/s of the largest verify, and a draft step's time
    besides reading the head's weights. If a step is faster than reading them, they are stored in fewer bytes."""
    rows, largest_ms = max(costs.verify_ms.items())
    ideal = Device(bandwidth=1.0, flops=1.0, weight_bytes=2.0, overhead=0.0)
    read = forward_seconds(model, replace(ideal, flops=math.inf), 1, 1, costs.context)
    compute = forward_seconds(model, replace(ideal, bandwidth=math.inf), 1, rows, costs.context)
    step, largest = costs.plain_step_ms / 1e3, largest_ms / 1e3
    reached = replace(ideal, bandwidth=read / step, flops=compute / (seconds_left(largest, step) or largest))
    draft = head_seconds(head, reached, costs.draft_rows or 1, features=False)
    measured = (costs.draft_step_ms or 0.0) / 1e3
    if measured < draft:
        return replace(reached, head_weight_bytes=reached.head_weight_bytes * measured / draft)
    return replace(reached, head_overhead=measured - draft)


def round_ms(costs: Costs, tree: TreeShape, host: HostTimes) -> float:
    """A round of one request in an engine that speculates, from single forwards."""
    spent = verify_cost(costs, tree.nodes) * costs.plain_step_ms + host.of(tree)
    if not tree.depth:  # plain, or only lookup
        return spent
    draft, extend = costs.draft_step_ms or 0.0, costs.extend_ms or 0.0
    return spent + (tree.depth - 1) * draft + extend


def verify_cost(costs: Costs, rows: int) -> float:
    """Plain steps that a verify of `rows` takes, linear between the measured sizes."""
    points = sorted({1: 1.0, **costs.verify}.items())
    for (low, before), (high, after) in pairwise(points):
        if rows <= high:
            return before + (after - before) * (rows - low) / (high - low)
    return points[-1][1] * rows / points[-1][0]


def _median_speedup(rows: Sequence[AnswerRow], cost: Callable[[TreeShape], float], plain: float) -> float:
    """Median over the answers, whose rounds take `cost` and whose plain steps take `plain`."""
    return median(
        plain
        * row.round_tokens
        / sum(count * cost(read_shape_name(name)) for name, count in row.shapes.items())
        for row in rows
    )


def _measured(bench: BenchResult, head: str) -> tuple[Costs, HostTimes, list[AnswerRow]]:
    """Costs, host times and answers, with the costs scaled to the machine's speed during the answers."""
    costs = bench.costs
    rows = [
        row for row in bench.rows(head) if row.speedup is not None and row.rejected is None and row.shapes
    ]
    if costs is None or costs.draft_step is None or not costs.verify_ms or not rows:
        raise DataError(
            "this run has no costs or tree shapes to predict from; run `fledge bench` with bench.cost_repeats above 0"
        )
    host = host_times(costs, rows)
    step = median(row.tpot_plain_ms for row in rows) - host.step
    if step <= 0:
        raise DataError(
            "in this run the host took as long as plain decode's whole steps, so nothing can be predicted from it: the "
            "machine was too busy; measure again with `fledge bench`"
        )
    return costs.at_pace(step), host, rows
