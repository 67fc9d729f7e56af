"""The planner takes the tree that pays, or none; and whatever it takes, the answer is the same."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from fledge.engine import PLAIN, Engine, TreeShape
from fledge.engine.cost import CostCurve, CostModel
from fledge.engine.planner import ADAPTIVE_SHAPES, Planner
from fledge.target.target import Target
from tests.engine.conftest import scripted_head

# A decode step of 10 ms, nearly flat up to 16 rows; a draft step of 0.7 ms.
COST = CostModel(
    CostCurve((1, 16, 32, 64, 128), (0.010, 0.012, 0.014, 0.020, 0.034)),
    CostCurve((1, 16, 64), (0.0007, 0.0008, 0.0012)),
)


def serve(
    planner: Planner, requests: int, rounds: int, acceptance: float, *, seed: int = 0
) -> tuple[float, float]:
    """Tokens and seconds of a simulated run in which every depth is accepted with `acceptance` (a chain's model)."""
    rng = random.Random(seed)
    tokens = seconds = 0.0
    for _ in range(rounds):
        shape = planner.choose(requests)
        depths = []
        for _ in range(requests):
            depth = 0
            while depth < shape.depth and rng.random() < acceptance:
                depth += 1
            depths.append(depth)
        spent = COST.round_seconds(requests, shape) * rng.uniform(0.95, 1.1)
        planner.observe(shape, requests, spent, depths if shape.depth else [])
        tokens += requests + sum(depths)
        seconds += spent
    return tokens, seconds


@pytest.mark.parametrize("requests", [1, 4, 16])
def test_a_useless_head_costs_next_to_nothing(requests: int) -> None:
    planner = Planner(ADAPTIVE_SHAPES, COST)
    serve(planner, requests, 60, 0.0)
    tokens, seconds = serve(planner, requests, 2000, 0.0)
    assert tokens / seconds > 0.97 * requests / (COST.round_seconds(requests, PLAIN) * 1.025)


def test_a_good_head_gets_deep_trees_and_a_fair_one_small_ones() -> None:
    chosen: dict[float, list[TreeShape]] = {}
    for acceptance in (0.9, 0.4):
        planner = Planner(ADAPTIVE_SHAPES, COST)
        serve(planner, 1, 300, acceptance)
        chosen[acceptance] = [planner.choose(1) for _ in range(10)]
    deep, shallow = (max(set(shapes), key=shapes.count) for shapes in (chosen[0.9], chosen[0.4]))
    assert deep.depth > shallow.depth > 0


def test_speculation_comes_back_when_the_head_becomes_useful() -> None:
    planner = Planner(ADAPTIVE_SHAPES, COST)
    serve(planner, 1, 400, 0.0)
    assert planner.choose(1) == PLAIN
    serve(planner, 1, 3000, 0.8)
    shapes = [planner.choose(1) for _ in range(10)]
    assert max(set(shapes), key=shapes.count).depth > 0


def test_measured_times_overrule_the_cost_curve() -> None:
    planner = Planner((PLAIN, TreeShape(2, 1, 3)), COST)
    for _ in range(200):
        shape = planner.choose(1)
        planner.observe(shape, 1, 0.010 if shape == PLAIN else 0.030, [1] if shape.depth else [])
    assert [planner.choose(1) for _ in range(3)].count(PLAIN) >= 2


def test_a_single_slow_round_does_not_upset_the_plan() -> None:
    planner = Planner(ADAPTIVE_SHAPES, COST)
    serve(planner, 1, 300, 0.8)
    best = {planner.choose(1) for _ in range(4)}
    planner.observe(next(iter(best)), 1, 5.0, [1])
    assert any(planner.choose(1).depth for _ in range(6))


def test_costs_are_interpolated_and_extended() -> None:
    curve = CostCurve((1, 2, 4), (1.0, 2.0, 6.0))
    assert [curve.at(rows) for rows in (1, 2, 3, 4, 6)] == [1.0, 2.0, 4.0, 6.0, 10.0]


def test_it_explains_what_it_believes() -> None:
    planner = Planner(ADAPTIVE_SHAPES, COST)
    serve(planner, 2, 100, 0.7)
    rows = planner.explain(2)
    assert [row.shape for row in rows] == list(ADAPTIVE_SHAPES)
    assert rows[0].tau == 1.0
    assert all(a.milliseconds < b.milliseconds for a, b in pairwise(rows[:2]))
    assert sum(row.rounds for row in rows) == 100


@pytest.mark.parametrize("rate", [0.05, 0.9])
def test_adaptive_output_equals_plain_decode(
    target: Target, plain: Engine, prompts: list[list[int]], rate: float
) -> None:
    """Plain and speculative rounds alternate; the head catches up each time (the scripted head checks on what)."""
    expected = plain.generate(prompts, max_tokens=60, ignore_eos=True)
    head = scripted_head(target, expected, rate, best_first=True)
    head.strict = False
    engine = Engine(target, head, max_batch=5)
    head.strict = True
    rng = random.Random(4)
    engine._core._planner.choose = lambda requests: rng.choice([PLAIN, *ADAPTIVE_SHAPES])  # type: ignore[method-assign]
    answers = engine.generate(prompts, max_tokens=60, ignore_eos=True)
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
    assert engine.stats().plan == []


def test_a_long_run_of_plain_rounds_does_not_lose_the_head(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[:3], max_tokens=120, ignore_eos=True)
    head = scripted_head(target, expected, 1.0, best_first=True)
    head.strict = False
    engine = Engine(target, head)
    head.strict = True
    calls = iter(range(10**6))
    deep = TreeShape(4, 4, 16)
    engine._core._planner.choose = lambda requests: PLAIN if next(calls) < 75 else deep  # type: ignore[method-assign]
    answers = engine.generate(prompts[:3], max_tokens=120, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert answers[0].stats.token_origins[74:82] == [0, 0, 1, 2, 3, 4, 0, 1]
