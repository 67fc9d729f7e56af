"""`report.html`: one self-contained page. No script, no network, no fonts of its own; light and dark.

    facts.py    what is known besides a benchmark, read from a run's folders
    page.py     all blocks of the page             speed.py    blocks about speed, sameness, load and cost
    charts.py   SVG                                rounds.py   blocks about rounds: phases, limits, trees
    figures.py  charts of a benchmark's rows       story.py    blocks about data, training, stages, samples
    served.py   the block about servers            render.py   fills templates/, the pages' HTML and CSS
    formats.py  how figures, tables and bars look  exports.py  the report as Markdown, its charts as PNG
    compare.py  two runs side by side              gains.py    the chart of throughput over plain decode

The template only lays out; every figure, and every sentence that depends on one, is worked out in Python.
"""

from __future__ import annotations

from fledge.base.storage import write_atomic
from fledge.bench.report.facts import DataFacts, ReportFacts, TrainingFacts, data_facts, training_facts
from fledge.bench.report.page import Page
from fledge.bench.report.render import render

__all__ = [
    "DataFacts",
    "ReportFacts",
    "TrainingFacts",
    "data_facts",
    "render_report",
    "training_facts",
    "write_report",
]


def write_report(url: str, facts: ReportFacts) -> None:
    """Render the report and write it whole."""
    write_atomic(url, render_report(facts).encode())


def render_report(facts: ReportFacts) -> str:
    """The page as text. Parts without facts are left out."""
    return render("report.html", page=Page(facts))
