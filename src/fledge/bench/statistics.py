"""Uncertainty of figures: bootstrap intervals of medians, noise of repeats, and significance of differences.

    repeat   1          2          3
    order    A B B A    B A A B    A B B A        every block contains both, in both orders: drift affects both
    ratio    B1 / A1    B2 / A2    B3 / A3        paired by block, so that slow spells cancel

The interval is a percentile bootstrap (Efron and Tibshirani 1993, chapter 13) of the median of the paired log-ratios,
with a fixed seed: the same rows always give the same report. With few values that interval is too narrow, so a
difference must also pass Wilcoxon's signed-rank test, which is exact for any number of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, NamedTuple, TypeVar

import numpy as np

_Level = TypeVar("_Level")
_Name = TypeVar("_Name")
_RESAMPLES = 4000
_SEED = 20_250_301
_CONFIDENCE = 0.95
# Significance level: one false alarm in a hundred comparisons, not in twenty.
_CHANCE = 0.01
# With fewer values than this, even their full range contains the median less than 95 times in a hundred.
_FEWEST_FOR_INTERVAL = 6


@dataclass(frozen=True)
class Interval:
    """A median and its 95 % interval; with few values (`range_note`) the interval is just their range."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Difference:
    """One configuration against another: `ratio` above 1 means that the figure is larger than the baseline's."""

    ratio: Interval
    chance: float  # p-value: how often equal configurations give ratios as one-sided as these
    noise: float  # typical relative spread of one block against the next: 0.02 is 2 %

    @property
    def significant(self) -> bool:
        """True if the difference is unlikely to be due to chance."""
        return self.chance <= _CHANCE and not self.ratio.low <= 1.0 <= self.ratio.high


def bootstrap_median(values: Sequence[float]) -> Interval:
    """The median with its 95 % percentile bootstrap interval."""
    if not values:
        raise ValueError("no values to take a median of")
    data = np.asarray(values, dtype=np.float64)
    middle = float(np.median(data))
    if len(data) == 1:
        return Interval(middle, middle, middle, 1)
    generator = np.random.default_rng(_SEED)
    picks = generator.integers(0, len(data), size=(_RESAMPLES, len(data)))  # [resample, value]
    medians = np.median(data[picks], axis=1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Interval(middle, float(low), float(high), len(data))


def range_note(repeats: int, option: str = "--repeats") -> list[str]:
    """A note below intervals of too few repeats; empty if there are enough."""
    if not 0 < repeats < _FEWEST_FOR_INTERVAL:
        return []
    return [
        f"With {option} {repeats} an interval is the range they fell in; one of 95 % takes at least "
        f"{_FEWEST_FOR_INTERVAL}."
    ]


def compare_paired(baseline: Sequence[float], other: Sequence[float]) -> Difference:
    """Compare two series measured block by block, `other` over `baseline`."""
    if len(baseline) != len(other):
        raise ValueError(f"{len(baseline)} values against {len(other)}: blocks must contain one of each")
    logs = [math.log(b / a) for a, b in zip(baseline, other, strict=True) if a > 0 and b > 0]
    if not logs:
        raise ValueError("no block contains two positive values")
    middle = bootstrap_median(logs)
    ratio = Interval(math.exp(middle.value), math.exp(middle.low), math.exp(middle.high), middle.count)
    return Difference(ratio, _signed_rank_test(logs), spread(logs))


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of the values that aren't None; None without any."""
    present = [value for value in values if value is not None]
    return median(present) if present else None


def relative_noise(values: Sequence[float]) -> float | None:
    """Typical relative distance of repeats of the same thing from their median; None for fewer than two."""
    positive = [value for value in values if value > 0]
    return spread([math.log(value) for value in positive]) if len(positive) > 1 else None


def spread(logs: Sequence[float]) -> float:
    """A robust standard deviation: 1.4826 times the median distance from the median."""
    data = np.asarray(logs, dtype=np.float64)
    return float(1.4826 * np.median(np.abs(data - np.median(data))))


def alternation(names: Sequence[_Name], blocks: int) -> Iterator[list[_Name]]:
    """The order of each block: A B, B A, A B, ... so that two consecutive blocks are ABBA."""
    for block in range(blocks):
        yield list(names) if block % 4 in (0, 3) else list(reversed(names))


class Turn(NamedTuple, Generic[_Level]):
    """One measurement of an interleaved series: number `number` of `total`, counted from 1."""

    level: _Level
    repeat: int
    name: str
    number: int
    total: int


def interleaved(levels: Sequence[_Level], names: Sequence[str], repeats: int) -> Iterator[Turn[_Level]]:
    """Everything at every level, in measurement order: level by level, in alternation within each."""
    total = len(levels) * repeats * len(names)
    order = (
        (level, repeat, name)
        for level in levels
        for repeat, block in enumerate(alternation(names, repeats))
        for name in block
    )
    for number, (level, repeat, name) in enumerate(order, start=1):
        yield Turn(level, repeat, name, number, total)


def _signed_rank_test(logs: Sequence[float]) -> float:
    """The p-value of Wilcoxon's signed-rank test, two-sided and exact: under equality both signs are equally likely."""
    data = np.asarray(logs, dtype=np.float64)
    sizes = np.abs(data)
    order = np.sort(sizes)
    # Doubled, since ties share ranks, which may be halves.
    ranks = order.searchsorted(sizes, "left") + order.searchsorted(sizes, "right") + 1
    chances = np.ones(1)  # [s]: that the positive ranks sum up to s
    for rank in ranks[data != 0]:
        chances = (np.pad(chances, (0, rank)) + np.pad(chances, (rank, 0))) / 2
    smaller = min(ranks[data > 0].sum(), ranks[data < 0].sum())
    return min(1.0, 2 * float(chances[: smaller + 1].sum()))
