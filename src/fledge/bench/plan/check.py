"""The round's equation against what was measured: do single forwards add up to the speed-up of whole answers?

The costs of forwards and the tree shapes used come from the same benchmark. What the prediction misses is what the
equation leaves out: the host, contexts other than the measured one, and the mood of the machine.
"""

from __future__ import annotations

from itertools import pairwise

from fledge.bench.concurrency import read_shape_name
from fledge.bench.report.formats import number, percent, times
from fledge.bench.results import BenchResult, Costs
from fledge.bench.summary import workload_summary
from fledge.errors import DataError

CHECK_COLUMNS = ("head", "tau", "predicted", "measured", "error")


def check_rows(bench: BenchResult) -> list[list[str]]:
    """A line per head."""
    rows = []
    for head in bench.heads:
        predicted, measured = predict_from_costs(bench, head), workload_summary(bench.rows(head))
        error = predicted / measured.speedup - 1 if measured.speedup else None
        rows.append(
            [head, number(measured.tau, 2), times(predicted), times(measured.speedup), percent(error, 1)]
        )
    return rows


def predict_from_costs(bench: BenchResult, head: str) -> float:
    """tau over the mean round, in plain steps."""
    costs, shapes = bench.costs, bench.shapes.get(head, {})
    tau = workload_summary(bench.rows(head)).tau
    if costs is None or costs.draft_step is None or costs.extend is None or tau is None or not shapes:
        raise DataError(
            "this run holds no costs or tree shapes to predict from; run `fledge bench` with bench.cost_repeats above 0"
        )
    total = sum(shapes.values())
    return tau / (sum(rounds * round_cost(costs, shape) for shape, rounds in shapes.items()) / total)


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
