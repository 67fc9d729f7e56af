"""Costs follow what rounds take: curves, extras and the machine's pace are told apart, whatever the machine does."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from fledge.engine import PLAIN, TreeShape
from fledge.engine.planner.cost import CostCurve, CostModel, Kind, LearntCosts, head_forwards

TRUE = CostModel(
    CostCurve((1, 4, 8, 16, 32), (0.010, 0.011, 0.012, 0.015, 0.022)),
    CostCurve((1, 16, 64), (0.0007, 0.0008, 0.0012)),
)


def chain(nodes: int) -> TreeShape:
    return TreeShape(nodes - 1, 1, nodes) if nodes > 1 else PLAIN


def served(
    costs: LearntCosts,
    sizes: list[int],
    rounds: int,
    *,
    slower: float = 1.0,
    extra: float = 1.0,
    seed: int = 1,
) -> None:
    """Rounds of one request that verify so many nodes, as TRUE has it but for noise, `slower` times as slow."""
    rng = random.Random(seed)
    for number in range(rounds):
        shape = chain(sizes[number % len(sizes)])
        kind = Kind.HEAD if shape.depth else Kind.PLAIN
        honest = TRUE.round_seconds(1, shape) * (extra if kind else 1.0)
        seconds = honest * slower * math.exp(rng.gauss(0.0, 0.03))
        costs.learn(kind, 1, shape, shape.depth, shape.nodes, seconds)


def ratio(costs: LearntCosts, nodes: int) -> float:
    """Predicted seconds of a round over a plain one's."""
    model = costs.model
    return model.round_seconds(1, chain(nodes)) * costs.extra(Kind.HEAD) / model.plain_seconds(1)


def test_costs_are_interpolated_and_extended() -> None:
    curve = CostCurve((1, 2, 4), (1.0, 2.0, 6.0))
    assert [curve.at(rows) for rows in (1, 2, 3, 4, 6)] == [1.0, 2.0, 4.0, 6.0, 10.0]
    rows = np.arange(1, 8)
    assert curve.over(rows).tolist() == [curve.at(int(n)) for n in rows]
    assert CostCurve((3,), (2.0,)).at(7) == 2.0
    flat = CostCurve((1, 2), (3.0, 2.0))  # as noise may have it
    assert [flat.at(rows) for rows in (1, 2, 64)] == [3.0, 2.0, 2.0]


def test_a_round_is_the_sum_of_its_forwards() -> None:
    tree = TreeShape(4, 2, 9)
    assert list(head_forwards(3, tree)) == [
        (6, 3),
        (15, 1),
    ]  # three draft steps, and 4 drafts and the bonus token
    assert list(head_forwards(3, tree, levels=2)) == [(6, 1), (15, 1)]
    assert list(head_forwards(3, TreeShape(1, 2, 3))) == [(6, 1)]  # the first level is carried: extend alone
    assert list(head_forwards(3, PLAIN)) == list(head_forwards(3, TreeShape(0, 1, 5, 4))) == []
    costs = CostModel(
        CostCurve((1, 100), (1.0, 100.0)), CostCurve((1, 100), (0.01, 1.0))
    )  # a second a row; a tenth
    assert costs.plain_seconds(3) == pytest.approx(3.0)
    assert costs.round_seconds(3, tree) == pytest.approx(27 + 3 * 0.06 + 0.15)
    assert costs.round_seconds(3, tree, levels=2, rows=20) == pytest.approx(20 + 0.06 + 0.15)
    assert costs.round_seconds(3, TreeShape(0, 1, 5, 4)) == pytest.approx(15.0)


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_seconds_are_told_as_they_would_be_at_the_usual_pace(slower: float) -> None:
    costs = LearntCosts(TRUE)
    served(costs, [1], 60, slower=slower)
    usual, as_expected = costs.learn(Kind.PLAIN, 1, PLAIN, 0, 1, slower * TRUE.plain_seconds(1))
    assert usual == pytest.approx(TRUE.plain_seconds(1), rel=0.1)
    assert as_expected


