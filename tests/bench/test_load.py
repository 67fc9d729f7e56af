"""The load generator against a server whose latencies are known."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fledge.base.errors import DataError, ServerError
from fledge.bench.load import LoadOptions, LoadResult
from fledge.bench.load.client import RequestRecord
from fledge.bench.load.counters import between, parse_metrics
from fledge.bench.load.drive import repeated
from fledge.bench.load.metrics import level_figures
from fledge.bench.load.results import Comparison, compare_level
from fledge.bench.load.run import run_load
from fledge.bench.load.servers import parse_servers
from fledge.bench.report.served import served_view
from fledge.bench.workloads import Prompt, Workload
from tests.bench.fake_server import fake

PROMPTS = tuple(Prompt(f"q{n}", "chat", (f"Question {n}?",)) for n in range(5))
WORKLOAD = Workload("questions", PROMPTS)
MULTI_TURN = Workload("talk", (Prompt("t1", "chat", ("Hi.", "And then?", "Why?")),))


@contextmanager
def fakes(**servers: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Fake servers by name, each with its options; gives their addresses."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(fake(*options)) for name, options in servers.items()}


def record(
    arrivals: list[float], tokens: int, *, sent: float = 0.0, told: list[int] | None = None
) -> RequestRecord:
    return RequestRecord(
        "q",
        0,
        sent,
        arrivals=arrivals,
        arrival_tokens=told or [],
        output_tokens=tokens,
        counted=True,
    )


def figures(records: list[RequestRecord], seconds: float = 2.0) -> dict:
    return level_figures(records, seconds, None)


def test_latencies_of_one_request_follow_from_its_arrivals() -> None:
    one = record([0.5, 0.6, 0.7, 1.0], 4, sent=0.1)
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


def test_a_failed_request_is_counted_and_told() -> None:
    row = figures([record([0.1, 0.2], 2), RequestRecord("q", 0, 0.0, error="HTTP 503: busy")])
    assert (row["completed"], row["failed"], row["errors"]) == (1, 1, ["HTTP 503: busy"])


def test_prompts_start_over_at_their_end() -> None:
    ids = [prompt.question_id for prompt in repeated(PROMPTS, 7)]
    assert ids == ["q0", "q1", "q2", "q3", "q4", "q0", "q1"]


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


def row(server: str, repeat: int, tpot: float, **changes: object) -> dict:
    base = {"backend": server, "max_concurrency": 4, "repeat": repeat, "failed": 0}
    base |= {"median_tpot_ms": tpot, "median_ttft_ms": 50.0, "output_throughput": 4000 / tpot}
    return base | {"total_output_tokens": 1000} | changes


def above_tau(tau: float) -> Comparison:
    """2.5 times the baseline's speed."""
    rows = [
        row(server, n, tpot, accept_length=tau)
        for server, tpot in (("plain", 10.0), ("eagle3", 4.0))
        for n in range(8)
    ]
    return compare_level(rows, "plain", "eagle3", 4, (5, 5))


def test_a_speedup_above_tau_is_remarked_as_not_the_heads_alone() -> None:
    found = above_tau(2.0)  # as with another engine for the baseline
    assert (found.speedup, found.rejected, found.significant) == (pytest.approx(2.5), None, True)
    assert "speed-up 2.50 exceeds tau 2.00" in (found.remark or "")
    assert above_tau(3.0).remark is None
    assert above_tau(1.0).remark is None  # neither drafts


def test_failures_and_unequal_work_are_rejected() -> None:
    plain = [row("plain", 0, 10.0)]
    failing = compare_level(
        [*plain, row("e", 0, 9.0, failed=2, errors=["HTTP 500"])], "plain", "e", 4, (0, 0)
    )
    assert failing.rejected == "2 requests failed: HTTP 500"
    short = compare_level([*plain, row("e", 0, 9.0, total_output_tokens=300)], "plain", "e", 4, (0, 0))
    assert "didn't do the same work" in (short.rejected or "")


def test_servers_are_named_or_refused() -> None:
    assert parse_servers(["plain=http://a:1/v1/", "http://b:2"]) == {
        "plain": "http://a:1",
        "server2": "http://b:2",
    }
    assert parse_servers(["http://a:1"]) == {"server": "http://a:1"}
    for bad, problem in (
        (["x=ftp://a"], "is not a server"),
        (["x=start:serve"], "start it, and write name=http://host:port"),
        ([], "no server"),
        (["a=http://x:1", "a=http://x:2"], "two servers are called a"),
    ):
        with pytest.raises(ServerError, match=problem):
            parse_servers(bad)


