"""Cost curves as serving corrects them.

A curve that was measured in a slow moment may say that larger forwards are dear, and then they would never be tried. So
its points are as uncertain as they are little known. A timing moves them accordingly, like a Kalman filter's state:

    log seconds  =  mood  +  log curve(rows)  +  noise

The machine's mood wanders from round to round and is that of all sizes; of the points a timing tells by the difference
from the rounds just before. Points are taken for independent, but that larger sizes of which little is known move along
with smaller ones. Plans are made with what may be hoped for: a size that isn't used looks better and better, until it
is tried.
"""

from __future__ import annotations

import math
from bisect import bisect_left

from fledge.engine.cost import CostCurve

# Variances of logarithms: of a timing's noise, of the mood before it,
_NOISE, _MOOD = 0.05**2, 0.065**2
_FIRST, _MOST = 0.1**2, 0.35**2  # of a point as measured at start, and at most
_SEEN, _UNSEEN = 0.003**2, 0.01**2  # what a timing adds to those of the points it tells of, and of all others
_SURPRISE = 9.0  # times the variance expected: the mood has changed
_LARGEST = math.log(2)  # a single timing further off says no more than this


class LearntCurve:
    """A cost curve, and how well its points are known."""

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve  # as it most probably is,
        self.hoped = curve  # and a standard deviation below
        self._variances = [_FIRST] * len(curve.rows)

    def learn(self, rows: int, seconds: float, mood: float) -> float:
        """Take in what a forward of this many rows took. `mood` is a logarithm; returns the new one."""
        curve, values = self.curve, list(self.curve.seconds)
        shares = self._shares(rows)
        known = [
            min(variance + (_SEEN if point in shares else _UNSEEN), _MOST)
            for point, variance in enumerate(self._variances)
        ]
        surprise = math.log(max(seconds, 1e-9) / curve.at(rows)) - mood
        surprise = min(max(surprise, -_LARGEST), _LARGEST)
        variance = _MOOD + _NOISE + sum(share * share * known[point] for point, share in shares.items())
        jump = max(surprise**2 / _SURPRISE - variance, 0.0)
        variance += jump
        for point, share in shares.items():
            step = share * known[point] / variance * surprise
            values[point] *= math.exp(step)
            known[point] *= 1 - share * share * known[point] / variance
        for larger in range(max(shares) + 1, len(values)):
            values[larger] *= math.exp(step * min(known[larger] / _FIRST, 1.0))
        self.curve, self._variances = CostCurve(curve.rows, tuple(values)), known
        hoped = [value * math.exp(-math.sqrt(one)) for value, one in zip(values, known, strict=True)]
        self.hoped = CostCurve(curve.rows, tuple(hoped))
        return mood + (_MOOD + jump) / variance * surprise

    def _shares(self, rows: int) -> dict[int, float]:
        """Of which points, in ascending order, a forward of this many rows tells, and what part of it is theirs."""
        sizes, seconds = self.curve.rows, self.curve.seconds
        right = min(bisect_left(sizes, rows), len(sizes) - 1)
        if right == 0 or rows >= sizes[right]:
            return {right: 1.0}
        part = (rows - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        whole = self.curve.at(rows)
        return {right - 1: (1 - part) * seconds[right - 1] / whole, right: part * seconds[right] / whole}
