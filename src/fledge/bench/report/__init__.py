"""`report.html`: one self-contained page without scripts, network access or own fonts; light and dark.

    facts.py    facts besides the benchmark, read from a run's folders
    page.py     all blocks of the page             speed.py    blocks about speed, sameness and load
    charts.py   SVG                                rounds.py   the block about rounds' phases
    figures.py  charts of a benchmark's rows       story.py    blocks about data, training, stages, samples
    served.py   the block about servers            render.py   fills templates/, the page's HTML and CSS
    formats.py  formatting of figures, tables and bars  gains.py  the chart of throughput over plain decode

The template only lays out; every figure, and every sentence that depends on one, is computed in Python.
"""

from __future__ import annotations

from fledge.base.storage import write_atomic
from fledge.bench.report.facts import DataFacts as DataFacts
from fledge.bench.report.facts import ReportFacts as ReportFacts
from fledge.bench.report.facts import TrainingFacts as TrainingFacts
from fledge.bench.report.facts import data_facts as data_facts
from fledge.bench.report.facts import training_facts as training_facts
from fledge.bench.report.page import Page
from fledge.bench.report.render import render


def write_report(url: str, facts: ReportFacts) -> None:
    """Render the report and write it atomically."""
    write_atomic(url, render_report(facts).encode())


def render_report(facts: ReportFacts) -> str:
    """The page's HTML. Parts without facts are left out."""
    return render("report.html", page=Page(facts))
