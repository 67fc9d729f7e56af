"""What a million output tokens cost, from the price of the machine and the measured throughput."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.bench.load.metrics import cost_per_million
from fledge.bench.report.formats import times
from fledge.bench.report.speed import Bar, BarGroup, Naming
from fledge.bench.results import PLAIN, BenchResult, LevelRow


def cost_groups(bench: BenchResult | None, naming: Naming) -> list[BarGroup]:
    """Cost by concurrency and engine; nothing without a price."""
    price = bench.options.price_per_hour if bench else None
    if bench is None or price is None or not bench.levels:
        return []
    costs = {id(row): cost_per_million(price, row.output_throughput) for row in bench.levels}
    top = max(costs.values())
    groups = []
    for level in dict.fromkeys(row.concurrency for row in bench.levels):
        rows = [row for row in bench.levels if row.concurrency == level]
        bars = [
            Bar(
                naming.labels[r.engine],
                naming.styles[r.engine],
                f"{costs[id(r)]:.2f}",
                100 * costs[id(r)] / top,
            )
            for r in rows
        ]
        groups.append(BarGroup(f"{level} in flight", _saving(rows), bars))
    return groups


def _saving(rows: Sequence[LevelRow]) -> str:
    plain = next((row.output_throughput for row in rows if row.engine == PLAIN), None)
    best = max((row.output_throughput for row in rows if row.engine != PLAIN), default=None)
    return f"{times(best / plain)} the tokens for the money" if plain and best else ""
