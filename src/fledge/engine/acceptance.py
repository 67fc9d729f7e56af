"""How many drafted tokens will be accepted: the head's probabilities, calibrated, and averages of them.

A node's cumulative probability is the head's estimate that the node is accepted. Heads are over- or underconfident,
and more so the deeper they feed on their own output, so each depth has its own factor:

    calibration[d]  =  requests whose accepted path reached depth d  /  summed probabilities of the nodes at depth d

Also kept, for plans that can't look at the round's own tree and for levels that aren't drafted yet: the mean
probability of a level's best, second best, ... candidate, and the share of a level's probability that the next level
keeps. Older rounds count for less and less, so that a change of traffic shows within some hundred rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

_DECAY = 0.98  # per round
_PRIOR = 3.0  # observations, of a request in a round, that a first guess is worth
_RANKS = 8  # candidates per depth that are told apart
# Of a head nothing is known about: the best candidate, and each deeper level's share of the one above.
_PRIOR_BEST, _PRIOR_NEXT = 0.6, 0.65
_PRIOR_RANK = 0.25  # each further candidate's share of the one before


class AcceptanceModel:
    """Calibration and mean probabilities by depth."""

    def __init__(self, depth: int, topk: int, reach: int | None = None) -> None:
        """The head drafts `depth` levels of trees of width `topk`; with prompt lookup trees reach depth `reach`."""
        reach = reach or depth
        ranks = min(_RANKS, max(topk, 2))
        levels = np.arange(depth)[:, None]
        # [D, R]: mean calibrated probability of the r-th best candidate of level d + 1.
        self.mass = _PRIOR_BEST * _PRIOR_NEXT**levels * _PRIOR_RANK ** np.arange(ranks)[None]
        self._seen = np.full(depth, _PRIOR)
        self._next = np.full(depth, _PRIOR_NEXT)  # [d]: from depth d to d + 1
        self._reached = [0.0] * (reach + 1)
        self._predicted = [0.0] * (reach + 1)
        self.calibration = [1.0] * (reach + 1)  # by depth, the root's first

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
        """Learn from a tree's drafted levels, [B, C_d] cumulative log probabilities each.

        The round might have drafted `depth` levels; those that it left out promised too little.
        """
        before = 0.0
        for level, scores in enumerate(levels, start=1):
            count = min(self.mass.shape[1], scores.shape[1])
            known = scores.nan_to_num(-np.inf).numpy()  # one request's overflow would be remembered for ever
            best = np.exp(np.sort(known, 1)[:, : -count - 1 : -1]).mean(0) * self.calibration[level]
            requests = len(known)
            step = max(requests / (self._seen[level - 1] + requests), 1 - _DECAY)
            row = self.mass[level - 1]
            row[:count] += step * (best - row[:count])
            row[count:] = row[count - 1] * _PRIOR_RANK ** np.arange(1, len(row) - count + 1)
            self._seen[level - 1] += requests
            if level > 1 and before > 0:
                kept = min(best.sum() / before, 1.0)
                self._next[level - 1] += (1 - _DECAY) * 2 * (kept - self._next[level - 1])
            before = best.sum()
        if len(levels) < depth:
            self.mass[len(levels) :] *= _DECAY
            self._seen[len(levels) :] += 1

    @property
    def next_levels(self) -> list[float]:
        """`next_level` of every depth the head drafts."""
        found: list[float] = self._next.tolist()
        return found

    def next_level(self, level: int) -> float:
        """Share of level `level`'s probability that the best candidates of level + 1 are expected to keep."""
        return float(self._next[level]) if level < len(self.mass) else 0.0

    def best_nodes(self, depth: int, topk: int) -> np.ndarray:
        """Summed probabilities of the best 1, 2, ... nodes of an average tree: accepted drafts to be expected."""
        mass = self.mass[:depth, :topk].copy()
        for level in range(1, depth):
            if self._seen[level] <= _PRIOR:  # never drafted: goes on as it did above
                mass[level] = mass[level - 1] * self._next[min(level, self._deepest_known())]
        return np.sort(mass.ravel())[::-1].cumsum()

    def _deepest_known(self) -> int:
        known = np.flatnonzero(self._seen[1:] > _PRIOR)
        return int(known[-1]) + 1 if len(known) else 1
