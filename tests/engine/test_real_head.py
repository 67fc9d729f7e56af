"""A real head: what it carries from round to round is what it would compute from scratch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from fledge.engine import PLAIN, Engine, SamplingParams, TreeShape
from fledge.engine.batch import Carried
from fledge.engine.drafters.eagle import Eagle, HeadState
from fledge.engine.planner import RoundPlan
from fledge.heads import Head
from fledge.target.target import Target
from tests.engine.conftest import SHAPES, Greedy, noisy_head
from tests.heads.tiny_head import estimating


@pytest.fixture(scope="module", params=[0, 9], ids=["whole", "windowed, with candidates"])
def head(request: pytest.FixtureRequest, target: Target) -> Head:
    """The target's own last layer with random noise; one sees a window, and estimates most scores."""
    head = noisy_head(target)
    return estimating(head.with_window(request.param)) if request.param else head


@pytest.mark.parametrize(
    "shape",
    [None, *SHAPES[1::2], *(pytest.param(other, marks=pytest.mark.slow) for other in SHAPES[::2])],
    ids=str,
)
def test_greedy_output_equals_plain_decode(
    target: Target, greedy: Greedy, head: Head, prompts: list[list[int]], shape: TreeShape | None
) -> None:
    expected = greedy(25)
    answers = Engine(target, head, max_batch=5, tree=shape).generate(prompts, max_tokens=25, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    if shape is not None and shape.nodes > 4:
        assert sum(sum(answer.stats.accepted_by_depth) for answer in answers) > 0


def test_a_head_that_names_few_positions_drafts_as_well_behind_them(
    target: Target, head: Head, prompts: list[list[int]]
) -> None:
    few = Head(replace(head.config, max_position_embeddings=8), head.weights, head.metadata)
    long = [[*prompt, *range(20, 150)] for prompt in prompts[:4]]
    expected, answers = (
        Engine(target, one, tree=TreeShape(4, 3, 12)).generate(long, max_tokens=25, ignore_eos=True)
        for one in (head, few)
    )
    for answer, other in zip(answers, expected, strict=True):
        assert answer.token_ids == other.token_ids
        assert answer.stats.accepted_by_depth == other.stats.accepted_by_depth


def test_sampled_output_equals_plain_sampled_output(
    target: Target, plain: Engine, head: Head, prompts: list[list[int]]
) -> None:
    sampling = {"max_tokens": 25, "temperature": 0.9, "top_p": 0.95, "seed": 5, "ignore_eos": True}
    expected = plain.generate(prompts, **sampling)  # type: ignore[arg-type]
    answers = Engine(target, head, tree=TreeShape(4, 3, 12)).generate(prompts, **sampling)  # type: ignore[arg-type]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]


@pytest.mark.parametrize("shape", [TreeShape(4, 1, 5), TreeShape(4, 3, 12), None], ids=str)
def test_carried_state_equals_a_fresh_prefill(
    target: Target, head: Head, prompts: list[list[int]], shape: TreeShape | None
) -> None:
    """After drafts, rejections, moves and catching up (shape None: random plans), nothing has drifted."""
    engine = Engine(target, head, tree=shape)
    if shape is None:
        rng = random.Random(0)
        plans = [RoundPlan(PLAIN), RoundPlan(TreeShape(2, 4, 8)), RoundPlan(TreeShape(4, 4, 16))]
        engine._core._planner.choose = lambda requests, behind: rng.choice(plans)  # type: ignore[method-assign]
    contexts = _serve(engine, prompts[:4], steps=9)
    if shape is None:
        engine._core._planner.choose = lambda requests, behind: plans[1]  # type: ignore[method-assign]
        for number, tokens in _serve_on(engine, 1).items():
            contexts[number] = contexts[number] + tokens
    carried, read = _copy(engine)
    fresh = Engine(target, head, tree=shape)
    fresh._core._planner.pays = lambda requests: True  # type: ignore[method-assign]
    _serve(fresh, [context[:-1] for context in contexts.values()], steps=0)
    _prefill_only(fresh)
    again, anew = _copy(fresh)
    assert again.length.tolist() == carried.length.tolist()
    assert again.bonus.tolist() == carried.bonus.tolist()
    topk = min(read.first_token_ids.shape[1], anew.first_token_ids.shape[1])
    assert anew.first_token_ids[:, :topk].tolist() == read.first_token_ids[:, :topk].tolist()
    torch.testing.assert_close(anew.first_log_probs, read.first_log_probs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(anew.hidden, read.hidden, rtol=1e-3, atol=1e-3)


def _serve(engine: Engine, prompts: list[list[int]], steps: int) -> dict[int, list[int]]:
    params = SamplingParams(max_tokens=100, ignore_eos=True)
    contexts = {engine.submit(prompt, params): list(prompt) for prompt in prompts}
    for number, tokens in _serve_on(engine, steps).items():
        contexts[number] += tokens
    return contexts


def _serve_on(engine: Engine, steps: int) -> dict[int, list[int]]:
    got: dict[int, list[int]] = {}
    for _ in range(steps):
        for result in engine.step():
            got.setdefault(result.request_id, []).extend(result.token_ids)
    return got


def _prefill_only(engine: Engine) -> None:
    with torch.inference_mode():
        engine._core._prefill()


def _copy(engine: Engine) -> tuple[Carried, HeadState]:
    batch, eagle = engine._core._batch, engine._core._drafter
    assert isinstance(eagle, Eagle)
    state = eagle.view(batch.size)
    return Carried(*(t.clone() for t in batch.view())), HeadState(*(t.clone() for t in state))
