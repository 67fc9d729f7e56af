"""The alternation, and which rows are believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.base.errors import DataError, EngineError
from fledge.bench import BenchOptions, run_bench, summarise
from fledge.bench.answers import answer_row, measure_answers, reason_to_reject, token_pieces
from fledge.bench.identity import Identity
from fledge.bench.machine import available_cores, machine_facts, measure_bandwidth
from fledge.bench.results import BenchResult
from fledge.bench.run import estimate_seconds, weight_bytes
from fledge.bench.workloads import Prompt, Workload, own_workload
from fledge.engine import Completion, Engine, SamplingParams, TreeShape
from fledge.heads import Head
from fledge.target import Target

QUICK = BenchOptions(
    own_prompts=3,
    max_tokens=10,
    repeats=2,
    warmup=1,
    samples=2,
    concurrency=(1, 2),
    sweep_tokens=6,
    sweep_requests=3,
    sweep_repeats=1,
    bandwidth=False,
)
PROMPT = Prompt("p-1", "chat", ("Why is the sky blue?",))


@pytest.fixture(scope="module")
def answer(target: Target) -> Completion:
    return Engine(target, max_batch=1).generate(["Hello there"], max_tokens=8, ignore_eos=True)[0]


@pytest.fixture(scope="module")
def result(target: Target, head: Head) -> BenchResult:
    return run_bench(target, {"trained": head, "released": head}, QUICK, tree=TreeShape(2, 2, 4))


def timed(answer: Completion, tpot_ms: float, tau: float) -> Completion:
    return replace(answer, stats=replace(answer.stats, tpot_ms=tpot_ms, tau=tau, rounds=7))


def test_speedup_above_tau_is_rejected_with_the_reason(target: Target, answer: Completion) -> None:
    slow, fast = timed(answer, 12.0, 1.0), timed(answer, 5.0, 2.0)
    row = answer_row(target, "w", PROMPT, "trained", [slow], [fast])
    assert row.speedup == pytest.approx(2.4)
    assert row.rejected == "speed-up 2.40 exceeds tau 2.00: the baseline was disturbed or is broken"
    believed = answer_row(target, "w", PROMPT, "trained", [slow], [timed(answer, 8.0, 2.0)])
    assert believed.rejected is None
    assert believed.speedup == pytest.approx(1.5)
    idle = answer_row(target, "w", PROMPT, "trained", [slow], [timed(answer, 9.6, 1.0)])
    assert idle.rejected is None  # noise, as in the rows in which it is slower


def test_times_are_medians_over_the_repeats_and_the_worst_repeat_decides_sameness(
    target: Target, answer: Completion
) -> None:
    plain = [timed(answer, ms, 1.0) for ms in (10.0, 11.0, 30.0)]
    changed = replace(timed(answer, 9.0, 2.0), token_ids=[*answer.token_ids[:3], 0, *answer.token_ids[4:]])
    row = answer_row(target, "w", PROMPT, "trained", plain, [timed(answer, 8.0, 2.0), changed, changed])
    assert (row.tpot_plain_ms, row.tpot_ms) == (11.0, 9.0)
    assert (row.outcome, row.differs_at) == ("different", 3)
    assert row.rejected is not None
    assert "differs from plain decode's from token 3" in row.rejected


def test_an_answer_of_one_token_has_no_speedup() -> None:
    assert reason_to_reject(None, 1.0, Identity("identical")) is not None


def test_a_whole_bench_finds_equal_output_and_all_parts(result: BenchResult) -> None:
    assert len(result.answers) == 2 * QUICK.own_prompts  # type: ignore[operator]
    assert {row.outcome for row in result.answers} == {"identical"}
    assert [(row.concurrency, row.engine) for row in result.levels] == [
        (level, engine) for level in (1, 2) for engine in ("plain", "trained", "released", "random head")
    ]
    assert result.heads == ["trained", "released"]  # the random one answers nothing but the sweep
    assert all(row.requests == 4 or row.concurrency == 1 for row in result.levels)
    assert result.plain is not None
    assert result.plain.limit_ms_per_token is None
    assert {sample.head for sample in result.samples} == {"trained", "released"}
    assert len(result.samples) == 4


def test_sample_pieces_join_to_the_answers_text(target: Target, answer: Completion) -> None:
    pieces = token_pieces(target, answer.token_ids, answer.stats.token_origins)
    text = target.tokenizer.decode(answer.token_ids, skip_special_tokens=True)
    joined = "".join(piece.text for piece in pieces)
    assert joined == text[: len(joined)]
    assert len(text) - len(joined) <= 1 or text.endswith("\ufffd")


def test_weights_read_per_token_leave_the_embedding_lookup_out(result: BenchResult, target: Target) -> None:
    w, c = target.weights, target.config
    layer = c.qkv_size * c.hidden_size + c.num_heads * c.head_dim * c.hidden_size + 2 * c.hidden_size
    layer += 3 * c.intermediate_size * c.hidden_size
    wanted = 4 * (c.num_layers * layer + c.hidden_size + c.vocab_size * c.hidden_size)
    assert result.plain is not None
    assert result.plain.weight_bytes == wanted
    assert w.lm_head is w.embedding


@pytest.mark.kernels
def test_the_kernels_read_less_than_all_of_the_lm_head(tiny_target_folder: Path) -> None:
    folder = str(tiny_target_folder)
    kernels = Target.load(folder, dtype="bfloat16", backend="native")
    torch = Target.load(folder, dtype="bfloat16", backend="torch")
    lm_head = 2 * kernels.weights.lm_head.numel()
    norms = [norm for layer in kernels.weights.layers for norm in (layer.input_norm, layer.post_norm)]
    wider = sum(2 * norm.numel() for norm in norms)  # they are float32 in the kernels
    assert 0.4 < (weight_bytes(torch) - weight_bytes(kernels) + wider) / lm_head < 0.5


def test_a_target_without_a_head_is_measured_plainly(target: Target) -> None:
    found = run_bench(target, {}, QUICK.model_copy(update={"concurrency": (1,)}))
    assert found.answers == []
    assert [row.engine for row in found.levels] == ["plain"]
    assert found.plain is not None
    assert found.plain.ms_per_token == found.levels[0].median_tpot_ms


def test_a_result_names_the_form_of_the_targets_weights(
    result: BenchResult, tiny_target_folder: Path
) -> None:
    target = Target.load(str(tiny_target_folder), backend="torch", quantization="q8_0")
    found = run_bench(target, {}, QUICK.model_copy(update={"concurrency": (1,)}))
    assert (result.subject.quantization, found.subject.quantization) == (None, "q8_0")


def test_engines_take_turns_and_the_time_limit_is_kept(target: Target, head: Head) -> None:
    order: list[str] = []

    class Recording(Engine):
        name = ""

        def generate(self, *args: object, **options: object) -> list[Completion]:  # type: ignore[override]
            order.append(self.name)
            return super().generate(*args, **options)  # type: ignore[arg-type]

    engines = {"plain": Recording(target, max_batch=1), "trained": Recording(target, head, max_batch=1)}
    for name, engine in engines.items():
        engine.name = name
    workload = Workload("w", own_workload().prompts[:3])
    options = BenchOptions(max_tokens=4, repeats=2, warmup=0, samples=0)
    measure_answers(target, engines, [workload], options, lambda *_: None)
    abba = ["plain", "trained", "trained", "plain"]
    assert order == [*abba, "trained", "plain", "plain", "trained", *abba]
    found = measure_answers(
        target, engines, [workload], options.model_copy(update={"max_seconds": 1e-6}), lambda *_: None
    )
    assert len(found.rows) == 1
    assert found.notes == ["w: 2 prompts left out after 0 s"]


def test_sampled_answers_are_their_seeds_with_and_without_a_head(target: Target, head: Head) -> None:
    engines = {"plain": Engine(target, max_batch=1), "trained": Engine(target, head, max_batch=1)}
    workload = Workload("w", own_workload().prompts[:2])
    options = BenchOptions(max_tokens=8, repeats=1, warmup=0, samples=2, temperature=1.0)
    found = measure_answers(target, engines, [workload], options, lambda *_: None)
    assert [row.outcome for row in found.rows] == ["identical"] * 2
    ids = target.chat.prompt_ids(workload.prompts[1].messages)
    wanted = engines["plain"].generate([ids], max_tokens=8, temperature=1.0, seed=1)[0]
    pieces = {sample.question: sample.pieces for sample in found.samples}[workload.prompts[1].turns[0]]
    assert pieces == token_pieces(target, wanted.token_ids, [piece.depth for piece in pieces])


def test_a_temperature_holds_for_answers_and_sweep(
    target: Target, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, int | None]] = []
    submit = Engine.submit

    def recording(self: Engine, prompt: list[int], params: SamplingParams, **rest: object) -> int:
        asked.append((params.temperature, params.seed))
        return submit(self, prompt, params, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "submit", recording)
    changes = {"temperature": 0.8, "warmup": 0, "concurrency": (2,), "random_head": False}
    found = run_bench(target, {"trained": head}, QUICK.model_copy(update=changes))
    assert {row.outcome for row in found.answers} == {"identical"}
    sweep = asked[-2 * 4 :]  # two engines, two requests per slot
    assert sorted(sweep) == sorted([(0.8, seed) for seed in range(4)] * 2)
    assert summarise(found).decoding == "sampled at temperature 0.8"


def test_prompts_longer_than_the_target_allows_are_left_out_or_refused(target: Target, head: Head) -> None:
    long = Prompt("p-2", "chat", ("word " * target.config.max_position_embeddings,))
    engines = {"plain": Engine(target, max_batch=1), "trained": Engine(target, head, max_batch=1)}
    options, done = BenchOptions(max_tokens=4, repeats=1, warmup=0, samples=0), []
    workload = Workload("w", (long, PROMPT))
    found = measure_answers(target, engines, [workload], options, lambda *told: done.append(told[:2]))
    assert [row.question_id for row in found.rows] == ["p-1"]
    assert found.notes == ["w p-2: too long for the target, left out"]
    assert done == [(2, 2)]
    with pytest.raises(DataError, match="too long"):
        run_bench(target, {}, QUICK.model_copy(update={"sweep_tokens": 5000}))


def test_a_head_may_not_be_called_plain(target: Target, head: Head) -> None:
    with pytest.raises(EngineError, match="names the baseline"):
        run_bench(target, {"plain": head}, QUICK)


def test_the_estimate_grows_with_the_work() -> None:
    small = estimate_seconds(QUICK, 1, 10.0)
    assert small < estimate_seconds(QUICK, 2, 10.0) < estimate_seconds(BenchOptions(), 2, 10.0)


def test_bandwidth_is_measured_and_missing_kernels_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measure_bandwidth(64 << 20, lambda: 1.0, seconds=0.05)
    assert 0.1 < measured.median_gb_s <= measured.best_gb_s < 10_000
    monkeypatch.setattr("fledge.bench.machine.unavailable_reason", lambda: "install g++ or clang")
    fallback = measure_bandwidth(64 << 20, lambda: 1.0, seconds=0.05)
    assert fallback.method == "torch"
    assert "under-reports" in fallback.note
    assert "install g++ or clang" in fallback.note
    assert available_cores() >= 1


def test_a_step_is_compared_with_the_reads_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose memory is ten times slower in every other turn, and a step that reads everything twice."""
    speeds = iter([1.0, *[slow for slow in (10.0, 1.0) * 2 for _ in range(3)]])
    now = [1.0]

    def seconds_of(read: object, device: torch.device) -> float:
        now[0] = next(speeds)
        return 0.01 * now[0]

    monkeypatch.setattr("fledge.bench.machine.seconds_of", seconds_of)
    measured = measure_bandwidth(128 << 20, lambda: 0.02 * now[0], seconds=0.0)
    assert measured.plain_share == pytest.approx(0.5)
    assert measured.best_gb_s == pytest.approx(10 * measured.median_gb_s)


def test_the_limit_of_plain_decode_comes_from_reads_in_turn_with_it(target: Target) -> None:
    found = run_bench(target, {}, QUICK.model_copy(update={"concurrency": (1,), "bandwidth": True}))
    assert found.plain is not None
    assert found.bandwidth is not None
    assert found.bandwidth.plain_share is not None
    assert found.plain.limit_ms_per_token == pytest.approx(
        found.bandwidth.plain_share * found.plain.ms_per_token
    )
    assert 0 < found.bandwidth.plain_share < 1  # a tiny model's step is nearly all host


def test_figures_of_a_gpu_are_told_of_it_and_those_of_the_cpu_beside_it_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: f"GPU {device}")
    monkeypatch.setattr("fledge.bench.machine.free_memory", lambda device: 256 << 20)
    assert machine_facts(torch.device("cpu")).accelerator is None
    assert machine_facts(torch.device("cuda:1")).accelerator == "GPU cuda:1"
    # Tensors that hold nothing stand for a GPU's: the kernels, which read the CPU's memory, aren't asked.
    measured = measure_bandwidth(1 << 20, lambda: 1.0, torch.device("meta"), seconds=0.0)
    assert (measured.method, measured.note, measured.buffer_bytes) == ("torch", "", 64 << 20)
