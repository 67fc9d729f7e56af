"""A level's figures, named as in SGLang's `bench_serving` and vLLM's `bench serve`.

    {mean,median,std,p90,p95,p99,max}_{ttft,tpot,itl,e2e_latency}_ms      latencies in milliseconds
    request_throughput, input_throughput, output_throughput, total_throughput     per second
    accept_length                                                     SGLang's name for tau
    spec_decode_*, total_token_throughput                             vLLM's names

Percentiles interpolate between adjacent values, as numpy does by default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # what they import sends requests
    from fledge.bench.load.client import RequestRecord
    from fledge.bench.load.counters import Speculation

_KINDS = ("ttft", "tpot", "itl", "e2e_latency")


def latencies_ms(records: Sequence[RequestRecord]) -> dict[str, list[float]]:
    """Latencies by kind, over answered requests; ITL over all their tokens."""
    done = [record for record in records if record.ok]
    return {
        "ttft": [1e3 * record.ttft for record in done],
        "tpot": [1e3 * tpot for record in done if (tpot := record.tpot) is not None],
        "itl": [1e3 * itl for record in done for itl in record.itls],
        "e2e_latency": [1e3 * record.e2e for record in done],
    }


def distribution(values: Sequence[float], name: str) -> dict[str, float | None]:
    """The figures of one kind of latency; None if there are no values."""
    names = [f"{figure}_{name}_ms" for figure in ("mean", "median", "std", "p90", "p95", "p99", "max")]
    if not values:
        return dict.fromkeys(names)
    data = np.asarray(values)
    p50, p90, p95, p99 = np.percentile(data, (50, 90, 95, 99))
    return dict(
        zip(names, map(float, (data.mean(), p50, data.std(), p90, p95, p99, data.max())), strict=True)
    )


def level_figures(
    records: Sequence[RequestRecord],
    seconds: float,
    speculation: Speculation | None,
) -> dict[str, Any]:
    """The figures of one level: a line of `load.jsonl`, without the fields that name the level."""
    done = [record for record in records if record.ok]
    prompt, output = sum(r.prompt_tokens for r in done), sum(r.output_tokens for r in done)
    row: dict[str, Any] = {
        "duration": seconds,
        "completed": len(done),
        "failed": len(records) - len(done),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(done) / seconds,
        "input_throughput": prompt / seconds,
        "output_throughput": output / seconds,
        "total_throughput": (prompt + output) / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        # mean requests in flight (Little's law), as SGLang counts it
        "concurrency": sum(record.e2e for record in done) / seconds,
        "tokens_counted_by": "server" if done and all(record.counted for record in done) else "chunks",
        "itl_basis": "tokens" if done and all(record.arrival_tokens for record in done) else "chunks",
    }
    latencies = latencies_ms(records)
    for kind in _KINDS:
        row |= distribution(latencies[kind], kind)
    if speculation is not None:
        row |= speculation.figures()
    errors = sorted({record.error for record in records if record.error})
    if errors:
        row["errors"] = errors[:5]
    return row
