"""The planner takes the way to decode that pays; and whatever it takes, the answer is the same."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from fledge.engine import PLAIN, Engine, TreeShape, build
from fledge.engine.planner import AdaptivePlanner, CostCurve, CostModel, FinishedRound, Kind, RoundPlan
from fledge.engine.planner.acceptance import AcceptanceModel
from fledge.engine.planner.planner import _HostSeconds
from fledge.engine.shapes import MAX_DEPTH
from fledge.engine.stats import Counts
from fledge.target.target import Target
from tests.engine.conftest import SHAPES, Greedy, eagle, scripted_head
from tests.engine.devices import Draft, Moment, draft, plain_drafts

# A decode step of 10 ms, nearly flat up to 16 rows; a draft step of 0.7 ms.
COST = CostModel(
    CostCurve((1, 16, 32, 64, 128), (0.010, 0.012, 0.014, 0.020, 0.034)),
    CostCurve((1, 16, 64), (0.0007, 0.0008, 0.0012)),
)


def planner(*, confident: bool = True, **more: object) -> AdaptivePlanner:
    return AdaptivePlanner(COST, 8, confident, **more)  # type: ignore[arg-type]


def serve(
    planner: AdaptivePlanner,
    requests: int,
    rounds: int,
    right: float,
    *,
    claimed: float | None = None,
    late: int = 0,
) -> list[TreeShape]:
    """Rounds whose drafts are right so often, of which the head claims `claimed`; returns their shapes.

    `late`: positions that the head has to catch up on whenever it didn't run in the round before.
    """
    dice, rng = random.Random(1), np.random.default_rng(1)
    moment, shapes, behind = Moment(1.0, right, claimed or right), [], 0
    for _ in range(rounds):
        plan = planner.choose(requests, behind=partial(int, behind))
        made: Draft | None = draft(plan, [moment] * requests, rng) if plan.kind is not Kind.PLAIN else None
        shape = made.trees.shape if made else PLAIN
        seconds = COST.target.at(made.trees.rows if made else requests)
        seconds += COST.head_seconds(requests, shape, len(made.trees.levels)) if made else 0.0
        caught_up = COST.head.at(behind) if made and behind else 0.0
        behind = 0 if made else late
        accepted = made.accepted if made else [0] * requests
        took = (seconds + caught_up) * dice.uniform(0.97, 1.05)
        trees = made.trees if made else plain_drafts(requests)
        planner.learn(FinishedRound(plan, trees, None, [()] * requests, accepted, took, caught_up, 0.0))
        shapes.append(shape)
    return shapes


def deep(shapes: list[TreeShape]) -> float:
    return sum(shape.depth for shape in shapes) / len(shapes)


@pytest.mark.parametrize("confident", [True, False])
@pytest.mark.parametrize("requests", [1, 3, 16])
def test_every_batch_size_begins_with_a_plain_round_and_a_try_of_the_head(
    requests: int, confident: bool
) -> None:
    """Whatever is believed: here costs say that nothing but plain decode can pay."""
    dear = CostModel(CostCurve((1, 16, 32, 64, 128), (0.010, 0.5, 1.0, 2.0, 4.0)), COST.head)
    one = AdaptivePlanner(dear, 8, confident)
    for size in (requests, requests + 20):
        kinds = []
        for _ in range(8):
            plan = one.choose(size)
            kinds.append(plan.kind is not Kind.PLAIN)
            one.learn(FinishedRound(plan, plain_drafts(size), None, [()] * size, [0] * size, 0.010, 0.0, 0.0))
        assert not kinds[0]
        assert kinds[1]


def test_what_the_head_has_to_catch_up_on_is_part_of_what_a_try_costs() -> None:
    def tries(late: int) -> int:
        one = planner()
        serve(one, 16, 200, 1e-4, claimed=2e-3)
        plans, size, rng = 0, 16, np.random.default_rng(1)
        for _ in range(3000):
            plan = one.choose(size, behind=partial(int, late))
            plans += plan.kind is not Kind.PLAIN
            caught_up, trees = 0.0, plain_drafts(size)
            if plan.kind is Kind.HEAD:
                caught_up = COST.head.at(late)
                trees = draft(plan, [Moment(1.0, 1e-4, 2e-3)] * size, rng).trees
            one.learn(
                FinishedRound(plan, trees, None, [()] * size, [0] * size, 0.012 + caught_up, caught_up, 0.0)
            )
        return plans

    assert tries(16) > tries(400 * 16) > 0
    assert tries(10**7) == 0


def test_speculation_does_not_begin_where_catching_up_takes_longer_than_it_saves() -> None:
    one = planner()
    serve(one, 16, 4, 0.8)
    assert one.choose(16, behind=lambda: 16) is not None
    assert one.choose(16, behind=lambda: 10**6) is not None  # decided already
    one._size(16).quiet = 0
    assert one.choose(16, behind=lambda: 10**6).kind is Kind.PLAIN


def test_a_prompt_is_run_again_for_the_head_where_that_saves_more() -> None:
    good, useless = planner(), planner()
    serve(good, 1, 400, 0.9)
    assert good.rereads(500, 1000, 1)
    assert not good.rereads(5000, 100, 1)
    assert not good.rereads(500, 0, 1)
    serve(useless, 1, 400, 1e-4, claimed=2e-3)
    assert not useless.rereads(1, 100_000, 1)


def test_prompts_are_run_through_the_head_until_it_was_tried_and_where_it_pays() -> None:
    good, useless = planner(), planner()
    assert useless.pays(4)
    serve(good, 4, 300, 0.9)
    serve(useless, 4, 300, 1e-4, claimed=2e-3)
    assert good.pays(4)
    assert not useless.pays(4)


def test_an_overconfident_head_is_seen_through() -> None:
    one = planner()
    serve(one, 1, 400, 0.3, claimed=0.95)
    assert one.speeds.acceptance.calibration[1] < 0.5
    assert deep(serve(one, 1, 200, 0.3, claimed=0.95)) < deep(serve(planner(), 1, 50, 0.95)) / 2


def test_trees_follow_the_confidence_of_the_round() -> None:
    one = planner()
    serve(one, 1, 200, 0.7)
    assert deep(serve(one, 1, 4, 0.7, claimed=0.95)) > deep(serve(one, 1, 4, 0.7, claimed=0.1)) + 2


@pytest.mark.parametrize("confident", [True, False])
def test_speculation_comes_back_when_the_head_becomes_useful(confident: bool) -> None:
    one = planner(confident=confident)
    shapes = serve(one, 1, 400, 1e-4, claimed=2e-3)
    assert shapes[-100:].count(PLAIN) > 90
    assert all(shape.depth > 0 for shape in serve(one, 1, 3000, 0.8)[-2:])


@pytest.mark.parametrize("confident", [True, False])
def test_another_head_is_tried_at_once_and_used_where_it_pays(confident: bool) -> None:
    one = planner(confident=confident)
    serve(one, 1, 2000, 1e-4, claimed=2e-3)
    one.forget_head()
    assert all(shape.depth > 0 for shape in serve(one, 1, 60, 0.8)[-20:])


def test_a_single_slow_round_does_not_upset_the_plan() -> None:
    one = planner()
    serve(one, 1, 300, 0.8)
    plan = one.choose(1)
    made = draft(plan, [Moment(1.0, 0.8, 0.8)], np.random.default_rng(0))  # type: ignore[arg-type]
    one.learn(FinishedRound(plan, made.trees, None, [()], made.accepted, 5.0, 0.0, 0.0))
    assert serve(one, 1, 8, 0.8).count(PLAIN) < 3


@pytest.mark.parametrize("slower", [1.05, 0.8])
def test_copies_are_asked_for_where_they_pay(slower: float) -> None:
    one = AdaptivePlanner(
        CostModel(COST.target, CostCurve((1,), (2.0,))), 4, True, lookup=7
    )  # so slow a head
    asked = 0
    for _ in range(1200):
        plan = one.choose(4, behind=lambda: 1)
        asked += plan.kind is not Kind.PLAIN
        seconds = COST.plain_seconds(4) * (slower if plan.kind is not Kind.PLAIN else 1.0)
        one.learn(FinishedRound(plan, plain_drafts(4), None, [()] * 4, [0] * 4, seconds, 0.0, 0.0))
    assert asked < 100 if slower > 1 else asked > 900


def test_of_rounds_that_are_the_rule_every_fourth_is_learnt_from() -> None:
    one, learnt = planner(), []
    serve(one, 1, 300, 0.9)
    learn = one.speeds.learn
    one.speeds.learn = lambda *given, **more: (learnt.append(1), learn(*given, **more))[1]  # type: ignore[method-assign, func-returns-value]
    shapes = serve(one, 1, 80, 0.9)
    exceptions = shapes.count(PLAIN)
    assert 20 - exceptions <= len(learnt) - exceptions <= 20


@pytest.mark.parametrize(("confident", "at_once"), [(True, {0, 4}), (False, {0, 1})], ids=["CPU", "GPU"])
def test_on_a_cpu_four_usual_rounds_are_learnt_from_at_once(confident: bool, at_once: set[int]) -> None:
    one = planner(confident=confident)
    serve(one, 1, 300, 0.9)
    learn, counts = one.speeds.learn, list[int]()

    def counted(*given: Any, **more: Any) -> float:
        counts[-1] += 1
        return learn(*given, **more)

    one.speeds.learn = counted  # type: ignore[method-assign]
    for _ in range(64):
        counts.append(0)
        if serve(one, 1, 1, 0.9) == [PLAIN]:  # a try is learnt from at once, with what waits
            counts.pop()
    assert set(counts) == at_once


def test_a_head_that_no_longer_fits_is_given_up_soon() -> None:
    one = planner()
    assert serve(one, 1, 600, 0.9).count(PLAIN) < 60
    serve(one, 1, 800, 1e-4, claimed=0.9)
    assert serve(one, 1, 100, 1e-4, claimed=0.9).count(PLAIN) > 90


def test_the_host_belongs_to_the_kind_of_round_it_followed() -> None:
    host, exposed = _HostSeconds(), 0.0
    for number in range(200):
        kind = Kind.HEAD if number % 4 else Kind.PLAIN
        found = host.of_round(kind, exposed)
        exposed += 0.5 if kind else 0.1
        if number > 5:
            assert found == pytest.approx(0.5 if kind else 0.1)
    exposed += 100.0  # someone else had the machine
    host.of_round(Kind.HEAD, exposed)
    assert host.of_round(Kind.HEAD, exposed + 0.5) < 1.0


def test_a_depth_of_which_little_is_known_does_as_the_one_above() -> None:
    model = AcceptanceModel(8, 2)
    for _ in range(100):  # half of what the head says, and seldom anything below depth 2
        model.observe([0], [0.8])
        model.observe([1], [0.8])
    model.observe([0], [0.8, 0.7, 0.6])
    assert model.calibration[1] == pytest.approx(0.625, rel=0.1)
    assert 0.4 < model.calibration[3] < model.calibration[2] < model.calibration[1]
    assert model.calibration[8] == pytest.approx(model.calibration[3])


def test_what_is_no_number_is_not_remembered() -> None:
    """One request that overflows in float16 would end speculation for all, until the engine is restarted."""
    model, level = AcceptanceModel(8, 2), torch.tensor([[-0.5, -1.5]])
    for _ in range(100):
        model.observe([1, 1], [1.0, 0.8])
        model.observe_levels([level, level - 0.5], 8)
    before = [*model.calibration, *model.next_levels, *model.best_nodes(2, 2)]
    model.observe([0, 1], [math.nan, math.nan])
    model.observe_levels([level * math.nan, level], 8)
    after = [*model.calibration, *model.next_levels, *model.best_nodes(2, 2)]
    assert after == pytest.approx(before, rel=0.1)


def test_levels_that_rounds_leave_out_are_expected_to_bring_nothing() -> None:
    drafted, left_out = AcceptanceModel(8, 1), AcceptanceModel(8, 1)
    for _ in range(100):
        drafted.observe_levels([torch.tensor([[-0.5]])], 1)  # trees of one level
        left_out.observe_levels([torch.tensor([[-0.5]])], 4)  # the round might have drafted three more
    first = math.exp(-0.5)
    assert drafted.best_nodes(1, 1)[0] == pytest.approx(first, rel=0.1)
    assert drafted.best_nodes(4, 1)[-1] > 1.5 * first  # nothing is known of deeper levels: a guess
    assert left_out.best_nodes(4, 1)[-1] < 1.2 * first


def test_a_look_at_many_requests_says_more_than_a_look_at_one() -> None:
    """Else a head that drafts nonsense is hoped to be a good one for dozens of rounds of every batch size."""
    model = AcceptanceModel(8, 2)
    model.observe_levels([torch.tensor([[-7.0, -8.0]]).expand(32, 2)], MAX_DEPTH)
    assert model.best_nodes(1, 2)[0] < 0.06  # the first guess is 0.6


def test_statistics_say_which_trees_were_used_and_what_they_brought() -> None:
    counts, shape = Counts(), TreeShape(2, 4, 8)
    for shape_used, tokens in (PLAIN, 2), (shape, 5), (shape, 3):
        counts.count_shape(shape_used, 2, tokens, 0.01)
    first, second = counts.shapes_used()
    assert (first.shape, first.rounds, first.tau) == (shape, 2, 2.0)
    assert (second.shape, second.rounds, second.tau) == (PLAIN, 1, 1.0)


@pytest.mark.parametrize("times", [1.0, 4.0])
def test_a_fresh_engine_drafts_within_its_first_rounds_even_if_verifies_seem_four_times_too_dear(
    target: Target, greedy: Greedy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, times: float
) -> None:
    measure = build.measure_cost

    def mistaken(*given: object) -> CostModel:
        cost = measure(*given)  # type: ignore[arg-type]
        seconds = tuple(
            s * (times if n > 1 else 1.0) for n, s in zip(cost.target.rows, cost.target.seconds, strict=True)
        )
        return CostModel(CostCurve(cost.target.rows, seconds), cost.head)

    monkeypatch.setattr(build, "measure_cost", mistaken)
    head = scripted_head(target, greedy(40), 0.9, best_first=True)
    head.strict = False
    engine = Engine(target, head, max_batch=1)
    (answer,) = engine.generate(prompts[:1], max_tokens=32, ignore_eos=True)
    assert answer.stats.drafted_rounds > 0


def choose_randomly(engine: Engine, rng: random.Random) -> None:
    """Replace the planner's choice."""
    shapes = [PLAIN, *SHAPES]

    def choose(requests: int, *, behind: Callable[[], int]) -> RoundPlan:
        return RoundPlan(rng.choice(shapes))

    engine._core._planner.choose = choose  # type: ignore[method-assign]


