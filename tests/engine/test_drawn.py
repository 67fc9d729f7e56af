"""Tokens that a forward draws itself are those drawn of its logits; requests that need logits get them."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest

from fledge.engine import Engine, SamplingParams, TreeShape
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.planner import FixedPlanner, RoundPlan
from fledge.engine.planner.finished import FinishedRound
from fledge.engine.planner.plan import Terms
from fledge.engine.request import Completion
from fledge.engine.rounds.native import NativeRound
from fledge.engine.rounds.result import RoundResult
from fledge.target.cpu import NativeDecoder
from fledge.target.target import Target
from tests.engine.conftest import noisy_head, serve
from tests.tiny import TinyShape, save_tiny_target

pytestmark = pytest.mark.kernels

DRAWN = [
    [{"temperature": 1.0}],
    [{"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 0.6}],
    [{"temperature": 1.0, "top_k": 5}],
    [{"temperature": 1.0, "top_p": 0.5}],
    [{"temperature": 1.0, "min_p": 0.3}],
    [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.5}, {"temperature": 0.0}],
]
FROM_LOGITS = [
    [{"temperature": 1.0, "repetition_penalty": 1.8}],
    [{"temperature": 1.0, "logit_bias": {7: 9.0}}],
    [{"temperature": 1.0, "logprobs": 2}],
]
MIXED = [[{"temperature": 1.0}, {"temperature": 1.0, "logprobs": 1}, {"temperature": 0.0}]]


@pytest.fixture(scope="module")
def bf16_target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Three layers on the native kernels."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=256)
    return Target.load(str(save_tiny_target(tmp_path_factory.mktemp("drawn") / "llama", shape=shape)))


@pytest.mark.parametrize("settings", DRAWN + FROM_LOGITS + MIXED, ids=str)
def test_they_are_those_drawn_of_its_logits(
    bf16_target: Target,
    prompts: list[list[int]],
    settings: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A batch whose requests take these settings in turn."""

    def answers() -> list[tuple[list[int], object]]:
        done = serve(Engine(bf16_target, max_batch=4), prompts, requests_of(prompts, settings))
        return [(answer.token_ids, answer.logprobs) for answer in done]

    calls = []

    def counted(*arguments: Any, **options: Any) -> object:
        calls.append(1)
        return forward(*arguments, **options)

    forward = NativeDecoder.forward_drawn
    monkeypatch.setattr(NativeDecoder, "forward_drawn", counted)
    found = answers()
    monkeypatch.delattr(NativeDecoder, "forward_drawn")
    assert found == answers()
    if settings not in MIXED:
        assert bool(calls) == (settings in DRAWN)


def requests_of(prompts: list[list[int]], settings: list[dict[str, Any]]) -> list[SamplingParams]:
    """One request per prompt; they take the settings in turn."""
    return [
        SamplingParams(max_tokens=24, ignore_eos=True, seed=n, **settings[n % len(settings)])
        for n in range(len(prompts))
    ]


def name_next_tokens(engine: Engine, answers: list[Completion]) -> None:
    """Let the head's first levels hold the answers' next tokens, four times out of five; with any probability."""
    core, rng = engine._core, random.Random(5)
    assert isinstance(core._rounds.round, NativeRound)
    assert isinstance(core._drafter, Eagle)
    state, decode = core._drafter.view(4), core._rounds.decode

    def decode_knowing(plan: RoundPlan) -> RoundResult:
        for row, request in enumerate(core._scheduler.running):
            token = answers[request.id].token_ids[len(request.output_ids)]
            tokens, log_probs = state.first_token_ids[row], state.first_log_probs[row]
            if rng.random() < 0.8 and token not in tokens:
                tokens[0], log_probs[0] = token, math.log(rng.uniform(0.01, 1))
                log_probs[1:].clamp_(max=float(log_probs[0]))
        return decode(plan)

    core._rounds.decode = decode_knowing  # type: ignore[method-assign]


@pytest.mark.parametrize("settings", DRAWN + MIXED, ids=str)
def test_trees_of_different_sizes_are_drawn_from_alike(
    bf16_target: Target,
    prompts: list[list[int]],
    settings: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = serve(Engine(bf16_target, max_batch=4), prompts, requests_of(prompts, settings))
    shape, sizes, unequal = TreeShape(4, 3, 12), Counter[int](), 0
    # A row costs as much as a draft that comes true with a probability of 4 %.
    terms = Terms([1.0] * 5, [0.65] * 4, (1, 64), [0.0, 63 * 0.04], 0.0)
    monkeypatch.setattr(
        FixedPlanner, "choose", lambda self, requests, behind: RoundPlan(shape, self.match_rates, terms)
    )

    def watch(self: FixedPlanner, done: FinishedRound) -> None:
        nonlocal unequal
        counts = done.drafted.sizes
        sizes.update(counts)
        unequal += len(set(counts)) > 1

    monkeypatch.setattr(FixedPlanner, "learn", watch)
    engine = Engine(bf16_target, noisy_head(bf16_target), max_batch=4, tree=shape)
    name_next_tokens(engine, expected)
    found = serve(engine, prompts, requests_of(prompts, settings))
    assert [answer.token_ids for answer in found] == [answer.token_ids for answer in expected]
    assert {0, shape.nodes - 1} < set(sizes)
    assert len(sizes) > 3
    assert unequal > 9
    assert engine.stats().tau > 1.2
