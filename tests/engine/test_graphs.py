"""Rounds that are replayed give what rounds give that are launched. Recorded here on a CPU, as CUDA graphs would be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from fledge.base.errors import EngineError
from fledge.engine import (
    PLAIN,
    Candidates,
    Drafter,
    Engine,
    EngineOptions,
    Lookup,
    SamplingParams,
    StepResult,
    TreeShape,
    build,
    measure,
)
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.planner import RoundPlan
from fledge.engine.rounds import graphs
from fledge.engine.rounds.graphs import CudaRecorder, GraphRound
from fledge.target.target import Target
from tests.engine.conftest import noisy_head, serve
from tests.engine.op_recorder import act_like_a_gpu
from tests.tiny import TinyShape, save_tiny_target

SHAPES = [None, TreeShape(3, 2, 7), TreeShape(2, 4, 8, 15), TreeShape(4, 1, 5, 15), TreeShape(2, 1, 3, 15)]


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    act_like_a_gpu(monkeypatch)
    monkeypatch.setattr(graphs, "TREES", (TreeShape(2, 1, 3), TreeShape(4, 1, 5), TreeShape(2, 4, 8)))
    monkeypatch.setattr(build, "TREES", graphs.TREES)


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A target whose layers say little: the next token follows from the last few, and answers go in circles."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=256)
    folder = save_tiny_target(tmp_path_factory.mktemp("looping") / "llama", shape=shape)
    weights = load_file(folder / "model.safetensors")
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= 0.1
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return Target.load(str(folder), dtype="float32", backend="torch")


def make_engine(target: Target, *, recorded: bool, seed: int = 3, max_batch: int = 4) -> Engine:
    """Plans change from round to round, trees without a recording among them; plain rounds leave the head behind."""
    engine = Engine(
        target, noisy_head(target), max_batch=max_batch, max_context=140, kv_tokens=480, cuda_graphs=recorded
    )
    rng, planner = random.Random(seed), engine._core._planner

    def choose(requests: int, *, behind: Callable[[], int]) -> RoundPlan:
        return RoundPlan(rng.choice(SHAPES) or PLAIN, planner.match_rates)

    planner.choose = choose  # type: ignore[method-assign]
    return engine


def graphs_of(engine: Engine) -> GraphRound:
    backend = engine._core._rounds.round
    assert isinstance(backend, GraphRound)
    return backend


def sampled(number: int) -> SamplingParams:
    """Greedy and drawn rows, filters or none, in batches of all kinds."""
    options: list[dict[str, object]] = [
        {},
        {"temperature": 0.9},
        {"temperature": 0.8, "top_p": 0.9, "top_k": 30},
        {"temperature": 1.0, "min_p": 0.05},
        {"repetition_penalty": 1.4, "temperature": 0.7},
        {"logprobs": 2},
        {"logit_bias": {9: 3.0}},
    ]
    chosen = options[number % len(options)] if number % 3 else {}
    return SamplingParams(max_tokens=18 + number % 9, ignore_eos=True, seed=number, **chosen)  # type: ignore[arg-type]


def told(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[StepResult]]:
    """All results of each request, the trees included; every third doesn't speculate."""
    found: dict[int, list[StepResult]] = {}
    for number, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
        found[engine.submit(prompt, wanted, speculate=number % 3 > 0, trace=True)] = []
    while engine.busy:
        for result in engine.step():
            found[result.request_id].append(replace(result, completion=None))
    engine.check()
    return list(found.values())


