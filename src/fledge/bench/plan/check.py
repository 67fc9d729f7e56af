"""The simulator against what was measured on this machine.

    by forwards   tau over the mean round, from single forwards that the same benchmark timed: does the round's equation
                  add up to the speed-up of whole answers? It leaves out the host and other contexts.
    by shape      the same from config.json and three numbers of the machine, the bytes per second of a plain step, the
                  FLOP/s of the largest verify and a draft step's fixed cost: is the roofline good enough to plan with?

Tau and the trees used come from the benchmark in both; tau is the median over prompts, as the measured speed-up is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import median

from fledge.bench.concurrency import read_shape_name
from fledge.bench.plan.forward import Device, forward_seconds, head_seconds, round_seconds
from fledge.bench.plan.shape import HeadShape, ModelShape
from fledge.bench.report.formats import number, percent, times
from fledge.bench.results import BenchResult, Costs
from fledge.bench.summary import workload_summary
from fledge.errors import DataError

CHECK_COLUMNS = ("head", "tau", "measured", "by forwards", "error", "by shape", "error")


def check_rows(bench: BenchResult, model: ModelShape, draft_vocab: int) -> list[list[str]]:
    """A line per head."""
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
    return rows


def predict_from_shape(bench: BenchResult, head: str, model: ModelShape, draft_vocab: int) -> float:
    """tau times a plain step over the mean round, all by the roofline."""
    tau, costs, shapes = _known(bench, head)
    small = HeadShape.of(model, draft_vocab)
    device = calibrated(costs, model, small)
    spent = sum(
        rounds * round_seconds(model, small, device, 1, read_shape_name(name), costs.context)
        for name, rounds in shapes.items()
    )
    plain = forward_seconds(model, device, 1, 1, costs.context)
    return tau * plain * sum(shapes.values()) / spent


def calibrated(costs: Costs, model: ModelShape, head: HeadShape) -> Device:
    """What this machine reaches in bf16: reading in a plain step, computing in the largest verify, and what a draft
    step takes beyond reading its weights."""
    rows, largest_ms = max(costs.verify_ms.items())
    ideal = Device(bandwidth=1.0, flops=1.0, weight_bytes=2.0, overhead=0.0)
    read = forward_seconds(model, replace(ideal, flops=math.inf), 1, 1, costs.context)
    compute = forward_seconds(model, replace(ideal, bandwidth=math.inf), 1, rows, costs.context)
    reached = replace(ideal, bandwidth=read / (costs.plain_step_ms / 1e3), flops=compute / (largest_ms / 1e3))
    draft = head_seconds(head, reached, costs.draft_rows or 1, features=False)
    return replace(reached, head_overhead=max(0.0, (costs.draft_step_ms or 0.0) / 1e3 - draft))


def predict_from_costs(bench: BenchResult, head: str) -> float:
    """tau over the mean round, in plain steps."""
    tau, costs, shapes = _known(bench, head)
    spent = sum(rounds * round_cost(costs, shape) for shape, rounds in shapes.items())
    return tau * sum(shapes.values()) / spent


def _known(bench: BenchResult, head: str) -> tuple[float, Costs, Mapping[str, int]]:
    costs, shapes = bench.costs, bench.shapes.get(head, {})
    taus = [row.tau for row in bench.rows(head) if row.speedup is not None and row.rejected is None]
    if costs is None or costs.draft_step is None or not costs.verify_ms or not taus or not shapes:
        raise DataError(
            "this run holds no costs or tree shapes to predict from; run `fledge bench` with bench.cost_repeats above 0"
        )
    return median(taus), costs, shapes


def round_cost(costs: Costs, shape: str) -> float:
    """A round of one request in plain steps; draft steps and extend as they were measured."""
    tree = read_shape_name(shape)
    if not tree.depth:
        return 1.0  # plain decode
    draft, extend = costs.draft_step or 0.0, costs.extend or 0.0
    return (tree.depth - 1) * draft + verify_cost(costs, tree.nodes) + extend


def verify_cost(costs: Costs, rows: int) -> float:
    """Between the measured sizes, linear."""
    points = sorted({1: 1.0, **costs.verify}.items())
    for (low, before), (high, after) in pairwise(points):
        if rows <= high:
            return before + (after - before) * (rows - low) / (high - low)
    return points[-1][1] * rows / points[-1][0]
