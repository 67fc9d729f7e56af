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
    from fledge.bench.options import BenchOptions as BenchOptions
    from fledge.bench.results import RELEASED as RELEASED
    from fledge.bench.results import TRAINED as TRAINED
    from fledge.bench.results import BenchResult as BenchResult
    from fledge.bench.run import estimate_seconds as estimate_seconds
    from fledge.bench.run import refuse_impossible as refuse_impossible
    from fledge.bench.run import run_bench as run_bench
    from fledge.bench.summary import Summary as Summary
    from fledge.bench.summary import summarise as summarise
else:
    __getattr__ = on_first_use(__name__)
