"""How much slower than predicted rounds are: the machine's pace, and what a kind of round costs beyond its prediction.

Other tenants, clock rates and longer contexts change a machine's pace by tens of percent for a second or less, and
slow all rounds alike. If a slow moment in which there were only rounds of one kind counted against that kind,
speculation would begin and end with what others do on the machine. So a round's measured over predicted seconds are
explained by two factors. As logarithms,

    log(measured / predicted)  =  pace  +  extra[kind]  +  noise           extra[plain] = 0

where `pace` changes from round to round and the extras hardly change. A Kalman filter (R. E. Kalman, 1960) estimates
both; it learns most about an extra where rounds of two kinds follow each other. A sudden jump is put down to the pace.
"""

from __future__ import annotations

import math
from enum import IntEnum

_NOISE = 0.05**2  # variance of a round's log ratio
_WANDER, _CREEP = 0.05**2, 0.003**2  # what a round adds to the variance of the pace, and of an extra
# Variances of what nothing is known of: the pace, and the extras of rounds with the head and of lookup alone.
_FIRST_PACE, _FIRST_EXTRAS = 0.3**2, (0.15**2, 0.03**2)
_SURPRISE = 9.0  # times the variance expected: the machine has changed its pace
_LARGEST = math.log(2)  # a single measurement further off says no more than this
_FORGET_ROUNDS = 64


class Kind(IntEnum):
    """The kinds of round. The values are places in the filter's state [pace, extra[HEAD], extra[LOOKUP]]."""

    PLAIN = 0  # without an extra of its own
    HEAD = 1  # with the head
    LOOKUP = 2  # without the head, prompt lookup was asked


class _Group:
    """What is known of a group of batch sizes: the state [pace, extras], and its covariance."""

    def __init__(self, state: list[float]) -> None:
        self.state = list(state)
        self.covariance = [
            [_FIRST_PACE, 0.0, 0.0],
            [0.0, _FIRST_EXTRAS[0], 0.0],
            [0.0, 0.0, _FIRST_EXTRAS[1]],
        ]
        self.seen = 0  # the last round


class Pace:
    """Measured over predicted seconds, by group of batch sizes."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}
        self._round = 0

    def slower(self, group: int, kind: Kind) -> float:
        """Measured over predicted seconds of a round; of the nearest group that was seen, 1 if none was."""
        state = self._nearest(group)
        return math.exp(state[0] + state[kind] if kind else state[0])

    def extra(self, group: int, kind: Kind) -> float:
        """The kind's own factor in `slower`."""
        return math.exp(self._nearest(group)[kind]) if kind else 1.0

    def observe(self, group: int, kind: Kind, ratio: float) -> None:
        """Take in what a round took, over what was predicted."""
        self._round += 1
        known = self._groups.get(group)
        if known is None:
            known = self._groups[group] = _Group(self._nearest(group))
        state, covariance = known.state, known.covariance
        covariance[0][0] += _WANDER * min(self._round - known.seen, _FORGET_ROUNDS)
        for extra, first in zip((Kind.HEAD, Kind.LOOKUP), _FIRST_EXTRAS, strict=True):
            covariance[extra][extra] = min(covariance[extra][extra] + _CREEP, first)
        known.seen = self._round
        surprise = math.log(max(ratio, 1e-9)) - state[0] - (state[kind] if kind else 0.0)
        surprise = min(max(surprise, -_LARGEST), _LARGEST)
        # The measured sum's covariance with each part of the state; then its own variance.
        shared = [row[0] + (row[kind] if kind else 0.0) for row in covariance]
        variance = shared[0] + (shared[kind] if kind else 0.0) + _NOISE
        jump = max(surprise**2 / _SURPRISE - variance, 0.0)
        covariance[0][0] += jump
        shared[0] += jump
        variance += jump
        for place, mine in enumerate(shared):
            state[place] += mine / variance * surprise
            for other, its in enumerate(shared):
                covariance[place][other] -= mine * its / variance

    def _nearest(self, group: int) -> list[float]:
        known = self._groups.get(group)
        if known is None and self._groups:
            known = self._groups[min(self._groups, key=lambda other: abs(other - group))]
        return known.state if known else [0.0] * len(Kind)
