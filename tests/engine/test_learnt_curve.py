"""Cost curves follow what serving measures: their shape, whatever the machine's mood."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from fledge.engine.cost import CostCurve, CostModel, LearntCurve
from fledge.engine.planner import Planner
from tests.engine.test_planner import COST, serve

TRUE = CostCurve((1, 4, 8, 16, 32), (0.010, 0.011, 0.012, 0.015, 0.022))


def served(
    curve: LearntCurve, sizes: list[int], rounds: int, *, slower: float = 1.0, mood: float = 0.0
) -> float:
    """Time rounds of these sizes, as TRUE has it but for noise, `slower` times as slow. Returns the mood."""
    rng = random.Random(1)
    for number in range(rounds):
        rows = sizes[number % len(sizes)]
        mood = curve.learn(rows, TRUE.at(rows) * slower * math.exp(rng.gauss(0.0, 0.03)), mood)
    return mood


def test_timings_move_the_points_beside_them_and_little_known_larger_ones() -> None:
    curve = LearntCurve(
        CostCurve(TRUE.rows, (0.010, 0.011, 0.018, 0.0225, 0.033))
    )  # half as dear again from 8 on
    served(curve, [1, 6, 4, 7], 200)
    assert curve.curve.at(6) / curve.curve.at(1) == pytest.approx(TRUE.at(6) / TRUE.at(1), rel=0.05)
    assert curve.curve.at(4) / curve.curve.at(1) == pytest.approx(1.1, rel=0.05)
    assert curve.curve.at(32) < 0.9 * 0.033


def test_a_curve_whose_last_point_fell_below_the_one_before_costs_no_less_beyond() -> None:
    curve = LearntCurve(CostCurve((1, 2), (0.010, 0.011)))  # as a slow start measures it: two sizes only
    mood = 0.0
    for _ in range(50):
        mood = curve.learn(1, 0.030, mood)
        mood = curve.learn(64, 0.002, mood)
    low, high = curve.curve.seconds
    assert high < low
    assert curve.curve.at(64) == high
    assert curve.curve.over(np.array([1, 2, 64])).tolist() == pytest.approx([low, high, high])


def test_known_points_stay_where_they_are_while_others_move() -> None:
    curve = LearntCurve(TRUE)
    served(curve, [1, 8, 16, 32], 400)
    before = curve.curve.at(32)
    for _ in range(4):
        curve.learn(8, 1.3 * TRUE.at(8), 0.0)
    assert curve.curve.at(32) == pytest.approx(before, rel=0.03)


@pytest.mark.parametrize("slower", [0.6, 2.5])
def test_a_mood_of_the_machine_is_not_the_curves(slower: float) -> None:
    curve = LearntCurve(TRUE)
    mood = served(curve, [1, 8, 4, 16], 100)
    mood = served(curve, [8], 30, slower=slower, mood=mood)
    assert mood == pytest.approx(math.log(slower), abs=0.15)
    assert curve.curve.at(8) / curve.curve.at(1) == pytest.approx(1.2, rel=0.1)


def test_what_is_not_used_is_hoped_for_until_it_is_tried() -> None:
    curve = LearntCurve(TRUE)
    mood = served(curve, [1, 4], 1000)
    assert curve.hoped.at(32) < 0.75 * TRUE.at(32)
    assert curve.hoped.at(1) > 0.95 * curve.curve.at(1)
    assert curve.curve.at(32) == pytest.approx(TRUE.at(32), rel=0.1)
    served(curve, [32], 3, mood=mood)
    assert curve.hoped.at(32) > 0.9 * TRUE.at(32)


@pytest.mark.parametrize("acceptance", [0.65, 0.8])
def test_curves_measured_in_a_slow_moment_do_not_keep_trees_small(acceptance: float) -> None:
    dear = [
        value * (1.0 if rows < 16 else 1.6)
        for rows, value in zip(COST.target.rows, COST.target.seconds, strict=True)
    ]
    tokens, seconds, _ = serve(Planner(COST, topk=8, confident=True), 4, 3000, acceptance)
    planner = Planner(CostModel(CostCurve(COST.target.rows, tuple(dear)), COST.head), topk=8, confident=True)
    serve(planner, 4, 1000, acceptance)
    late, spent, _ = serve(planner, 4, 3000, acceptance, seed=1)
    assert late / spent > 0.97 * tokens / seconds
