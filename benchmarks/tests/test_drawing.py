"""Charts as files of their own: with their colours, and a title."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from benchmarks.drawing import standalone
from fledge.bench.report.page import Page
from tests.bench.synthetic import bench_result, report_facts


def test_a_picture_carries_its_colours() -> None:
    drawing = standalone([Page(report_facts(bench_result())).tpot_chart] * 2)
    assert "var(" not in drawing
    light, dark = drawing.split("@media (prefers-color-scheme:dark)")
    assert ".s-trained.line,.s-trained.whisker{stroke:#2563c9}" in light
    assert dark.startswith("{.s-plain.line,.s-plain.whisker{stroke:#848d99}")
    ElementTree.fromstring(drawing)


def test_a_picture_says_by_itself_what_it_shows() -> None:
    title = re.search(
        r'class="title"[^>]*>([^<]+)<', standalone([Page(report_facts(bench_result())).ttft_chart])
    )
    assert title
    assert "ms" in title[1]
