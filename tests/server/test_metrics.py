"""What Prometheus scrapes is what happened: each latency from its own start to its own end, each counter once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

import fledge
from fledge.engine import Completion, EngineStats, PhaseSeconds, SamplingParams, StepResult, TreeShape
from fledge.engine.request import CompletionStats
from fledge.engine.stats import PlannedShape
from fledge.server import job as job_module
from fledge.server import metrics as metrics_module
from fledge.server.job import Job
from fledge.server.metrics import Metrics
from tests.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
IDLE = EngineStats(
    rounds=0, request_rounds=0, round_tokens=0, prompt_tokens=0, preemptions=0, hit_tokens=0, evictions=0, pages=9,
    pages_in_use=0, pages_cached=0, drafts=0, draft_tokens=0, accepted_by_depth=[], running=0, waiting=0, kv_usage=0.0,
    phases=PhaseSeconds(), shapes=[], proposers={}, accepted_by_source={},
)  # fmt: skip


class Clock:
    """A machine's time, in seconds, that only the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(metrics_module, "time", made)
    monkeypatch.setattr(job_module, "time", made)
    return made


class Engine:
    """As far as metrics look at it."""

    def __init__(self, stats: EngineStats = IDLE, waiting: int = 0) -> None:
        engine = cast(fledge.Engine, SimpleNamespace(stats=lambda: stats))
        self.metrics = Metrics(engine, "tiny", lambda: waiting)

    def page(self) -> dict[str, float]:
        """By sample's name, with the value of the label that tells samples of one name apart, if there is one."""
        found = {}
        for family in text_string_to_metric_families(self.metrics.text().decode()):
            for sample in family.samples:
                labels = [value for name, value in sample.labels.items() if name != "model_name"]
                found[" ".join([sample.name, *labels])] = sample.value
        return found


def new_job(prompt: int = 7, **params: int) -> Job:
    return Job(list(range(40, 40 + prompt)), SamplingParams(**params), tokenizer=TOKENIZER)  # type: ignore[arg-type]


def brought(count: int, completion: Completion | None = None) -> StepResult:
    """A step's result with so many tokens."""
    return StepResult(0, [40] * count, [0] * count, completion)


def completion(tokens: int, **stats: float) -> Completion:
    known = CompletionStats(
        tokens=tokens, rounds=4, tau=1.75, ttft_ms=250.0, tpot_ms=125.0, e2e_ms=1000.0, accepted_by_depth=[2, 1],
        drafted_rounds=3, token_origins=[0] * tokens, phases=PhaseSeconds(),
    )  # fmt: skip
    return Completion("", [40] * tokens, [], "length", replace(known, **stats))  # type: ignore[arg-type]


async def _streamed(clock: Clock) -> dict[str, float]:
    engine, job = Engine(), new_job()
    for seconds, count in ((0.5, 1), (0.4, 4), (0.0, 0), (0.3, 2), (0.2, 1)):
        clock.now += seconds
        engine.metrics.progress(job, brought(count))
    return engine.page()


def test_the_tokens_of_a_step_share_the_time_since_the_step_before(clock: Clock) -> None:
    page = asyncio.run(_streamed(clock))
    name = "fledge:inter_token_latency_seconds"
    assert page[f"{name}_count"] == 4 + 2 + 1
    assert page[f"{name}_sum"] == pytest.approx(0.4 + 0.3 + 0.2)
    # 0.1 s four times, 0.15 s twice, 0.2 s
    assert [page[f"{name}_bucket {limit}"] for limit in ("0.075", "0.5")] == [0, 7]
    assert page["fledge:time_to_first_token_seconds_count"] == 1
    assert page["fledge:time_to_first_token_seconds_sum"] == pytest.approx(0.5)
    assert page["fledge:requests_total"] == 1
    assert page["fledge:generation_tokens_total"] == 8


def test_all_names_of_a_quantity_carry_the_same_samples(clock: Clock) -> None:
    page = asyncio.run(_streamed(clock))
    for name in ("inter_token_latency_seconds", "time_to_first_token_seconds"):
        ours, vllm, sglang = (
            {
                sample.removeprefix(server): value
                for sample, value in page.items()
                if sample.startswith(server + name)
            }
            for server in ("fledge:", "vllm:", "sglang:")
        )
        assert vllm == sglang == {sample: ours[sample] for sample in ours if sample != f"{name}_created"}
    assert page["vllm:generation_tokens_total"] == page["sglang:generation_tokens_total"] == 8


def test_an_answers_latencies_begin_and_end_where_their_names_say(clock: Clock) -> None:
    async def answered() -> dict[str, float]:
        engine, job = Engine(), new_job(prompt=7, max_tokens=50)
        clock.now += 2.0
        job.entered = clock.now
        clock.now += 1.25
        engine.metrics.progress(job, brought(7, completion(7)))
        return engine.page()

    page = asyncio.run(answered())
    sums = {
        "e2e_request_latency_seconds": 3.25,  # from its arrival
        "request_queue_time_seconds": 2.0,  # until the engine took it
        "request_prefill_time_seconds": 0.25,  # the engine's own account from then on
        "request_decode_time_seconds": 0.75,
        "request_inference_time_seconds": 1.0,
        "time_per_output_token_seconds": 0.125,
        "request_params_max_tokens": 50,
        "request_prompt_tokens": 7,
        "request_generation_tokens": 7,
        "request_tau": 1.75,
    }
    assert {name: page[f"fledge:{name}_sum"] for name in sums} == pytest.approx(sums)
    assert {page[f"fledge:{name}_count"] for name in sums} == {1}
    assert page["fledge:prompt_tokens_total"] == 7
    assert page["fledge:request_success_total length"] == 1


