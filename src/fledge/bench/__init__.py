"""Measuring a target with and without its head, and the report people read."""

from fledge.bench.options import BenchOptions
from fledge.bench.results import PLAIN, RELEASED, TRAINED, BenchResult
from fledge.bench.run import estimate_seconds, refuse_impossible, run_bench
from fledge.bench.summary import Summary, summarise
from fledge.bench.workloads import Prompt, Workload, own_workload, read_workload

__all__ = [
    "PLAIN",
    "RELEASED",
    "TRAINED",
    "BenchOptions",
    "BenchResult",
    "Prompt",
    "Summary",
    "Workload",
    "estimate_seconds",
    "own_workload",
    "read_workload",
    "refuse_impossible",
    "run_bench",
    "summarise",
]
