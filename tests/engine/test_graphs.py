"""Rounds that are replayed give what rounds give that are launched. Recorded here on a CPU, as CUDA graphs would be."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from fledge.base.errors import EngineError
from fledge.engine import PLAIN, Candidates, Engine, SamplingParams, StepResult, TreeShape, batch, measure
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.planner import RoundPlan
from fledge.engine.rounds.graphs import CudaRecorder, RecordedRounds, Recording, RoundKey
from fledge.target.target import Target
from tests.engine.conftest import noisy_head, serve
from tests.engine.op_recorder import act_like_a_gpu
from tests.tiny import TinyShape, save_tiny_target

SHAPES = [None, TreeShape(3, 2, 7), TreeShape(2, 4, 8, 6), TreeShape(4, 1, 5)]
KEY = RoundKey(1, PLAIN, False, False, "greedy", 0)


@pytest.fixture
def like_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    act_like_a_gpu(monkeypatch)


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A target whose layers say little: the next token follows from the last few, and answers go in circles."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=256)
    folder = save_tiny_target(tmp_path_factory.mktemp("looping") / "llama", shape=shape)
    made = Target.load(str(folder), dtype="float32", backend="torch")
    for layer in made.weights.layers:
        layer.o.mul_(0.1)
        layer.down.mul_(0.1)
    return made


def make_engine(target: Target, *, recorded: bool, seed: int = 3) -> Engine:
    """Plans change from round to round, and plain rounds leave the head behind."""
    engine = Engine(
        target, noisy_head(target), max_batch=4, max_context=140, kv_tokens=480, cuda_graphs=recorded
    )
    rng, planner = random.Random(seed), engine._core._planner

    def choose(requests: int, *, behind: Callable[[], int]) -> RoundPlan | None:
        shape = rng.choice(SHAPES)
        return None if shape is None else RoundPlan(shape, planner.match_rates)

    planner.choose = choose  # type: ignore[method-assign]
    return engine


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
    return SamplingParams(max_tokens=40 + number % 9, ignore_eos=True, seed=number, **chosen)  # type: ignore[arg-type]


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


@pytest.fixture
def repetitive(prompts: list[list[int]]) -> list[list[int]]:
    """Prompts in which lookup finds something, and sometimes what comes next."""
    return [3 * prompt[:12] + prompt[: number % 5] for number, prompt in enumerate(prompts[:12])]


@pytest.mark.parametrize("greedy", [True, False])
def test_replayed_rounds_are_those_that_would_be_launched(
    looping: Target, repetitive: list[list[int]], like_a_gpu: None, greedy: bool
) -> None:
    """Tokens, trees and accepted paths, while requests come and go, and heads fall behind and catch up."""
    params = [sampled(0 if greedy else number) for number in range(len(repetitive))]
    launched, recorded = make_engine(looping, recorded=False), make_engine(looping, recorded=True)
    rounds = recorded._core._rounds.recorded
    assert rounds is not None
    expected = [one.token_ids for one in serve(Engine(looping), repetitive, params)]
    for _ in range(2):
        found = told(recorded, repetitive, params)
        assert found == told(launched, repetitive, params)
        assert [[token for r in results for token in r.token_ids] for results in found] == expected
    assert recorded.stats().tau > 1.02
    assert rounds.recorded > 10
    assert rounds.replayed > 2 * rounds.recorded


def test_a_replay_looks_as_far_back_as_a_launch(
    looping: Target, like_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lookup reads a power of two of tokens: a round that was recorded with fewer isn't replayed."""
    monkeypatch.setattr(batch, "_SHORTEST_HISTORY", 16)
    prompt, params = [[*range(20, 26)] * 2], [SamplingParams(max_tokens=110, ignore_eos=True)]
    launched, recorded = (
        Engine(looping, noisy_head(looping), max_batch=1, tree=TreeShape(2, 2, 8, 6), cuda_graphs=graphs)
        for graphs in (False, True)
    )
    rounds = recorded._core._rounds.recorded
    assert rounds is not None
    # Not the first: one that doesn't speculate.
    found = [
        told(one, [[7], *prompt], [SamplingParams(max_tokens=1), *params])[1] for one in (launched, recorded)
    ]
    assert found[0] == found[1]
    assert rounds.recorded >= 3
    assert rounds.replayed > rounds.recorded


def test_costs_are_those_of_replays(target: Target, like_a_gpu: None) -> None:
    """Also where the target's own were measured without."""
    Engine(target, noisy_head(target), max_batch=2, max_context=64)
    engine = Engine(target, noisy_head(target), max_batch=2, max_context=64, cuda_graphs=True)
    rounds = engine._core._rounds.recorded
    assert rounds is not None
    assert rounds.recorded >= 4  # sizes of the target and of the head
    assert {replayed for _, replayed in measure._measured_targets[target.decoder]} == {False, True}


def test_a_round_is_recorded_once_it_was_launched_twice() -> None:
    done: list[str] = []

    class Notes:
        def record(self, work: Callable[[], str]) -> Recording[str]:
            return Recording(work(), partial(done.append, "replayed"))

    rounds = RecordedRounds(Notes(), most=1)  # type: ignore[arg-type]

    def work() -> str:
        done.append("launched")
        return "made"

    for _ in range(4):
        assert rounds.run(KEY, work) == "made"
    assert done == ["launched", "launched", "launched", "replayed", "replayed"]
    for _ in range(3):
        rounds.run(KEY._replace(requests=2), work)  # takes the place of the other recording
    rounds.run(KEY, work)
    assert (rounds.recorded, rounds.replayed) == (3, 4)


def test_what_cannot_be_recorded_is_said(
    target: Target, like_a_gpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(target, max_batch=2, max_context=64, cuda_graphs=True)
    propose = Eagle.propose

    def reading(eagle: Eagle, running: RunningBatch, plan: RoundPlan) -> Candidates:
        assert running.view().bonus.sum().item() >= 0
        return propose(eagle, running, plan)

    monkeypatch.setattr(Eagle, "propose", reading)
    head = Engine(target, noisy_head(target), max_batch=2, max_context=64, tree=SHAPES[2], cuda_graphs=True)
    engine.generate([[7, 8, 9]], max_tokens=8, ignore_eos=True)
    with pytest.raises(EngineError, match=r"can't be recorded .*without cuda_graphs"):
        head.generate([[7, 8, 9]], max_tokens=24, ignore_eos=True)


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