def test_the_tokens_of_each_chunk_are_asked_for_where_the_server_knows_how() -> None:
    options = LoadOptions(concurrency=(1,), requests=2, repeats=1, warmup=1, max_tokens=9)
    chunks = ("--first-chunk", "5", "--per-chunk", "4", "--itl-ms", "30")
    with fakes(known=chunks, refused=(*chunks, "--refuse-counts")) as servers:
        result = run_load(servers, WORKLOAD, options)
        told = run_load({"known": servers["known"]}, WORKLOAD, options.changed(token_counts=False))
    one, other = result.rows
    assert (one["failed"], other["failed"]) == (0, 0)
    assert (one["itl_basis"], other["itl_basis"]) == ("tokens", "chunks")
    # Five tokens at once and four 30 ms later, which is 30 / 4 ms a token and not 30 / 8.
    assert one["median_tpot_ms"] > 7.4
    assert any("for one token" in note for note in result.notes)
    assert told.rows[0]["itl_basis"] == "chunks"


def test_a_load_test_compares_servers_and_comes_back_from_disk(tmp_path: Path) -> None:
    # A level that is named twice is measured once.
    options = LoadOptions(concurrency=(1, 3, 1), requests=4, repeats=2, warmup=1, max_tokens=7)
    notes: list[str] = []
    with fakes(plain=(), eagle3=("--per-chunk", "3")) as servers:
        result = run_load(servers, WORKLOAD, options, progress=lambda done, total, note: notes.append(note))
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
    assert {len(line) for line in view.table.rows} == {len(view.table.columns)}
    assert len((tmp_path / "load.jsonl").read_text().splitlines()) == 8


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    kept: list[LoadResult] = []
    options = LoadOptions(concurrency=(1, 2), requests=2, repeats=1, token_counts=False)

    def interrupt(done: float, total: float, note: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with fakes(plain=(), eagle3=()) as servers, pytest.raises(KeyboardInterrupt):
        run_load(servers, WORKLOAD, options, progress=interrupt, ended_early=kept.append)
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
    options = LoadOptions(concurrency=(1,), requests=1, repeats=1, warmup=0)
    with fakes(one=()) as servers:
        result = run_load(servers, MULTI_TURN, options)
    assert result.rows[0]["completed"] == 3
    assert result.comparisons == []


def test_a_server_that_fails_or_is_not_there_is_told() -> None:
    options = LoadOptions(concurrency=(1,), requests=1, repeats=1)
    with fakes(bad=("--fail",)) as servers, pytest.raises(ServerError, match=r"HTTP 500: .*out of memory"):
        run_load(servers, WORKLOAD, options)
    with pytest.raises(ServerError, match="start it, or correct the address"):
        run_load({"gone": "http://127.0.0.1:9"}, WORKLOAD, options)


def test_a_server_without_usage_is_told_in_the_notes() -> None:
    options = LoadOptions(concurrency=(1,), requests=1, repeats=1)
    with fakes(bare=("--no-usage",)) as servers:
        result = run_load(servers, WORKLOAD, options)
    assert result.rows[0]["tokens_counted_by"] == "chunks"
    assert any("sent no usage" in note for note in result.notes)


def test_a_server_that_answers_nothing_is_not_blamed_for_its_counts() -> None:
    options = LoadOptions(concurrency=(1,), requests=1, repeats=1, warmup=0)
    with fakes(bad=("--fail",)) as servers:
        result = run_load(servers, WORKLOAD, options)
    assert (result.rows[0]["failed"], result.notes) == (1, [])


def test_unusable_options_are_refused() -> None:
    wrong = [{"concurrency": (0,)}, {"repeats": 0}, {"concurrency": ()}, {"requests": -1}]
    wrong += [{"warmup": -1}, {"temperature": -1.0}]
    for options in wrong:
        with pytest.raises(DataError):
            LoadOptions(**options)  # type: ignore[arg-type]
    assert LoadOptions().requests_at(16) == 32


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
        with fakes(known=("--ttft-ms", str(ttft), "--itl-ms", str(itl), "--tokens", str(tokens))) as servers:
            found = run_load(servers, WORKLOAD, options).rows[0]
        worst = {name: found[name] / value - 1 for name, value in expected.items()}
        if max(map(abs, worst.values())) <= 0.02:
            return
    pytest.fail(json.dumps(worst))
