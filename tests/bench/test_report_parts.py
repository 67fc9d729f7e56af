"""The report's later blocks: servers over HTTP, load, rounds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from fledge.bench.report import ReportFacts, render_report
from fledge.bench.report.gains import gain_chart, lowest
from fledge.bench.report.page import Page
from fledge.bench.report.rounds import round_groups
from fledge.bench.report.served import served_view
from fledge.bench.report.speed import name_engines
from fledge.bench.results import RANDOM, BenchResult
from fledge.bench.statistics import Interval
from fledge.bench.summary import summarise
from tests.bench.synthetic import answer_row, bench_result, load_result, report_facts
from tests.bench.test_report import outline


def test_servers_over_http_have_the_articles_two_charts_and_a_verdict_per_level() -> None:
    load = load_result()
    page = render_report(ReportFacts("some/target", load=load))
    outline(page)
    assert page.count('class="chart"') == 3
    assert "eagle3: tokens 1.8" in page
    assert all(comparison.significant for comparison in load.comparisons)
    rejected = load.comparisons[0].model_copy(update={"rejected": "speed-up 3.00 exceeds tau 2.40"})
    broken = load.model_copy(update={"comparisons": [rejected, *load.comparisons[1:]]})
    assert "rejected, speed-up 3.00 exceeds tau 2.40" in render_report(ReportFacts("t", load=broken))
    remarked = load.comparisons[0].model_copy(update={"remark": "speed-up 3.00 exceeds tau 2.40"})
    told = load.model_copy(update={"comparisons": [remarked, *load.comparisons[1:]]})
    assert "1 in flight, eagle3: speed-up 3.00 exceeds" in render_report(ReportFacts("t", load=told))


def test_two_repeats_have_no_95_percent_interval_and_say_so() -> None:
    load = load_result()
    few = served_view(load.model_copy(update={"options": load.options | {"repeats": 2}}))
    enough = served_view(load.model_copy(update={"options": load.options | {"repeats": 8}}))
    assert few is not None
    assert enough is not None
    assert [note for note in few.notes if note not in enough.notes] == [
        "With --repeats 2 an interval is the range they fell in; one of 95 % takes at least 6."
    ]


def test_requests_that_failed_are_told_of_their_server_even_if_it_is_the_only_one() -> None:
    load = load_result()
    first = load.rows[0] | {"failed": 2, "completed": 6, "errors": ["HTTP 429: slow down"]}
    alone = load.model_copy(update={"servers": ["plain"], "rows": [first], "comparisons": []})
    view = served_view(alone)
    assert view is not None
    assert view.verdicts == ["1 in flight, plain: 2 of 8 requests failed: HTTP 429: slow down"]
    assert view.verdicts[0] in render_report(ReportFacts("t", load=alone))


GAINS = {
    "trained": {1: Interval(1.4, 1.3, 1.5, 3), 32: Interval(1.02, 1.0, 1.03, 3)},
    RANDOM: {1: Interval(1.01, 1.0, 1.02, 3), 32: Interval(0.994, 0.98, 1.001, 3)},
}


def test_the_lowest_point_of_all_heads_is_marked_with_its_value() -> None:
    drawing = gain_chart(GAINS, name_engines(["trained"]))
    ElementTree.fromstring(drawing)
    (at,) = re.findall(r'class="ring" (cx="[\d.]+" cy="[\d.]+")', drawing)
    assert (
        f'<circle class="dot s-random" {at} r="3.4"><title>random head: 0.99× plain decode at 32<' in drawing
    )
    assert re.findall(r'class="mark end"[^>]*>([^<]+)<', drawing) == ["lowest 0.99×"]
    assert drawing.count('class="across"') == 1
    assert drawing.count('class="whisker') == 4
    assert lowest(GAINS) == (RANDOM, 32, 0.994)
    assert gain_chart({}, name_engines([])) == ""


def test_everything_a_report_says_of_a_load_is_one_figure(tmp_path: Path) -> None:
    result = bench_result(("trained",))
    rows = [
        row.model_copy(update={"ratio": 1.234, "ratio_low": 1.2, "ratio_high": 1.26})
        if (row.engine, row.concurrency) == ("trained", 16)
        else row
        for row in result.levels
    ]
    result = result.model_copy(update={"levels": rows})
    page = render_report(report_facts(result))
    assert "this run&#39;s head: 1.23× plain decode at 16" in page.replace("&#x27;", "&#39;")
    assert "<td>1.23×</td><td>1.20–1.26</td>" in page
    assert "With bench.sweep_repeats 3 an interval is the range they fell in" in page
    result.save(str(tmp_path))
    assert BenchResult.load(str(tmp_path)).levels == rows
    assert summarise(result).concurrency == rows


def test_levels_of_before_ratios_load_and_are_no_part_of_the_chart(tmp_path: Path) -> None:
    result = bench_result(("trained",))
    result.save(str(tmp_path))
    places = tmp_path / "concurrency.jsonl"
    lines = [json.loads(line) for line in places.read_text().splitlines()]
    new = ("ratio", "ratio_low", "ratio_high", "repeats")
    old = [{name: value for name, value in line.items() if name not in new} for line in lines]
    places.write_text("".join(json.dumps(line) + "\n" for line in old))
    page = Page(report_facts(BenchResult.load(str(tmp_path))))
    assert page.gain_chart == ""
    assert page.tpot_chart
    outline(render_report(page.facts))


def test_a_rounds_equation_holds_where_workloads_differ_in_the_time_of_a_plain_step() -> None:
    rows = [
        answer_row(workload=name, tpot_plain_ms=plain, tpot_ms=plain / 2, phases_ms={"verify": 64 * plain})
        for name, plain in (("mixed", 10.0), ("long_context", 30.0))
    ]
    result = bench_result(("trained",)).model_copy(update={"answers": rows})
    naming = name_engines(["trained"])
    assert round_groups(result, naming)[1].note == "τ 2.00 × 20.0 ms ÷ 20.0 ms per round = 2.00×"
