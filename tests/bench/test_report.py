"""The report: whole without a network, true to the data, and whole with parts missing."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.bench.report import ReportFacts, render_report, write_report
from fledge.bench.report.charts import Axes, Series, column_chart, line_chart, nice_ticks
from fledge.bench.report.facts import TrainingFacts
from fledge.bench.report.figures import running_mean, thinned
from fledge.bench.report.formats import clock, human_count, number, times
from fledge.bench.report.story import training_view
from fledge.bench.results import Piece
from fledge.bench.summary import summarise, workload_summary
from tests.bench.synthetic import bench_result, report_facts

_VOID = {"meta", "link", "br"}


class Outline(HTMLParser):
    """Open tags that are never closed, and every attribute that could load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "xlink:href")
        ]
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return render_report(report_facts(bench_result()))


def test_report_loads_nothing(page: str) -> None:
    found = outline(page)
    assert found.loads[0] == "data:,"
    assert all(
        re.fullmatch(r"(bench/)?\w+\.jsonl?", link) for link in found.loads[1:]
    )  # raw data beside the page
    assert "script" not in found.tags
    assert not re.search(r"https?://|url\(|@import|//cdn", page)


def test_report_holds_the_figures(page: str) -> None:
    result = bench_result()
    for head in result.heads:
        figures = workload_summary(result.rows(head, "mixed"))
        assert times(figures.speedup) in page
        assert number(figures.tau, 2) in page
    assert page.count('class="chart"') == 6  # throughput over plain, TPOT, TTFT, depth, loss, tau
    for text in ("412,350", "98.1%", "near-duplicate", "gsm8k", "Example Processor 9000", "fledge run demo"):
        assert text in page
    assert "exceeds tau" in page
    assert "rounding step 0.1250" in page
    assert "71% of what the bandwidth allows" in page
    assert "prefers-color-scheme: dark" in page
    assert "95 % interval" in page


def test_the_form_of_the_targets_weights_is_named() -> None:
    result = bench_result(("trained",))
    subject = result.subject.model_copy(update={"quantization": "Q4_1"})
    for named, shown in ((result.subject, "bfloat16"), (subject, "Q4_1 weights, otherwise bfloat16")):
        page = render_report(ReportFacts("t", result.model_copy(update={"subject": named})))
        lede, facts = page.split('class="lede"')[1].split("</p>")[0], page.split("<dt>target</dt>")[1][:200]
        assert shown in lede
        assert shown in facts
    assert subject == summarise(result.model_copy(update={"subject": subject})).target


def test_accepted_draft_tokens_are_coloured_by_depth() -> None:
    result = bench_result(("trained",))
    sample = result.samples[0].model_copy(
        update={
            "pieces": [Piece(text="one", depth=0), Piece(text=" two", depth=1), Piece(text=" x", depth=9)]
        }
    )
    page = render_report(ReportFacts("t", result.model_copy(update={"samples": [sample]})))
    assert '<span class="d0" title="from the target">one</span>' in page
    assert '<span class="d1" title="accepted draft, depth 1"> two</span>' in page
    assert '<span class="d6" title="accepted draft, depth 9"> x</span>' in page


def test_text_from_models_and_files_is_escaped() -> None:
    result = bench_result(("trained",))
    evil = "<script>alert(1)</script>"
    sample = result.samples[0].model_copy(update={"question": evil, "pieces": [Piece(text=evil, depth=1)]})
    rows = [row.model_copy(update={"workload": evil}) for row in result.answers]
    result = result.model_copy(update={"samples": [sample], "answers": rows})
    page = render_report(replace(report_facts(result), target=evil, notes=[evil]))
    assert "<script" not in page
    assert "script" not in outline(page).tags


def test_missing_parts_are_left_out() -> None:
    whole = bench_result(("trained",))
    bare = whole.model_copy(
        update={"levels": [], "samples": [], "plain": None, "bandwidth": None, "answers": []}
    )
    for bench in (None, bare, bench_result(("trained",), levels=False)):
        page = render_report(ReportFacts(target="some/target", bench=bench))
        outline(page)
        assert 'id="load"' not in page
        assert 'id="training"' not in page
        assert "target" in page
    only_training = render_report(report_facts(None))
    assert 'id="training"' in only_training
    assert 'id="workloads"' not in only_training


