"""The load generator against a server whose latencies are known."""

from __future__ import annotations

import json
import math
import statistics
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from fledge.base.errors import DataError, ServerError
from fledge.bench.load import LoadOptions, LoadResult, Objective
from fledge.bench.load.client import RequestRecord
from fledge.bench.load.counters import between, parse_metrics
from fledge.bench.load.drive import Arrival, closed_loop, poisson, read_traffic
from fledge.bench.load.metrics import level_figures
from fledge.bench.load.results import Comparison, Level, compare_level, compare_levels
from fledge.bench.load.run import plan_levels, run_load
from fledge.bench.load.servers import ServerSpec, parse_servers
from fledge.bench.options import refused_by_name
from fledge.bench.report.served import served_view
from fledge.bench.workloads import Prompt, Workload
from tests.bench.synthetic import load_result

PROMPTS = tuple(Prompt(f"q{n}", "chat", (f"Question {n}?",)) for n in range(5))
WORKLOAD = Workload("questions", PROMPTS)
MULTI_TURN = Workload("talk", (Prompt("t1", "chat", ("Hi.", "And then?", "Why?")),))


def fake(name: str, *options: str) -> ServerSpec:
    """A fake server that the load test starts and stops."""
    return ServerSpec(
        name, command=(sys.executable, "-m", "tests.bench.fake_server", "--port", "{port}", *options)
    )


def record(
    arrivals: list[float], tokens: int, *, due: float = 0.0, told: list[int] | None = None
) -> RequestRecord:
    return RequestRecord(
        "q",
        0,
        due,
        sent=due,
        arrivals=arrivals,
        arrival_tokens=told or [],
        output_tokens=tokens,
        counted=True,
    )


def figures(records: list[RequestRecord], seconds: float = 2.0, slo: Objective | None = None) -> dict:
    return level_figures(records, seconds, None, slo)


def test_latencies_of_one_request_follow_from_its_arrivals() -> None:
    one = record([0.5, 0.6, 0.7, 1.0], 4, due=0.1)
    assert one.ttft == pytest.approx(0.4)
    assert one.e2e == pytest.approx(0.9)
    assert one.tpot == pytest.approx(0.5 / 3)
    assert one.itls == pytest.approx([0.1, 0.1, 0.3])


def test_chunks_of_several_tokens_share_their_gap_where_the_server_tells() -> None:
    one = record([0.1, 0.4, 0.6], 6, told=[1, 4, 6])
    assert one.itls == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.1])
    assert one.tpot == pytest.approx(0.1)
    untold = record([0.1, 0.4, 0.6], 6)
    assert untold.tpot == pytest.approx(0.1)  # usage counts the tokens
    assert untold.itls == pytest.approx([0.3, 0.2])


def test_a_level_has_the_names_other_tools_read() -> None:
    records = [record([0.1 + n / 100, 0.3 + n / 100], 2) for n in range(10)]
    row = figures(records)
    for kind in ("ttft", "tpot", "itl", "e2e_latency"):
        for figure in ("mean", "median", "std", "p90", "p95", "p99"):
            assert row[f"{figure}_{kind}_ms"] is not None
    assert row["median_ttft_ms"] == pytest.approx(statistics.median(100 + 10 * n for n in range(10)))
    assert row["p99_ttft_ms"] == pytest.approx(
        statistics.quantiles(range(100, 200, 10), n=100, method="inclusive")[98]
    )
    assert row["completed"] == 10
    assert row["output_throughput"] == 10.0
    assert row["request_throughput"] == 5.0
    assert row["concurrency"] == pytest.approx(sum(0.3 + n / 100 for n in range(10)) / 2)


def test_throughput_is_of_answered_requests_and_prompts_are_counted_apart() -> None:
    done = [record([0.1, 0.3], 2), record([0.2, 0.4], 4)]
    broken = record([0.1, 0.2], 30)
    broken.error = "HTTP 500"
    for one in (*done, broken):
        one.prompt_tokens = 10
    row = figures([*done, broken], seconds=4.0)
    totals = ("total_input_tokens", "total_output_tokens", "completed", "failed")
    assert [row[name] for name in totals] == [20, 6, 2, 1]
    rates = ("request_throughput", "input_throughput", "output_throughput", "total_throughput")
    assert [row[name] for name in rates] == [0.5, 5.0, 1.5, 6.5]
    assert row["total_token_throughput"] == 6.5


