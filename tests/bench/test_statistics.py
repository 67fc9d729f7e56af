"""What is called a difference, and what isn't."""

from __future__ import annotations

import math
import random

import pytest

from fledge.bench.statistics import alternation, bootstrap_median, compare_paired, range_note, relative_noise

REPEATS = 20


def series(
    seed: int, planted: float, noise: float = 0.02, drift: float = 0.25
) -> tuple[list[float], list[float]]:
    """Two configurations in alternation on a machine that slows down by a quarter while they are measured."""
    generator = random.Random(seed)
    plain, other = [], []
    for block in range(REPEATS):
        mood = 10.0 * (1 + drift * block / REPEATS) * (1 + 0.03 * math.sin(block))
        plain.append(mood * math.exp(generator.gauss(0, noise)))
        other.append(mood * (1 + planted) * math.exp(generator.gauss(0, noise)))
    return plain, other


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_slowdown_of_five_percent_is_found(seed: int) -> None:
    found = compare_paired(*series(seed, planted=0.05))
    assert found.significant
    assert found.ratio.value == pytest.approx(1.05, abs=0.025)


def test_a_planted_nothing_is_not_found() -> None:
    wrong = [seed for seed in range(200) if compare_paired(*series(seed, planted=0.0)).significant]
    assert len(wrong) <= 6  # one in a hundred is expected; six of two hundred would be chance once in sixty
    assert not compare_paired(*series(3, planted=0.0)).significant


@pytest.mark.parametrize("repeats", [5, 6, 8, 10])
def test_few_repeats_raise_no_more_false_alarms_than_many(repeats: int) -> None:
    wrong = 0
    for seed in range(200):
        plain, other = series(seed, planted=0.0)
        wrong += compare_paired(plain[:repeats], other[:repeats]).significant
    assert wrong <= 6


def test_what_is_equal_in_most_pairs_is_no_difference() -> None:
    found = compare_paired([1.0] * 30, [1.0] * 20 + [1.5] * 10)
    assert not found.significant


def test_unpaired_drift_would_drown_the_slowdown_that_pairs_show() -> None:
    plain, other = series(0, planted=0.05, noise=0.01)
    assert relative_noise(plain) > 0.05  # type: ignore[operator]
    assert compare_paired(plain, other).noise < 0.05


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    inside = 0
    for seed in range(200):
        generator = random.Random(seed)
        found = bootstrap_median([generator.gauss(5.0, 1.0) for _ in range(25)])
        inside += found.low <= 5.0 <= found.high
    assert 0.88 <= inside / 200 <= 0.99


def test_an_interval_of_many_values_is_that_of_order_statistics() -> None:
    """So many of 101 values lie below their median as heads fall: 50.5, and 19 times of 20 not 9.85 from it."""
    found = bootstrap_median([float(n) for n in range(101)])
    assert (found.value, found.count) == (50.0, 101)
    assert found.low == pytest.approx(50 - 9.85, abs=1)
    assert found.high == pytest.approx(50 + 9.85, abs=1)


@pytest.mark.parametrize("pairs", [3, 8, 9])
def test_the_chance_of_one_sided_pairs_is_that_of_equal_coins(pairs: int) -> None:
    larger = [1.0 + n / 10 for n in range(1, pairs + 1)]
    found = compare_paired([1.0] * pairs, larger)
    assert found.chance == pytest.approx(2 / 2**pairs)  # all heads, or all tails
    assert found.significant == (pairs >= 8)
    assert compare_paired(larger, [1.0] * pairs).chance == found.chance


def test_noise_is_the_standard_deviation_of_what_is_normal_and_outliers_do_not_count() -> None:
    generator = random.Random(1)
    values = [10 * math.exp(generator.gauss(0, 0.05)) for _ in range(4000)]
    assert relative_noise(values) == pytest.approx(0.05, rel=0.05)
    assert relative_noise([*values, *[1e6] * 20]) == pytest.approx(0.05, rel=0.05)


def test_the_same_values_always_give_the_same_interval() -> None:
    values = [3.0, 1.0, 2.0, 5.0, 4.0]
    assert bootstrap_median(values) == bootstrap_median(values)
    assert bootstrap_median([2.0]).low == bootstrap_median([2.0]).high == 2.0
    assert relative_noise([1.0]) is None


def test_the_range_of_few_repeats_is_not_called_a_95_percent_interval() -> None:
    def covered(count: int) -> float:
        """How often the range of so many values holds the median they are drawn about."""
        draws = [random.Random(seed) for seed in range(1000)]
        values = [[draw.gauss(0.0, 1.0) for _ in range(count)] for draw in draws]
        return sum(min(some) < 0 < max(some) for some in values) / len(values)

    assert covered(5) < 0.95 < covered(6)
    assert "takes at least 6" in range_note(2)[0]
    assert range_note(5)
    assert range_note(6) == []


def test_few_repeats_are_never_significant() -> None:
    found = compare_paired([1.0, 1.0], [2.0, 2.0])
    assert not found.significant


def test_alternation_is_abba_and_gives_both_orders_equally_often() -> None:
    orders = list(alternation(["A", "B"], 4))
    assert orders == [["A", "B"], ["B", "A"], ["B", "A"], ["A", "B"]]
    assert "".join(name for order in orders[:2] for name in order) == "ABBA"


def test_unpaired_series_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks must contain one of each"):
        compare_paired([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="no values"):
        bootstrap_median([])
