"""A fall of acceptance is noticed, chance isn't."""

from __future__ import annotations

import random

from fledge.learn.live import LiveTau


def add(live: LiveTau, accepted: float, requests: int, seed: int = 0) -> None:
    rng = random.Random(seed)
    for _ in range(requests):
        rounds = rng.randint(20, 60)
        live.add(round(rounds * rng.uniform(0.8, 1.2) * accepted), rounds)


def test_a_head_that_does_worse_is_noticed() -> None:
    live = LiveTau()
    add(live, 1.5, 100)
    live.swapped()
    add(live, 1.0, 100)
    assert live.fell()
    assert live.tau() is not None
    assert abs(live.tau() - 2.0) < 0.1


def test_one_that_does_as_well_or_better_is_not() -> None:
    for after in (1.5, 1.8):
        live = LiveTau()
        add(live, 1.5, 100)
        live.swapped()
        add(live, after, 100, seed=1)
        assert not live.fell()


def test_a_few_requests_decide_nothing() -> None:
    live = LiveTau()
    add(live, 1.5, 100)
    live.swapped()
    add(live, 0.2, 10)
    assert not live.fell()


def test_there_is_nothing_to_fall_below_at_first_and_after_going_back() -> None:
    live = LiveTau()
    live.add(0, 0)
    assert live.tau() is None
    add(live, 0.2, 100)
    assert not live.fell()
    live.swapped()
    live.swapped(back=True)
    add(live, 0.1, 100)
    assert not live.fell()