def test_what_an_answer_does_not_have_is_not_observed(clock: Clock) -> None:
    async def answered() -> dict[str, float]:
        engine = Engine()
        engine.metrics.progress(new_job(), brought(1, completion(1, tpot_ms=0.0, drafted_rounds=0)))
        engine.metrics.progress(new_job(), brought(2, completion(2)))
        return engine.page()

    page = asyncio.run(answered())
    assert page["fledge:time_per_output_token_seconds_count"] == 1  # a single token has none
    assert page["fledge:request_tau_count"] == 1  # nor has an answer a tau that wasn't speculated on
    assert page["fledge:e2e_request_latency_seconds_count"] == 2


def test_how_long_answers_take_at_present_is_a_moving_average(clock: Clock) -> None:
    async def answered() -> float:
        metrics = Engine().metrics
        job = new_job()
        clock.now += 11.0
        metrics.progress(job, brought(2, completion(2)))
        return metrics.recent_e2e

    assert asyncio.run(answered()) == pytest.approx(0.9 * 1.0 + 0.1 * 11.0)


def test_gauges_are_the_engines_state_and_the_servers_queue() -> None:
    stats = replace(
        IDLE, running=3, waiting=2, kv_usage=0.25, hit_tokens=30, prompt_tokens=70, drafts=10, draft_tokens=40,
        accepted_by_depth=[6, 3, 1], rounds=8, request_rounds=16, round_tokens=40,
    )  # fmt: skip
    page = Engine(stats, waiting=5).page()
    gauges = {
        "vllm:num_requests_running": 3,
        "sglang:num_running_reqs": 3,
        "vllm:num_requests_waiting": 7,
        "sglang:num_queue_reqs": 7,
        "vllm:kv_cache_usage_perc": 0.25,
        "sglang:cache_hit_rate": 0.3,
        "sglang:spec_accept_rate": 0.25,
        "fledge:tau": 2.5,
        "sglang:spec_accept_length": 2.5,
    }
    assert {name: page[name] for name in gauges} == pytest.approx(gauges)
    idle = Engine().page()
    assert (idle["sglang:cache_hit_rate"], idle["sglang:spec_accept_rate"]) == (0, 0)


def test_counters_are_the_engines() -> None:
    shapes = [PlannedShape(TreeShape(3, 2, 8), rounds=5, requests=9, tokens=20, seconds=0.5)]
    stats = replace(
        IDLE, preemptions=1, hit_tokens=30, prompt_tokens=70, drafts=10, draft_tokens=40, accepted_by_depth=[6, 3, 1],
        rounds=8, request_rounds=16, round_tokens=41, phases=PhaseSeconds(verify=1.5, hidden=0.5), shapes=shapes,
        accepted_by_source={"head": 7, "lookup": 3},
    )  # fmt: skip
    page = Engine(stats).page()
    counters = {
        "vllm:num_preemptions": 1,
        "vllm:spec_decode_num_drafts": 10,
        "vllm:spec_decode_num_draft_tokens": 40,
        "vllm:spec_decode_num_accepted_tokens": 10,
        "vllm:prefix_cache_queries": 100,
        "vllm:prefix_cache_hits": 30,
        "sglang:cached_tokens": 30,
        "fledge:rounds": 8,
        "fledge:request_rounds": 16,
        "fledge:round_tokens": 41,
        "fledge:prefilled_tokens": 70,
    }
    assert {name: page[f"{name}_total"] for name in counters} == counters
    by_position = [page[f"vllm:spec_decode_num_accepted_tokens_per_pos_total {n}"] for n in range(3)]
    assert by_position == [6, 3, 1]
    by_source = [page[f"fledge:accepted_tokens_total {source}"] for source in ("head", "lookup")]
    assert by_source == [7, 3]
    assert (page["fledge:tree_rounds_total 3x2x8"], page["fledge:tree_seconds_total 3x2x8"]) == (5, 0.5)
    assert (page["fledge:phase_seconds_total verify"], page["fledge:phase_seconds_total hidden"]) == (
        1.5,
        0.5,
    )


def test_the_rate_is_that_of_the_last_seconds(clock: Clock) -> None:
    async def rates() -> list[float]:
        engine, job, found = Engine(), new_job(), []
        for count in (10, 30, 0, 0):
            engine.metrics.progress(job, brought(count))
            clock.now += 5.0
            found.append(engine.page()["sglang:gen_throughput"])
        return found

    assert asyncio.run(rates()) == [2.0, 6.0, 0.0, 0.0]
