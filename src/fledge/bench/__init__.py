"""Measures a target with and without its head, and writes the report. Read run.py and answers.py first.

run.py          `fledge bench` from end to end              options.py      what it measures, and how much
answers.py      prompts one at a time, in alternation       identity.py     does the output equal plain decode's?
concurrency.py  many requests in flight
workloads.py    the prompts                                 machine.py      processor, memory bandwidth, versions
results.py      the files it writes                         summary.py      summary.json
statistics.py   intervals and significance

load/           `fledge bench server`                      plan/           `fledge plan`
report/         report.html
"""

from typing import TYPE_CHECKING

from fledge.base.lazy import on_first_use

if TYPE_CHECKING:
    from fledge.bench.options import BenchOptions
    from fledge.bench.results import RELEASED, TRAINED, BenchResult
    from fledge.bench.run import estimate_seconds, refuse_impossible, run_bench
    from fledge.bench.summary import Summary, summarise
else:
    __getattr__ = on_first_use(__name__)

__all__ = [
    "RELEASED",
    "TRAINED",
    "BenchOptions",
    "BenchResult",
    "Summary",
    "estimate_seconds",
    "refuse_impossible",
    "run_bench",
    "summarise",
]