def test_report_says_so_when_nothing_is_gained_or_outputs_differ() -> None:
    result = bench_result(("trained",))
    slow = [row.model_copy(update={"speedup": 0.8, "rejected": None}) for row in result.answers]
    assert "No faster: 0.80×" in render_report(ReportFacts("t", result.model_copy(update={"answers": slow})))
    slow[-1] = slow[-1].model_copy(update={"outcome": "different"})
    page = render_report(ReportFacts("t", result.model_copy(update={"answers": slow})))
    assert "but outputs differ" in page
    assert "1 differ" in page


def test_report_is_written_whole(tmp_path: Path) -> None:
    url = tmp_path / "report.html"
    write_report(str(url), report_facts(bench_result()))
    assert url.read_text(encoding="utf-8").endswith("</html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


@given(
    st.floats(min_value=-1e6, max_value=1e6, allow_nan=False),
    st.floats(min_value=1e-3, max_value=1e6, allow_nan=False),
)
def test_ticks_span_the_values_and_are_few(low: float, size: float) -> None:
    ticks = nice_ticks(low, low + size)
    assert ticks[0] <= low + size * 1e-6
    assert ticks[-1] >= (low + size) - size * 1e-6
    assert 2 <= len(ticks) <= 8


@pytest.mark.parametrize("points", [[(1.0, 5.0)], [(1.0, 0.0), (2.0, 0.0)], [(1.0, 3.0), (16.0, 1e4)]])
def test_charts_are_well_formed_for_any_points(points: list[tuple[float, float]]) -> None:
    for drawing in (
        line_chart([Series("a <b>", "s-plain", points)], Axes("x", "y", "log2", [x for x, _ in points])),
        line_chart(
            [Series("a", "s-plain", points), Series("empty", "s-plain", [])], Axes("x", "y", y_from=None)
        ),
        column_chart([Series("a", "s-plain", points)], Axes("x & y", "y")),
    ):
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing
    assert line_chart([Series("a", "s-plain", [])], Axes("x", "y")) == ""


def test_curves_are_thinned_and_smoothed_without_losing_their_end() -> None:
    points = [(float(step), 1.0) for step in range(5000)]
    assert len(thinned(points)) <= 240
    assert thinned(points)[-1] == (4999.0, 1.0)
    assert running_mean(points[:10]) == points[:10]


def test_figures_are_written_as_people_write_them() -> None:
    assert [clock(2.25), clock(75), clock(3700), clock(42)] == ["2.2 s", "1 min 15 s", "1 h 01 min", "42 s"]
    assert [human_count(1234), human_count(1_234_567), human_count(7.06e10)] == ["1,234", "1.23 M", "70.6 B"]
    assert number(None) == "–"


def test_the_headline_is_one_number_and_that_of_the_runs_own_head() -> None:
    alone = "trained without lookup"
    result = bench_result(("trained", "released", alone), levels=False)
    page = render_report(report_facts(result))
    own = times(workload_summary(result.rows("trained", "mixed")).speedup)
    (headline,) = re.findall(r"<h1>(.*)</h1>", page)
    assert re.findall(r"[\d.]+×", headline) == [own]
    assert page.count('class="hero ') == 2  # without lookup is a line in the card of its head
    bare = workload_summary(result.rows(alone, "mixed"))
    assert bare.speedup_low is not None
    shown = f"{times(bare.speedup)} <span>the head alone.*?interval {number(bare.speedup_low, 2)} to"
    assert re.search(shown, page, re.DOTALL)
    assert page.count("the speed of plain decode, with prompt lookup") == 2
    without = result.model_copy(update={"options": result.options.model_copy(update={"lookup": 0})})
    assert ", with prompt lookup" not in render_report(report_facts(without))


def test_an_answer_that_differs_without_lookup_only_is_told_in_the_headline() -> None:
    result = bench_result(("trained", "trained without lookup"), levels=False)
    rows = [row.model_copy(update={"outcome": "identical"}) for row in result.answers]
    rows[-1] = rows[-1].model_copy(update={"outcome": "different"})
    assert rows[-1].head == "trained without lookup"
    page = render_report(ReportFacts("t", result.model_copy(update={"answers": rows})))
    assert "but outputs differ</h1>" in page


def test_the_curve_shows_which_weights_were_kept() -> None:
    tau = [(step, 2.0 - abs(step - 40) / 100) for step in range(0, 100, 10)]
    view = training_view(TrainingFacts(tau=tau, kept=(40, 2.0)))
    assert view is not None
    assert view.tau.count('class="across"') == 1
    assert "the head is as it was there" in view.note
    assert [(tile.figure, tile.caption) for tile in view.tiles] == [
        ("2.00", "τ of drafted chains at step 40, whose weights are the head, on held-out conversations")
    ]