@pytest.mark.parametrize(
    ("objective", "just"), [("ttft", 250), ("tpot", 125), ("itl", 250), ("e2e", 750)], ids=str
)
def test_an_objective_is_met_by_who_just_keeps_it(objective: str, just: int) -> None:
    one = record([0.25, 0.25, 0.25, 0.5, 0.75], 5)  # its worst gaps are 0.25 s, and that is what 99 % keep
    assert figures([one], slo=Objective.parse(f"{objective}:{just}"))["request_goodput"] == 0.5
    assert figures([one], slo=Objective.parse(f"{objective}:{just - 2}"))["request_goodput"] == 0.0


def test_goodput_counts_requests_that_keep_every_objective() -> None:
    fast, slow_start, slow_tokens = record([0.1, 0.2], 2), record([0.9, 1.0], 2), record([0.1, 0.9], 2)
    failed = RequestRecord("q", 0, 0.0, error="HTTP 500")
    slo = Objective.parse("ttft:500, tpot:200")
    assert figures([fast, slow_start, slow_tokens, failed], slo=slo)["request_goodput"] == 0.5
    assert figures([fast], slo=Objective.parse("e2e:150"))["request_goodput"] == 0.0
    for wrong in ("ttft", "ttft:5,wait:3", "ttft:0"):
        with pytest.raises(DataError, match="ttft:500,tpot:50"):
            Objective.parse(wrong)


def test_a_failed_request_is_counted_and_told() -> None:
    row = figures([record([0.1, 0.2], 2), RequestRecord("q", 0, 0.0, error="HTTP 503: busy")])
    assert (row["completed"], row["failed"], row["errors"]) == (1, 1, ["HTTP 503: busy"])


def test_poisson_arrivals_have_the_rate_and_are_the_same_for_a_seed() -> None:
    arrivals = poisson(PROMPTS, 4000, 20.0, seed=1)
    gaps = [b.due - a.due for a, b in pairwise(arrivals)]  # type: ignore[operator]
    assert statistics.mean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 20, rel=0.1)  # exponential: as wide as its mean
    assert arrivals == poisson(PROMPTS, 4000, 20.0, seed=1)
    assert {arrival.due for arrival in poisson(PROMPTS, 5, float("inf"), seed=1)} == {0.0}
    assert [a.prompt.question_id for a in closed_loop(PROMPTS, 7)] == [
        "q0",
        "q1",
        "q2",
        "q3",
        "q4",
        "q0",
        "q1",
    ]


def test_traffic_is_replayed_in_the_order_it_came(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"timestamp": 12.5, "turns": ["b"]}\n\n{"timestamp": 10, "turns": ["a"]}\n')
    workload, arrivals = read_traffic(str(log), speed=5.0)
    assert workload.name == "log"
    assert [(a.prompt.turns, a.due) for a in arrivals] == [(("a",), 0.0), (("b",), 0.5)]
    log.write_text('\n{"turns": ["b\u2028"]}\n')
    with pytest.raises(DataError, match="line 2: `timestamp`"):
        read_traffic(str(log))
    log.write_text('{"timestamp": NaN, "turns": ["b"]}\n')
    with pytest.raises(DataError, match="line 1: `timestamp`"):
        read_traffic(str(log))
    log.write_text('{"timestamp": 0, "input_length": 655, "output_length": 52, "hash_ids": [46, 47]}\n')
    with pytest.raises(
        DataError, match=r'line 1: there are lengths but no text to send .*like \{"timestamp"'
    ):
        read_traffic(str(log))
    with pytest.raises(DataError, match="--speed is 0"):
        read_traffic(str(log), speed=0)
    with pytest.raises(DataError, match=r"^there is no prompt file no\.jsonl; correct its path$"):
        read_traffic("no.jsonl")


def test_counters_of_vllm_and_sglang_are_read() -> None:
    before = parse_metrics(
        'vllm:spec_decode_num_drafts_total{m="x"} 10\nvllm:spec_decode_num_accepted_tokens_total 5\n'
    )
    after = parse_metrics(
        'vllm:spec_decode_num_drafts_total{m="x"} 30.0\nvllm:spec_decode_num_accepted_tokens_total 35\n'
        "vllm:spec_decode_num_draft_tokens_total 80\n"
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 20\n'
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 10\n'
    )
    found = between(before, after)
    assert found is not None
    assert (found.tau, found.drafts, found.accepted) == (2.5, 20, 30)
    assert found.by_position == (1.0, 0.5)
    assert found.figures()["spec_decode_acceptance_rate"] == pytest.approx(37.5)
    assert between({}, parse_metrics("sglang:spec_accept_length 2.75\n")).tau == 2.75  # type: ignore[union-attr]
    assert between({}, parse_metrics("# HELP nothing\nup 1\n")) is None
    assert between({}, parse_metrics("sglang:spec_accept_length NaN\n")) is None