@pytest.mark.parametrize("mistaken", [0.25, 4.0])
def test_a_curve_measured_four_times_too_high_or_low_is_right_after_some_rounds(mistaken: float) -> None:
    wrong = [
        seconds * (mistaken if rows > 1 else 1.0)
        for rows, seconds in zip(TRUE.target.rows, TRUE.target.seconds, strict=True)
    ]
    costs = LearntCosts(CostModel(CostCurve(TRUE.target.rows, tuple(wrong)), TRUE.head))
    served(costs, [1, 8, 16, 1, 4], 100)
    for nodes in (4, 8, 16):
        assert ratio(costs, nodes) == pytest.approx(TRUE.round_seconds(1, chain(nodes)) / 0.010, rel=0.2)


def test_what_is_learnt_of_one_size_moves_larger_ones_of_which_nothing_is_known() -> None:
    wrong = CostCurve(TRUE.target.rows, (0.010, 0.022, 0.024, 0.030, 0.044))
    costs = LearntCosts(CostModel(wrong, TRUE.head))
    served(costs, [1, 8], 60)
    assert costs.model.target.at(32) < 0.75 * 0.044


@pytest.mark.parametrize("slower", [0.6, 2.5])
def test_the_machines_pace_is_not_the_curves(slower: float) -> None:
    costs = LearntCosts(TRUE)
    served(costs, [1, 8, 4, 16], 100)
    served(costs, [8], 40, slower=slower)  # nothing but rounds of one kind meets the slow spell
    assert ratio(costs, 8) == pytest.approx(TRUE.round_seconds(1, chain(8)) / 0.010, rel=0.1)
    served(costs, [8, 1], 40)
    assert ratio(costs, 8) == pytest.approx(TRUE.round_seconds(1, chain(8)) / 0.010, rel=0.06)


@pytest.mark.parametrize("extra", [0.9, 1.25])
def test_what_a_kind_of_round_adds_is_found_on_a_moody_machine(extra: float) -> None:
    costs, rng = LearntCosts(TRUE), random.Random(2)
    for seed in range(60):
        served(costs, [1, 8], 20, slower=rng.choice([1.0, rng.uniform(1.2, 2.0)]), extra=extra, seed=seed)
    assert ratio(costs, 8) == pytest.approx(extra * TRUE.round_seconds(1, chain(8)) / 0.010, rel=0.05)


def test_noise_alone_does_not_bend_the_curve() -> None:
    costs, rng = LearntCosts(TRUE), random.Random(1)
    for number in range(4000):
        nodes = 1 if number % 100 == 0 else 8  # hardly a plain round among them
        shape = chain(nodes)
        seconds = TRUE.round_seconds(1, shape) * math.exp(rng.gauss(0.0, 0.2))
        costs.learn(Kind.HEAD if shape.depth else Kind.PLAIN, 1, shape, shape.depth, nodes, seconds)
    assert ratio(costs, 8) == pytest.approx(TRUE.round_seconds(1, chain(8)) / 0.010, rel=0.15)


def test_an_absurd_round_is_soon_forgotten() -> None:
    costs = LearntCosts(TRUE)
    served(costs, [1, 8], 100)
    before = ratio(costs, 8)
    costs.learn(Kind.HEAD, 1, chain(8), 7, 8, 1e6)
    costs.learn(Kind.HEAD, 1, chain(8), 7, 8, 0.0)
    served(costs, [1, 8], 10)
    assert ratio(costs, 8) == pytest.approx(before, rel=0.1)


def test_a_size_that_is_not_used_is_hoped_to_be_cheaper_until_it_is_tried() -> None:
    costs = LearntCosts(TRUE)
    served(costs, [1, 4], 400)
    hoped = costs.hoped(1).target
    assert hoped.at(32) < 0.85 * costs.model.target.at(32)
    assert hoped.at(4) > 0.88 * costs.model.target.at(4)
    assert hoped.at(1) == pytest.approx(costs.model.target.at(1))
    served(costs, [32, 1], 20)
    assert costs.hoped(1).target.at(32) / costs.model.target.at(32) > hoped.at(32) / 0.022


def test_rounds_at_the_usual_pace_are_told_from_surprises() -> None:
    costs = LearntCosts(TRUE)
    served(costs, [1, 8], 100)
    usual, expected = costs.learn(Kind.PLAIN, 1, PLAIN, 0, 1, 0.0102)
    assert expected
    assert usual == pytest.approx(0.010, rel=0.05)
    assert not costs.learn(Kind.PLAIN, 1, PLAIN, 0, 1, 0.030)[1]
