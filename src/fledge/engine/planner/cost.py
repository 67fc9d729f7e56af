"""Cost of a round: forwards timed by their rows when an engine starts, and corrected by every round it serves.

For B requests, with T(n) the seconds of a target forward over n rows and H(n) those of the head, a round is predicted
to take

    plain            T(B)
    lookup alone     T(n)                                                   n rows are verified
    with the head    (levels - 1) * H(B * K)  +  T(n)  +  H(B * (depth + 1))          draft, verify and extend

and the measured time is explained by three unknowns: current machine speed, overhead of this kind of round, and the
cost curves:

    log seconds  =  pace  +  extra[kind]  +  log predicted seconds  +  noise              extra[plain] = 0

A Kalman filter (R. E. Kalman, 1960) holds all of these unknowns in one state: it knows how sure it is of each, and so
which of them a surprising round informs. The pace wanders from round to round, as other tenants, clock rates and
longer contexts slow every round alike; extras and curves hardly change. A curve's points are a random walk over sizes:
whatever is learnt of one size moves all larger ones of which nothing else is known, so that a curve measured four times
too high is right after a few rounds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fledge.engine.planner.plan import Kind
from fledge.engine.shapes import TreeShape

# Variances of log seconds: of a round's noise; of the pace, extras and steps between a curve's points before any
# round; and of the change of each of these from one round to the next.
_NOISE = 0.05**2
_FIRST_PACE, _FIRST_LOOKUP, _FIRST_HEAD, _FIRST_STEP = 1.0, 0.03**2, 0.08**2, 0.12**2
_WANDER, _CREEP = 0.05**2, 0.003**2
_SURPRISE = 9.0  # times the variance expected: something has changed
_LARGEST = math.log(2)  # what a single round says at most, unless more was to be expected


@dataclass(frozen=True)
class CostCurve:
    """Seconds by number of rows: linear between the points, and beyond the last two, where it never falls."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, rows: int) -> float:
        """Estimated seconds of a forward with this many rows."""
        return sum(share * self.seconds[point] for point, share in self.shares(rows))

    def shares(self, rows: int) -> list[tuple[int, float]]:
        """The points that `at` is a weighted sum of, and their weights."""
        sizes, seconds = self.rows, self.seconds
        right = min(max(bisect_left(sizes, rows), 1), len(sizes) - 1)
        if right == 0 or (rows > sizes[right] and seconds[right] <= seconds[right - 1]):
            return [(right, 1.0)]
        part = (rows - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return [(right - 1, 1.0 - part), (right, part)]

    def over(self, rows: np.ndarray) -> np.ndarray:
        """`at` for ascending numbers of rows [n]."""
        interpolated = np.interp(rows, self.rows, self.seconds)
        if rows[-1] <= self.rows[-1] or len(self.rows) == 1:
            return interpolated
        last = max(self.seconds[-1] - self.seconds[-2], 0.0) / (self.rows[-1] - self.rows[-2])
        return interpolated + last * np.maximum(rows - self.rows[-1], 0)


@dataclass(frozen=True)
class CostModel:
    """Predicted seconds of a round, from the curves of the target and the head."""

    target: CostCurve
    head: CostCurve

    def round_seconds(
        self, requests: int, shape: TreeShape, levels: int | None = None, rows: int | None = None
    ) -> float:
        """A round that verifies trees of this shape, with the head if the shape has levels of its own.

        `levels` were drafted, where the tree was cut to `shape` after that; `rows` were verified, where requests got
        different numbers of nodes.
        """
        verify = self.target.at(requests * shape.nodes if rows is None else rows)
        return verify + self.head_seconds(requests, shape, levels)

    def head_seconds(self, requests: int, shape: TreeShape, levels: int | None = None) -> float:
        """The head's seconds of such a round: draft steps and extend."""
        return sum(times * self.head.at(size) for size, times in head_forwards(requests, shape, levels))

    def plain_seconds(self, requests: int) -> float:
        """A plain round, of a row per request."""
        return self.target.at(requests)


def head_forwards(requests: int, shape: TreeShape, levels: int | None = None) -> Iterator[tuple[int, int]]:
    """The head's forwards in a round: rows of each kind and how often. None where the head doesn't run."""
    drafted = shape.depth if levels is None else levels
    if drafted > 1:
        yield requests * shape.topk, drafted - 1  # draft steps; the first level is carried
    if drafted:
        yield requests * (shape.depth + 1), 1  # extend


class LearntCosts:
    """A cost model that rounds correct."""

    def __init__(self, measured: CostModel) -> None:
        self.model = measured  # as it most probably is
        self._measured = measured
        targets, heads = len(measured.target.rows), len(measured.head.rows)
        self._target, self._head = slice(3, 3 + targets), slice(3 + targets, 3 + targets + heads)
        self._state = np.zeros(
            3 + targets + heads
        )  # pace, extras by `Kind`, corrections of the curves' points
        self._covariance = np.diag([_FIRST_PACE, _FIRST_LOOKUP, _FIRST_HEAD, *[0.0] * (targets + heads)])
        # Only the points' ratios matter: a factor common to all of the target's is the pace.
        for part, first in (self._target, 0.0), (self._head, _FIRST_STEP):
            walk = first + _FIRST_STEP * np.arange(part.stop - part.start)
            self._covariance[part, part] = np.minimum(walk[:, None], walk)
        self._least_sure = self._covariance.diagonal().copy()
        self._change = np.full(len(self._state), _CREEP)
        self._change[0] = _WANDER

    def extra(self, kind: Kind) -> float:
        """Measured over predicted seconds of rounds of this kind, at the machine's present pace."""
        return math.exp(self._state[kind]) if kind else 1.0

    def hoped(self, requests: int) -> CostModel:
        """Both curves a standard deviation below, by what each size may differ from the target's in a plain round.

        So a size that was measured in a slow spell isn't written off: unused, it gets less sure and looks better and
        better until it is tried.
        """
        rows, covariance = self.model.target.rows, self._covariance
        plain = self._target.start + min(bisect_left(rows, requests), len(rows) - 1)
        variance = covariance.diagonal() + covariance[plain, plain] - 2 * covariance[plain]
        lower = np.exp(-np.sqrt(np.maximum(variance, 0.0)))
        target, head = self.model.target, self.model.head
        return CostModel(
            CostCurve(target.rows, tuple((target.seconds * lower[self._target]).tolist())),
            CostCurve(head.rows, tuple((head.seconds * lower[self._head]).tolist())),
        )

    def learn(
        self, kind: Kind, requests: int, shape: TreeShape, levels: int, rows: int, seconds: float
    ) -> tuple[float, bool]:
        """Learn from a round of `rows` verified rows.

        Returns its seconds as they would be at the usual pace, and whether they were to be expected.
        """
        target, head = self.model.target, self.model.head
        parts = [
            (self._target.start + point, share * target.seconds[point])
            for point, share in target.shares(rows)
        ]
        for size, times in head_forwards(requests, shape, levels):
            parts += [
                (self._head.start + point, times * share * head.seconds[point])
                for point, share in head.shares(size)
            ]
        predicted = max(sum(part for _, part in parts), 1e-9)
        sensitivity = np.zeros(len(self._state))  # how the round's logarithm depends on the state
        sensitivity[0] = sensitivity[kind] = 1.0
        for place, part in parts:
            sensitivity[place] += part / predicted
        expected = self._state[0] + (self._state[kind] if kind else 0.0)
        surprise = math.log(max(seconds, 1e-9) / predicted) - expected
        as_expected = self._update(sensitivity, surprise)
        self.model = CostModel(
            self._corrected(self._measured.target, self._target),
            self._corrected(self._measured.head, self._head),
        )
        return seconds * math.exp(-self._state[0]), as_expected

    def _update(self, sensitivity: np.ndarray, surprise: float) -> bool:
        """The Kalman filter's step: the round's logarithm was off by `surprise`. False if by too much."""
        covariance = self._covariance
        diagonal = np.einsum("ii->i", covariance)  # a view
        diagonal += self._change * (diagonal <= np.maximum(self._least_sure, self._change))
        shared = covariance @ sensitivity
        variance = sensitivity @ shared + _NOISE
        largest = max(_LARGEST, math.sqrt(_SURPRISE * variance))
        surprise = min(max(surprise, -largest), largest)
        jump = surprise**2 / _SURPRISE - variance
        if jump > 0:  # the least certain of the unknowns this round informs has changed most
            covariance += np.outer(shared, shared * (jump / (sensitivity @ shared) ** 2))
            shared = covariance @ sensitivity
            variance = sensitivity @ shared + _NOISE
        self._state += shared * (surprise / variance)
        covariance -= np.outer(shared, shared / variance)
        return jump <= 0

    def _corrected(self, curve: CostCurve, part: slice) -> CostCurve:
        """As measured, times what was learnt; fewer rows never cost more, which bounds sizes not used so far."""
        seconds = np.array(curve.seconds) * np.exp(self._state[part])
        return CostCurve(curve.rows, tuple(np.minimum.accumulate(seconds[::-1])[::-1].tolist()))
