"""What a kind of round costs is told from the machine's pace, whatever the machine does."""

from __future__ import annotations

import random

import pytest

from fledge.engine.pace import Kind, Pace


def moody(rng: random.Random, rounds: int) -> list[float]:
    """A machine that now and then is up to twice as slow for a while, with some noise in every round."""
    factors: list[float] = []
    while len(factors) < rounds:
        slow = rng.choice([1.0, rng.uniform(1.2, 2.0)])
        factors += [slow * rng.uniform(0.95, 1.05) for _ in range(rng.randint(5, 60))]
    return factors[:rounds]


@pytest.mark.parametrize("extra", [0.9, 1.0, 1.25])
@pytest.mark.parametrize("run", [3, 40])
def test_an_extra_is_found_on_a_moody_machine(extra: float, run: int) -> None:
    pace = Pace()
    for number, machine in enumerate(moody(random.Random(run), 1500)):
        drafted = number % (run + 8) < run
        kind = Kind.HEAD if drafted else Kind.PLAIN
        pace.observe(4, kind, 1.1 * machine * (extra if drafted else 1.0))
    assert pace.extra(4, Kind.HEAD) == pytest.approx(extra, rel=0.05)
    assert pace.extra(4, Kind.LOOKUP) == 1.0  # never seen
    assert pace.extra(4, Kind.PLAIN) == 1.0


def test_a_slow_moment_is_not_held_against_the_kind_that_met_it() -> None:
    pace = Pace()
    for number in range(200):
        pace.observe(1, Kind.HEAD if number % 4 else Kind.PLAIN, 1.0)
    for kind in (Kind.PLAIN, Kind.HEAD):
        for _ in range(60):
            pace.observe(1, kind, 1.6)
        assert pace.slower(1, kind) == pytest.approx(1.6, rel=0.02)
        assert pace.extra(1, Kind.HEAD) == pytest.approx(1.0, abs=0.03)
        for _ in range(60):
            pace.observe(1, kind, 1.0)


def test_a_kind_whose_costs_change_is_measured_anew() -> None:
    pace = Pace()
    for extra in (1.0, 1.4, 0.9):
        for number in range(1200):
            pace.observe(8, Kind.LOOKUP if number % 2 else Kind.PLAIN, extra if number % 2 else 1.0)
        assert pace.extra(8, Kind.LOOKUP) == pytest.approx(extra, rel=0.03)


def test_an_absurd_measurement_is_soon_forgotten() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe(1, Kind.PLAIN, 1.0)
    pace.observe(1, Kind.PLAIN, 1e6)
    assert pace.slower(1, Kind.PLAIN) < 2.1
    for _ in range(3):
        pace.observe(1, Kind.PLAIN, 1.0)
    assert pace.slower(1, Kind.PLAIN) == pytest.approx(1.0, rel=0.1)


def test_a_new_batch_size_begins_with_what_is_known_of_the_nearest() -> None:
    pace = Pace()
    assert pace.slower(3, Kind.HEAD) == 1.0
    for _ in range(50):
        pace.observe(2, Kind.PLAIN, 1.5)
        pace.observe(16, Kind.PLAIN, 0.8)
    assert pace.slower(3, Kind.PLAIN) == pytest.approx(1.5, rel=0.02)
    assert pace.slower(12, Kind.PLAIN) == pytest.approx(0.8, rel=0.02)
    pace.observe(3, Kind.PLAIN, 1.0)  # and soon by its own
    assert pace.slower(3, Kind.PLAIN) < 1.1
    assert pace.slower(2, Kind.PLAIN) == pytest.approx(1.5, rel=0.02)


def test_some_dear_rounds_say_little_of_a_kind_that_hardly_differs() -> None:
    pace = Pace()
    for _ in range(50):
        pace.observe(1, Kind.PLAIN, 1.0)
    for _ in range(3):
        pace.observe(1, Kind.LOOKUP, 1.12)
    assert pace.extra(1, Kind.LOOKUP) < 1.03
    for _ in range(500):  # nor does it once nothing was heard of it for long
        pace.observe(1, Kind.PLAIN, 1.0)
    before = pace.extra(1, Kind.LOOKUP)
    pace.observe(1, Kind.LOOKUP, 1.12)
    assert pace.extra(1, Kind.LOOKUP) < before + 0.02