@pytest.mark.parametrize("rate", [0.05, 0.9])
def test_adaptive_output_equals_plain_decode(
    target: Target, greedy: Greedy, prompts: list[list[int]], rate: float
) -> None:
    """Plain and speculative rounds alternate; the head catches up each time (the scripted head checks on what)."""
    expected = greedy(30)
    head = scripted_head(target, expected, rate, best_first=True)
    head.strict = False
    engine = Engine(target, head, max_batch=5)
    head.strict = True
    choose_randomly(engine, random.Random(4))
    answers = engine.generate(prompts, max_tokens=30, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert all(answer.stats.drafted_rounds < answer.stats.rounds for answer in answers)


def test_a_plain_tree_is_plain_decode_even_with_a_head(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[:2], max_tokens=9, ignore_eos=True)
    engine = Engine(target, scripted_head(target, expected, 1.0), tree=PLAIN)
    answers = engine.generate(prompts[:2], max_tokens=9, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert answers[0].stats.tau == 1.0
    assert engine.stats().tau == 1.0


def test_a_long_run_of_plain_rounds_restarts_the_head(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[:3], max_tokens=190, ignore_eos=True)
    head = scripted_head(target, expected, 1.0, best_first=True)
    head.strict = False
    engine = Engine(target, head)
    head.strict = True
    pending: list[int] = []

    def choose(requests: int, behind: Callable[[], int]) -> RoundPlan:
        pending.append(behind())
        return RoundPlan(PLAIN if len(pending) <= 170 else TreeShape(4, 4, 16))

    engine._core._planner.choose = choose  # type: ignore[method-assign]
    answers = engine.generate(prompts[:3], max_tokens=190, ignore_eos=True)
    assert pending[1:4] == [3, 6, 9]
    assert (
        max(pending) == pending[170] == 3 * eagle(engine).sizes.pending
    )  # what it can catch up on, and no more
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert answers[0].stats.token_origins[169:177] == [0, 0, 1, 2, 3, 4, 0, 1]
    assert head.restarts > 0


def test_a_head_that_was_not_shown_the_prompt_catches_up(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[:6], max_tokens=20, ignore_eos=True)
    head = scripted_head(target, expected, 1.0, best_first=True)
    head.strict = False
    engine = Engine(target, head)
    head.strict = True
    planner = engine._core._planner
    planner.pays = lambda requests: False  # type: ignore[method-assign]
    planner.choose = lambda requests, behind: RoundPlan(TreeShape(4, 4, 16))  # type: ignore[method-assign]
    answers = engine.generate(prompts[:6], max_tokens=20, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert all(answer.stats.tau > 3 for answer in answers)