def assert_alike(found: list[list[StepResult]], expected: list[list[StepResult]]) -> None:
    """Everything is equal, and log probabilities nearly: a product's last bits depend on its number of rows."""
    for some, others in zip(found, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            tree, same = one.tree, other.tree
            if tree is not None and same is not None:
                assert tree.log_probs == pytest.approx(same.log_probs, abs=1e-4)
                tree, same = replace(tree, log_probs=[]), replace(same, log_probs=[])
            logprobs = [
                [number for at in result.logprobs or [] for number in [at.logprob, *(p for _, p in at.top)]]
                for result in (one, other)
            ]
            assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
            assert replace(one, tree=tree, logprobs=None) == replace(other, tree=same, logprobs=None)


@pytest.fixture
def repetitive(prompts: list[list[int]]) -> list[list[int]]:
    """Prompts in which lookup finds something, and sometimes what comes next."""
    return [3 * prompt[:12] + prompt[: number % 5] for number, prompt in enumerate(prompts[:10])]


@pytest.mark.parametrize(("greedy", "max_batch"), [pytest.param(True, 3, marks=pytest.mark.slow), (False, 6)])
def test_replayed_rounds_are_those_that_would_be_launched(
    looping: Target, repetitive: list[list[int]], like_a_gpu: None, greedy: bool, max_batch: int
) -> None:
    """Tokens, trees and paths, while requests come and go, batches outgrow recordings and heads fall behind."""
    params = [sampled(0 if greedy else number) for number in range(len(repetitive))]
    launched, recorded = (make_engine(looping, recorded=on, max_batch=max_batch) for on in (False, True))
    rounds = graphs_of(recorded)
    expected = [one.token_ids for one in serve(Engine(looping), repetitive, params)]
    kept = len(rounds._recordings)
    found = told(recorded, repetitive, params)
    assert_alike(found, told(launched, repetitive, params))
    assert [[token for r in results for token in r.token_ids] for results in found] == expected
    stats = recorded.stats()
    assert stats.tau > 1.02
    assert (
        stats.rounds / 4 < rounds.replayed < stats.rounds
    )  # trees and choices without a recording are among them
    assert len(rounds._recordings) == kept


def test_padding_touches_no_page_of_a_request(
    looping: Target, repetitive: list[list[int]], like_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three requests in a round of four rows, after a fourth has left: only pages of the three, and page 0, change."""
    engine = Engine(
        looping, noisy_head(looping), max_batch=4, max_context=140, kv_tokens=1280, tree=SHAPES[2],
        prefix_cache=False, cuda_graphs=True,
    )  # fmt: skip
    core, rounds = engine._core, graphs_of(engine)
    eagle, batch = core._drafter, core._batch
    assert isinstance(eagle, Eagle)
    params = SamplingParams(max_tokens=90, ignore_eos=True)
    ids = [engine.submit(prompt, params) for prompt in repetitive[:4]]
    for _ in range(4):
        engine.step()
    engine.cancel(ids[0])
    size = looping.decoder.page_size
    checked = 0
    replay = batch.settle

    def settled(rows: int) -> None:
        """What is stale in the rows behind the running requests points at the pages of some that are there."""
        nonlocal checked
        batch._state.length[batch.size :] = 40
        batch._state.page_table[batch.size :] = batch._state.page_table[0]
        eagle._state.head_pages[batch.size :] = eagle._state.head_pages[0]
        replay(rows)
        if rows > batch.size:
            checked += 1
            assert batch._state.length[batch.size : rows].tolist() == [0] * (rows - batch.size)
            assert not batch._state.page_table[batch.size : rows].any()
            assert not eagle._state.head_pages[batch.size : rows].any()

    monkeypatch.setattr(batch, "settle", settled)
    for _ in range(6):
        kv, head = core._target.kv.clone(), eagle.kv.clone()
        before = {
            request.id: (list(request.pages), request.length - 1) for request in core._scheduler.running
        }
        engine.step()
        own = {page for request in core._scheduler.running for page in request.pages} | {0}
        for old, new in ((kv, core._target.kv), (head, eagle.kv)):
            changed = _changed_slots(old, new)
            assert {slot // size for slot in changed} <= own
            for pages, length in before.values():  # what was committed is as it was
                committed = {pages[index // size] * size + index % size for index in range(length)}
                assert not changed & committed
    assert checked == 6
    assert rounds.replayed >= 6


def _changed_slots(old: torch.Tensor, new: torch.Tensor) -> set[int]:
    """Slots of a pool [..., 2, slots, heads, size] or [2, slots, heads, size] that differ."""
    differs = (old != new).flatten(-2).any(-1)
    return set(differs.view(-1, differs.shape[-1]).any(0).nonzero()[:, 0].tolist())


def test_a_batch_beyond_the_largest_tree_that_is_recorded_runs_without(
    looping: Target, repetitive: list[list[int]], like_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_MOST_ROWS", 2 * 7)
    launched, recorded = (
        Engine(looping, noisy_head(looping), max_batch=4, tree=SHAPES[1], cuda_graphs=on)
        for on in (False, True)
    )
    params = [SamplingParams(max_tokens=8 + 6 * number, ignore_eos=True) for number in range(4)]
    assert_alike(told(recorded, repetitive[:4], params), told(launched, repetitive[:4], params))
    rounds, stats = graphs_of(recorded), recorded.stats()
    assert 0 < rounds.replayed < stats.rounds
    assert {key.requests for key in rounds._recordings if key.shape == SHAPES[1]} == {1, 2}


def test_costs_are_those_of_replays(target: Target, like_a_gpu: None) -> None:
    """Also where the target's own were measured without."""
    Engine(target, noisy_head(target), max_batch=2, max_context=64)
    Engine(target, noisy_head(target), max_batch=2, max_context=64, cuda_graphs=True)
    assert {replayed for _, replayed in measure._measured_targets[target.decoder]} == {False, True}


def test_recordings_are_few_and_end_where_memory_does(
    target: Target, like_a_gpu: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The start-up time is logged."""
    assert len(graphs.keys(256, graphs.TREES)) > 100
    monkeypatch.setattr(graphs, "_MOST", 20)
    assert len(graphs.keys(256, graphs.TREES)) == 20
    free = iter([900, 900, 800, 700, 600, 500, 400])
    monkeypatch.setattr(graphs, "free_memory", lambda device: next(free))
    monkeypatch.setattr(build, "_activations", lambda *given: 550)
    caplog.set_level("INFO", "fledge.engine")
    engine = Engine(target, max_batch=4, max_context=64, kv_tokens=400, cuda_graphs=True)
    assert len(graphs_of(engine)._recordings) == 4
    assert "recorded 4 of 9 rounds as CUDA graphs in " in caplog.text
    assert engine.generate([[7, 8, 9]], max_tokens=5, ignore_eos=True)[0].token_ids


def test_they_are_on_by_default_where_they_can_be(target: Target, like_a_gpu: None) -> None:
    bounds, options = [TreeShape(8, 8, 32)], EngineOptions(max_batch=8)

    def recorded(decoder: object, own: Drafter | None = None, **given: bool) -> bool:
        return bool(build._recorded(decoder, own, options.changed(**given), bounds, 0))  # type: ignore[arg-type]

    on_gpu = SimpleNamespace(config=target.config, device=torch.device("cuda"), dtype=torch.bfloat16)
    with mock.patch.object(build, "find_spec", return_value="installed"):
        assert recorded(on_gpu)
        assert recorded(on_gpu, Lookup())
        assert not recorded(on_gpu, Drafter())  # it may read values
        assert not recorded(on_gpu, cuda_graphs=False)
        assert not recorded(target.decoder)
    with mock.patch.object(build, "find_spec", return_value=None):
        assert not recorded(on_gpu)


def test_what_cannot_be_recorded_is_said(
    target: Target, like_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose = Eagle.propose

    def reading(eagle: Eagle, running: RunningBatch, plan: RoundPlan) -> Candidates:
        assert running.view().bonus.sum().item() >= 0
        return propose(eagle, running, plan)

    monkeypatch.setattr(Eagle, "propose", reading)
    Engine(target, max_batch=2, max_context=64, cuda_graphs=True)
    with pytest.raises(EngineError, match=r"can't be recorded .*--no-cuda-graphs"):
        Engine(target, noisy_head(target), max_batch=2, max_context=64, tree=SHAPES[2], cuda_graphs=True)


def test_cuda_graphs_need_a_gpu(target: Target) -> None:
    with pytest.raises(
        EngineError, match="cuda_graphs needs a target on a CUDA device, and this one is on cpu"
    ):
        Engine(target, cuda_graphs=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_cuda_graphs_replay() -> None:
    recorder = CudaRecorder(torch.device("cuda"))
    number = torch.zeros(4, device="cuda")
    made, replay = recorder.record(lambda: number.add_(1) * 2)
    for count in (1, 2, 3):
        replay()
        assert made.tolist() == [2.0 * count] * 4
