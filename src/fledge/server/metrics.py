"""Metrics for Prometheus: our own names, and those that dashboards for vLLM and SGLang expect.

Each quantity is recorded once, as `fledge:...`, and exported under all its names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fledge.engine import Engine, EngineStats, StepResult

if TYPE_CHECKING:
    from fledge.server.job import Job

_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
)  # fmt: skip
_TOKEN_SECONDS = (
    0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2.5,
)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_TAUS = (1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 5, 6, 8)
_RECENT = 0.1  # weight of the newest answer in moving averages
_RATE_S = 5.0  # window of tokens per second


# Histograms of answers: name, text, buckets, and the names of others ("vllm:" alone: vLLM calls it the same).
_OF_ANSWERS = (
    ("time_to_first_token_seconds", "from arrival to the first token", _SECONDS, "vllm: sglang:"),
    ("inter_token_latency_seconds", "between tokens", _TOKEN_SECONDS, "vllm: sglang:"),
    (
        "time_per_output_token_seconds", "mean per answer", _TOKEN_SECONDS,
        "vllm:request_time_per_output_token_seconds vllm: sglang:",
    ),
    ("e2e_request_latency_seconds", "from arrival to the last token", _SECONDS, "vllm: sglang:"),
    (
        "request_queue_time_seconds", "from arrival until the engine accepts it", _SECONDS,
        "vllm: sglang:queue_time_seconds",
    ),
    ("request_prefill_time_seconds", "from then to the first token", _SECONDS, "vllm:"),
    ("request_decode_time_seconds", "from the first to the last token", _SECONDS, "vllm:"),
    ("request_inference_time_seconds", "prefill and decode together", _SECONDS, "vllm:"),
    ("request_params_max_tokens", "token limit of an answer", _TOKENS, "vllm: vllm:request_max_num_generation_tokens"),
    ("request_prompt_tokens", "tokens of a prompt", _TOKENS, "vllm: sglang:prompt_tokens_histogram"),
    ("request_generation_tokens", "tokens of an answer", _TOKENS, "vllm: sglang:generation_tokens_histogram"),
    ("request_tau", "tokens per verify of an answer with speculation", _TAUS, ""),
)  # fmt: skip


class Metrics(Collector):
    """Records events of jobs; `text` is the page Prometheus scrapes."""

    def __init__(self, engine: Engine, model: str, waiting: Callable[[], int]) -> None:
        """`waiting` returns how many requests wait for the engine."""
        self._engine, self._waiting = engine, waiting
        self._model = model
        self._own = CollectorRegistry(auto_describe=True)  # the recorded metrics, as fledge:...
        self._also: dict[str, list[str]] = {}  # their other names
        self._page = CollectorRegistry()
        self._page.register(self)
        self._of_answers: dict[str, Histogram] = {}
        for name, text, buckets, also in _OF_ANSWERS:
            self._also[f"fledge:{name}"] = [
                (other + name if other.endswith(":") else other) for other in also.split()
            ]
            family = Histogram(f"fledge:{name}", text, ("model_name",), registry=self._own, buckets=buckets)
            self._of_answers[name] = family.labels(model)
        self.prompt_tokens = self._counter(
            "prompt_tokens", "prompt tokens of finished answers", "vllm:prompt_tokens", "sglang:prompt_tokens"
        ).labels(model)
        self.generation_tokens = self._counter(
            "generation_tokens", "tokens emitted", "vllm:generation_tokens", "sglang:generation_tokens"
        ).labels(model)
        self.requests = self._counter("requests", "answers started", "sglang:num_requests").labels(model)
        self.success = self._counter(
            "request_success", "answers finished", "vllm:request_success",
            labels=("model_name", "finished_reason"),
        )  # fmt: skip
        self.rejected = self._counter("rejected", "requests rejected", labels=("reason",))
        self.http = self._counter("http_responses", "HTTP answers", labels=("route", "status"))
        self.disconnects = self._counter("disconnects", "clients that disconnected early", labels=())
        self.faults = self._counter("engine_faults", "steps of the engine that failed", labels=())
        for reason in ("overloaded", "draining"):
            self.rejected.labels(reason)  # export zeros, too
        self.recent_e2e = 1.0  # seconds, moving average
        self._rate = _TokenRate()

    def add(self, collector: Collector) -> None:
        """Also show what another recorder collects."""
        self._page.register(collector)

    def text(self) -> bytes:
        """The exposition format, version 0.0.4."""
        return generate_latest(self._page)

    def progress(self, job: Job, result: StepResult) -> None:
        """Record a step's progress of a job."""
        now, count = time.perf_counter(), len(result.token_ids)
        if count:
            if job.newest is None:
                self.requests.inc()
                self._of_answers["time_to_first_token_seconds"].observe(now - job.created)
            else:
                between = self._of_answers["inter_token_latency_seconds"]
                for _ in range(count):
                    between.observe((now - job.newest) / count)
            job.newest = now
            self.generation_tokens.inc(count)
            self._rate.add(count)
        if result.completion is not None:
            self._complete(job, result)

    def ended(self, reason: str) -> None:
        """Record the end of a job: with its answer, or by "abort" or "error"."""
        self.success.labels(self._model, reason).inc()

    def _complete(self, job: Job, result: StepResult) -> None:
        assert result.completion is not None
        stats, seconds = result.completion.stats, time.perf_counter() - job.created
        self.ended(result.completion.finish_reason)
        self.recent_e2e += _RECENT * (seconds - self.recent_e2e)
        self.prompt_tokens.inc(len(job.prompt_ids))
        observed = {
            "e2e_request_latency_seconds": seconds,
            "request_queue_time_seconds": job.entered - job.created,
            "request_prefill_time_seconds": stats.ttft_ms / 1e3,
            "request_decode_time_seconds": (stats.e2e_ms - stats.ttft_ms) / 1e3,
            "request_inference_time_seconds": stats.e2e_ms / 1e3,
            "request_params_max_tokens": job.params.max_tokens,
            "request_prompt_tokens": len(job.prompt_ids),
            "request_generation_tokens": stats.tokens,
        }
        if stats.tokens > 1:
            observed["time_per_output_token_seconds"] = stats.tpot_ms / 1e3
        if stats.drafted_rounds:
            observed["request_tau"] = stats.tau
        for name, value in observed.items():
            self._of_answers[name].observe(value)

    def collect(self) -> Iterator[Metric]:
        """The recorded metrics under all their names, and the engine's own gauges and counters."""
        for metric in self._own.collect():
            yield metric
            for name in self._also[metric.name]:
                yield _renamed(metric, name)
        stats = self._engine.stats()
        yield from self._gauges(stats)
        yield from self._counters(stats)

    def _counter(
        self, name: str, text: str, *also: str, labels: tuple[str, ...] = ("model_name",)
    ) -> Counter:
        self._also[f"fledge:{name}"] = [*also]
        return Counter(f"fledge:{name}", text, labels, registry=self._own)

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        drafted, looked_up = stats.draft_tokens, stats.hit_tokens + stats.prompt_tokens
        accepted = sum(stats.accepted_by_depth) / drafted if drafted else 0.0
        hits = stats.hit_tokens / looked_up if looked_up else 0.0
        waiting = stats.waiting + self._waiting()
        for value, text, names in (
            (stats.running, "requests being answered", "vllm:num_requests_running sglang:num_running_reqs"),
            (waiting, "requests waiting", "vllm:num_requests_waiting sglang:num_queue_reqs"),
            (
                stats.kv_usage, "share of the KV pool in use",
                "vllm:kv_cache_usage_perc vllm:gpu_cache_usage_perc sglang:token_usage",
            ),
            (hits, "share of prompt tokens in the prefix cache", "sglang:cache_hit_rate"),
            (self._rate.add(0), "tokens per second", "sglang:gen_throughput"),
            (stats.tau, "tokens per round and request", "fledge:tau sglang:spec_accept_length"),
            (accepted, "share of drafted tokens that were accepted", "sglang:spec_accept_rate"),
        ):  # fmt: skip
            for name in names.split():
                yield _filled(GaugeMetricFamily(name, text, labels=("model_name",)), {(self._model,): value})

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        accepted, looked_up = stats.accepted_by_depth, stats.hit_tokens + stats.prompt_tokens
        for name, text, value in (
            ("vllm:num_preemptions", "requests sent back to the queue", stats.preemptions),
            ("vllm:spec_decode_num_drafts", "draft trees proposed", stats.drafts),
            ("vllm:spec_decode_num_draft_tokens", "nodes of draft trees", stats.draft_tokens),
            ("vllm:spec_decode_num_accepted_tokens", "accepted drafts", sum(accepted)),
            ("vllm:prefix_cache_queries", "prompt tokens looked up in the prefix cache", looked_up),
            ("vllm:prefix_cache_hits", "prompt tokens found there", stats.hit_tokens),
            ("sglang:cached_tokens", "prompt tokens found there", stats.hit_tokens),
            ("fledge:rounds", "rounds of the engine", stats.rounds),
            ("fledge:request_rounds", "requests summed over rounds", stats.request_rounds),
            ("fledge:round_tokens", "tokens emitted in rounds", stats.round_tokens),
            ("fledge:prefilled_tokens", "prompt tokens computed", stats.prompt_tokens),
        ):
            yield _filled(CounterMetricFamily(name, text, labels=("model_name",)), {(self._model,): value})
        trees = {f"{row.shape.depth}x{row.shape.topk}x{row.shape.nodes}": row for row in stats.shapes}
        for name, text, labels, values in (
            (
                "vllm:spec_decode_num_accepted_tokens_per_pos", "accepted drafts by depth", ("model_name", "position"),
                {(self._model, str(position)): count for position, count in enumerate(accepted)},
            ),
            (
                "fledge:accepted_tokens", "accepted drafts by who proposed them", ("source",),
                {(source,): count for source, count in stats.accepted_by_source.items()},
            ),
            (
                "fledge:tree_rounds", "rounds by tree: depth x children x nodes", ("tree",),
                {(tree,): row.rounds for tree, row in trees.items()},
            ),
            (
                "fledge:tree_seconds", "time of rounds by tree", ("tree",),
                {(tree,): row.seconds for tree, row in trees.items()},
            ),
            (
                "fledge:phase_seconds", "where the time goes", ("phase",),
                {(phase,): seconds for phase, seconds in asdict(stats.phases).items()},
            ),
        ):  # fmt: skip
            yield _filled(CounterMetricFamily(name, text, labels=labels), values)


class _TokenRate:
    """Tokens per second over the last few seconds."""

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._count = 0
        self._rate = 0.0

    def add(self, count: int) -> float:
        """Add tokens and return the rate."""
        now = time.perf_counter()
        elapsed = now - self._since
        if elapsed >= _RATE_S:
            self._rate = self._count / elapsed
            self._since, self._count = now, 0
        self._count += count
        return self._rate


def _renamed(metric: Metric, name: str) -> Metric:
    """The same samples under another name."""
    other = Metric(name, metric.documentation, metric.type)
    for sample in metric.samples:
        suffix = sample.name.removeprefix(metric.name)
        if suffix != "_created":
            other.add_sample(name + suffix, sample.labels, sample.value, sample.timestamp, sample.exemplar)
    return other


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[Any, float]) -> Metric:
    """The family with a value for each tuple of labels."""
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