def test_a_server_of_ours_tells_where_its_rounds_time_goes() -> None:
    page = (
        'fledge:rounds_total{{model_name="m"}} {}\nsglang:spec_accept_length 2.0\n'
        'fledge:phase_seconds_total{{phase="draft"}} {}\nfledge:phase_seconds_total{{phase="verify"}} {}\n'
    )
    found = between(parse_metrics(page.format(10, 1.0, 2.0)), parse_metrics(page.format(110, 1.5, 4.0)))
    assert found is not None
    assert found.figures()["phase_ms_per_round"] == pytest.approx({"draft": 5.0, "verify": 20.0})


def test_tau_of_a_server_of_ours_counts_rounds_without_a_draft_too() -> None:
    page = (
        "fledge:request_rounds_total {}\nfledge:round_tokens_total {}\nvllm:spec_decode_num_drafts_total {}\n"
        "vllm:spec_decode_num_accepted_tokens_total {}\nvllm:spec_decode_num_draft_tokens_total {}\n"
        "sglang:spec_accept_length 2.8\n"
    )
    at_start, half, plain = (
        page.format(*c) for c in ((0, 0, 0, 0, 0), (100, 200, 50, 100, 400), (180, 280, 50, 100, 400))
    )
    some = between(parse_metrics(at_start), parse_metrics(half))
    assert some is not None
    assert (some.tau, some.figures()["spec_decode_acceptance_length"]) == (2.0, 3.0)
    none = between(parse_metrics(half), parse_metrics(plain))  # the planner drafted nothing in this level
    assert none is not None
    assert none.tau == 1.0
    assert "spec_decode_num_drafts" not in none.figures()


def test_a_price_makes_tokens_cost_something() -> None:
    row = level_figures([record([0.1, 0.3], 10)], 2.0, None, None, 3.6)
    assert row["cost_per_million_output_tokens"] == pytest.approx(200.0)  # 5 tokens a second, 18,000 an hour
    assert "cost_per_million_output_tokens" not in figures([record([0.1, 0.3], 10)])


def row(server: str, repeat: int, tpot: float, **changes: object) -> dict:
    base = {"backend": server, "max_concurrency": 4, "request_rate": None, "repeat": repeat, "failed": 0}
    base |= {"median_tpot_ms": tpot, "median_ttft_ms": 50.0, "output_throughput": 4000 / tpot}
    return base | {"total_output_tokens": 1000} | changes


def above_tau(level: Level, tau: float) -> Comparison:
    """2.5 times the baseline's speed."""
    rows = [
        row(server, n, tpot, max_concurrency=level.concurrency, request_rate=level.rate, accept_length=tau)
        for server, tpot in (("plain", 10.0), ("eagle3", 4.0))
        for n in range(8)
    ]
    return compare_level(rows, "plain", "eagle3", level, (5, 5))


def test_a_speedup_above_tau_is_remarked_as_not_the_heads_alone() -> None:
    found = above_tau(Level(4, None), 2.0)  # as with another engine for the baseline
    assert (found.speedup, found.rejected, found.significant) == (pytest.approx(2.5), None, True)
    assert "speed-up 2.50 exceeds tau 2.00" in (found.remark or "")
    assert above_tau(Level(4, None), 3.0).remark is None
    assert above_tau(Level(4, None), 1.0).remark is None  # neither drafts
    assert above_tau(Level(None, 4.0), 2.0).remark is None  # an open loop: the slower one has more in flight


def test_requests_sent_at_once_are_written_as_valid_json(tmp_path: Path) -> None:
    made = load_result()
    rows = [r | {"max_concurrency": None, "request_rate": math.inf} for r in made.rows]
    options = {"rates": (math.inf, 2.0)}
    made = made.model_copy(
        update={"rows": rows, "comparisons": compare_levels(rows, made.servers, {}), "options": options}
    )
    made.save(str(tmp_path))
    for path in tmp_path.iterdir():
        assert "Infinity" not in path.read_text()
    found = LoadResult.load(str(tmp_path))
    assert (found.rows, found.comparisons) == (made.rows, made.comparisons)
    assert found.options == {"rates": ["inf", 2.0]}


def test_failures_and_unequal_work_are_rejected() -> None:
    plain = [row("plain", 0, 10.0)]
    failing = compare_level(
        [*plain, row("e", 0, 9.0, failed=2, errors=["HTTP 500"])], "plain", "e", Level(4, None), (0, 0)
    )
    assert failing.rejected == "2 requests failed: HTTP 500"
    short = compare_level(
        [*plain, row("e", 0, 9.0, total_output_tokens=300)], "plain", "e", Level(4, None), (0, 0)
    )
    assert "didn't do the same work" in (short.rejected or "")


