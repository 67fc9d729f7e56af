"""What an engine has learnt about its head: how far its probabilities can be trusted, and how they spread.

A node's cumulative probability is the head's estimate that the node is accepted. Heads are over- or underconfident,
and more so the deeper they feed on themselves, so each depth has its own factor:

    calibration[d]  =  requests whose accepted path reached depth d  /  summed probabilities of the nodes at depth d

Everything decays, so that a change of traffic shows within some hundred rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

_DECAY = 0.98  # per round
_PRIOR = 3.0  # observations a first guess is worth
_RANKS = 8  # candidates per depth that are told apart
# Of a head nothing is known about: the best candidate, and each deeper level's share of the one above.
_PRIOR_BEST, _PRIOR_NEXT = 0.6, 0.65
_PRIOR_RANK = 0.25  # each further candidate's share of the one before


class Beliefs:
    """Calibration and average probabilities by depth; index 0 is the root."""

    def __init__(self, depth: int, topk: int, reach: int | None = None) -> None:
        """Of `depth` levels the head drafts; trees may reach deeper by other means."""
        reach = reach or depth
        ranks = min(_RANKS, max(topk, 2))
        levels = np.arange(depth)[:, None]
        # [D, R], calibrated
        self.mass = _PRIOR_BEST * _PRIOR_NEXT**levels * _PRIOR_RANK ** np.arange(ranks)[None]
        self._seen = np.full(depth, _PRIOR)
        self._next = np.full(depth, _PRIOR_NEXT)  # [d]: from depth d to d + 1
        self._reached = [0.0] * (reach + 1)
        self._predicted = [0.0] * (reach + 1)
        self.calibration = [1.0] * (reach + 1)

    def observe(self, depths: Sequence[int], masses: Sequence[float]) -> None:
        """A round's accepted depths, one per speculating request, and its nodes' summed probabilities by depth."""
        for sums in (self._reached, self._predicted):
            sums[:] = [before * _DECAY for before in sums]
        for depth, mass in enumerate(masses, start=1):
            if not mass > 0:  # nor if it isn't a number
                break
            self._reached[depth] += sum(d >= depth for d in depths)
            self._predicted[depth] += mass
        guess = 1.0  # a depth of which little is known does as the one above
        for depth in range(1, len(self.calibration)):
            guess = (self._reached[depth] + _PRIOR * guess) / (self._predicted[depth] + _PRIOR)
            self.calibration[depth] = guess

    def observe_levels(self, levels: Sequence[Tensor], depth: int) -> None:
        """A tree's drafted levels, [B, C_d] cumulative log probabilities each, of at most `depth` in this round."""
        before = 0.0
        for level, scores in enumerate(levels, start=1):
            count = min(self.mass.shape[1], scores.shape[1])
            known = scores.nan_to_num(-np.inf).numpy()  # one request's overflow would be remembered for ever
            best = np.exp(np.sort(known, 1)[:, : -count - 1 : -1]).mean(0) * self.calibration[level]
            step = 1 / min(self._seen[level - 1] + 1, 1 / (1 - _DECAY))
            row = self.mass[level - 1]
            row[:count] += step * (best - row[:count])
            row[count:] = row[count - 1] * _PRIOR_RANK ** np.arange(1, len(row) - count + 1)
            self._seen[level - 1] += 1
            if level > 1 and before > 0:
                kept = min(best.sum() / before, 1.0)
                self._next[level - 1] += (1 - _DECAY) * 2 * (kept - self._next[level - 1])
            before = best.sum()
        if len(levels) < depth:  # the rest promised too little to be drafted
            self.mass[len(levels) :] *= _DECAY
            self._seen[len(levels) :] += 1

    @property
    def next_levels(self) -> list[float]:
        """`next_level` of every depth the head drafts."""
        found: list[float] = self._next.tolist()
        return found

    def next_level(self, level: int) -> float:
        """Share of level `level`'s probability that the best of level + 1 are expected to keep."""
        return float(self._next[level]) if level < len(self.mass) else 0.0

    def best_nodes(self, depth: int, topk: int) -> np.ndarray:
        """Cumulative probability of the best 1, 2, ... nodes of an average tree."""
        mass = self.mass[:depth, :topk].copy()
        for level in range(1, depth):
            if self._seen[level] <= _PRIOR:  # never drafted: goes on as it did above
                mass[level] = mass[level - 1] * self._next[min(level, self._deepest_known())]
        return np.sort(mass.ravel())[::-1].cumsum()

    def _deepest_known(self) -> int:
        known = np.flatnonzero(self._seen[1:] > _PRIOR)
        return int(known[-1]) + 1 if len(known) else 1