def test_a_level_that_is_named_twice_is_measured_once() -> None:
    levels = plan_levels(WORKLOAD, LoadOptions(concurrency=(2, 4, 2), requests=3))
    assert {str(level): len(sent) for level, sent in levels.items()} == {"2 in flight": 3, "4 in flight": 3}
    assert [str(level) for level in plan_levels(WORKLOAD, LoadOptions(rates=(0.5,)))] == ["0.5 requests/s"]


def test_servers_are_named_started_or_refused() -> None:
    specs = parse_servers(["plain=http://a:1/v1/", "e=start:fledge serve --port {port}"])
    assert specs[0] == ServerSpec("plain", "http://a:1")
    assert specs[1].command == ("fledge", "serve", "--port", "{port}")
    assert parse_servers(["http://a:1"])[0].name == "server"
    for bad, problem in (
        (["x=start:serve"], "{port}"),
        (["x=start:serve 'a b --port {port}"], "No closing quotation"),
        (["x=ftp://a"], "is not a server"),
        ([], "no server"),
    ):
        with pytest.raises(ServerError, match=problem):
            parse_servers(bad)
    with pytest.raises(ServerError, match="same name"):
        parse_servers(["a=http://x:1", "a=http://x:2"])


def test_the_tokens_of_each_chunk_are_asked_for_where_the_server_knows_how() -> None:
    options = LoadOptions(concurrency=(1,), requests=2, repeats=1, warmup=1, max_tokens=9)
    chunks = ("--first-chunk", "5", "--per-chunk", "4", "--itl-ms", "30")
    result = run_load(
        [fake("known", *chunks), fake("refused", *chunks, "--refuse-counts")], WORKLOAD, options
    )
    one, other = result.rows
    assert (one["failed"], other["failed"]) == (0, 0)
    assert (one["itl_basis"], other["itl_basis"]) == ("tokens", "chunks")
    # Five tokens at once and four 30 ms later, which is 30 / 4 ms a token and not 30 / 8.
    assert one["median_tpot_ms"] > 7.4
    assert any("for one token" in note for note in result.notes)
    told = run_load([fake("known", *chunks)], WORKLOAD, replace(options, token_counts=False))
    assert told.rows[0]["itl_basis"] == "chunks"


def test_a_load_test_starts_servers_compares_them_and_comes_back_from_disk(tmp_path: Path) -> None:
    options = LoadOptions(
        concurrency=(1, 3), requests=4, repeats=2, warmup=1, max_tokens=7, price_per_hour=1.0
    )
    notes: list[str] = []
    result = run_load(
        [fake("plain"), fake("eagle3", "--per-chunk", "3")],
        WORKLOAD,
        options,
        progress=lambda done, total, note: notes.append(note),
    )
    assert [(r["backend"], r["max_concurrency"], r["repeat"]) for r in result.rows] == [
        (name, level, repeat)
        for level in (1, 3)
        for repeat, order in enumerate((["plain", "eagle3"], ["eagle3", "plain"]))
        for name in order
    ]
    assert all(r["completed"] == 4 and r["total_output_tokens"] == 28 for r in result.rows)
    spec = next(r for r in result.rows if r["backend"] == "eagle3")
    assert spec["accept_length"] == 3.0
    assert spec["spec_decode_per_position_acceptance_rates"] == [1.0, 1.0]
    assert len(result.comparisons) == 2
    assert {c.compared for c in result.comparisons} == {4}
    assert {c.identical for c in result.comparisons} == {0}  # the fake says other words
    assert len(notes) == 8
    assert [note.split(":")[0] for note in result.notes] == ["Prompts come again at every level and repeat"]
    result.save(str(tmp_path))
    assert LoadResult.load(str(tmp_path)) == result
    view = served_view(result)
    assert view is not None
    assert view.table.columns[-1] == "cost per million"
    assert {len(line) for line in view.table.rows} == {len(view.table.columns)}
    assert len((tmp_path / "load.jsonl").read_text().splitlines()) == 8


def test_what_was_measured_before_an_error_is_kept(tmp_path: Path) -> None:
    once = tmp_path / "once"
    flaky = f"import os, sys; os.path.exists({str(once)!r}) and exit(3); open({str(once)!r}, 'w').close(); os.execv("
    flaky += "sys.executable, [sys.executable, '-m', 'tests.bench.fake_server', '--port', '{port}'])"
    servers = [fake("plain"), ServerSpec("eagle3", command=(sys.executable, "-c", flaky))]
    kept: list[LoadResult] = []
    options = LoadOptions(concurrency=(1, 2), requests=2, repeats=1, token_counts=False)
    with pytest.raises(ServerError, match="ended with code 3"):
        run_load(servers, WORKLOAD, replace(options, fresh=True), ended_early=kept.append)
    (found,) = kept
    assert [(r["backend"], r["max_concurrency"]) for r in found.rows] == [
        ("plain", 1),
        ("eagle3", 1),
        ("plain", 2),
    ]
    assert [c.concurrency for c in found.comparisons] == [1]
    assert found.notes[-1] != found.notes[0] == "Ended early: 3 of 4 blocks were measured."
    found.save(str(tmp_path / "load"))
    assert served_view(LoadResult.load(str(tmp_path / "load"))) is not None


def test_turns_of_a_conversation_follow_each_other() -> None:
    result = run_load(
        [fake("one")], MULTI_TURN, LoadOptions(concurrency=(1,), requests=1, repeats=1, warmup=0)
    )
    assert result.rows[0]["completed"] == 3
    assert result.comparisons == []


def test_a_server_that_fails_or_is_not_there_is_told() -> None:
    options = LoadOptions(concurrency=(1,), requests=1, repeats=1)
    with pytest.raises(ServerError, match=r"HTTP 500: .*out of memory"):
        run_load([fake("bad", "--fail")], WORKLOAD, options)
    with pytest.raises(ServerError, match="start it, or correct the address"):
        run_load([ServerSpec("gone", "http://127.0.0.1:9")], WORKLOAD, options)
    dead = ServerSpec("dead", command=(sys.executable, "-c", "print('no such head'); exit(3)", "{port}"))
    with pytest.raises(ServerError, match=r"ended with code 3 .*no such head"):
        run_load([dead], WORKLOAD, options)


def test_a_server_without_usage_is_told_in_the_notes() -> None:
    result = run_load(
        [fake("bare", "--no-usage")], WORKLOAD, LoadOptions(concurrency=(1,), requests=1, repeats=1)
    )
    assert result.rows[0]["tokens_counted_by"] == "chunks"
    assert any("sent no usage" in note for note in result.notes)


def test_a_server_that_answers_nothing_is_not_blamed_for_its_counts() -> None:
    options = LoadOptions(concurrency=(1,), requests=1, repeats=1, warmup=0)
    result = run_load([fake("bad", "--fail")], WORKLOAD, options)
    assert (result.rows[0]["failed"], result.notes) == (1, [])


def test_unusable_options_are_refused() -> None:
    wrong = [{"concurrency": (0,)}, {"repeats": 0}, {"rates": (0.0,)}, {"concurrency": ()}, {"requests": -1}]
    wrong += [{"rates": (float("nan"),)}, {"warmup": -1}, {"temperature": -1.0}, {"price_per_hour": 0.0}]
    for options in wrong:
        with pytest.raises(DataError), refused_by_name():
            LoadOptions(**options)  # type: ignore[arg-type]
    assert LoadOptions().requests_at(16) == 32
    assert Arrival(PROMPTS[0], None).due is None


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 8, 32])
def test_known_latencies_are_measured_within_two_percent(concurrency: int) -> None:
    """What the fake injects is what is found, at latencies as such a load brings them. Of three tries one must hold:
    other work on the machine delays both sides, and never makes them early."""
    ttft, itl, tokens = 250.0 + 25 * concurrency, 40.0, 21
    options = LoadOptions(
        concurrency=(concurrency,), requests=2 * concurrency, repeats=1, warmup=concurrency, max_tokens=tokens
    )
    expected = {
        "median_ttft_ms": ttft,
        "mean_tpot_ms": itl,
        "median_tpot_ms": itl,
        "mean_itl_ms": itl,
        "median_itl_ms": itl,
        "median_e2e_latency_ms": ttft + itl * (tokens - 1),
        "output_throughput": 1e3 * concurrency * tokens / (ttft + itl * (tokens - 1)),
    }
    worst = {}
    for _ in range(3):
        server = fake("known", "--ttft-ms", str(ttft), "--itl-ms", str(itl), "--tokens", str(tokens))
        found = run_load([server], WORKLOAD, options).rows[0]
        worst = {name: found[name] / value - 1 for name, value in expected.items()}
        if max(map(abs, worst.values())) <= 0.02:
            return
    pytest.fail(json.dumps(worst))
