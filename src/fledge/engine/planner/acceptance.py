"""Prediction of accepted tokens: the head's probabilities, calibrated, and averages of them.

A node's cumulative probability is the head's estimate that the node is accepted. Heads are over- or underconfident,
and more so the deeper they feed on their own output, so each depth has its own factor:

    calibration[d]  =  requests whose accepted path reached depth d  /  summed probabilities of the nodes at depth d

Also kept, for plans that can't look at the round's own tree and for levels that aren't drafted yet: the mean
probability of a level's best, second best, ... candidate, and the share of a level's probability that the next level
keeps. Older rounds count for less and less, so that a change of traffic shows within some hundred rounds, and a depth
of which little is known does as the one above.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

_DECAY = 0.98  # factor per round on the weight of earlier rounds
_PRIOR = (
    3.0  # requests in a round that a guess is worth: the first one, or that a level does as the one above
)
_RANKS = 8  # candidates per depth with a rate of their own
# Of a head nothing is known about: the best candidate, and each deeper level's share of the one above.
_PRIOR_BEST, _PRIOR_NEXT = 0.6, 0.65
_PRIOR_RANK = 0.25  # each further candidate's share of the one before


class AcceptanceModel:
    """Calibration and mean probabilities by depth."""

    def __init__(self, depth: int, topk: int, reach: int | None = None) -> None:
        """The head drafts `depth` levels of trees of width `topk`; with prompt lookup trees reach depth `reach`."""
        reach = reach or depth
        self._reached, self._predicted = np.zeros(reach + 1), np.zeros(reach + 1)
        self.calibration = [1.0] * (reach + 1)  # by depth, the root's first
        self._prior = _PRIOR  # of what is guessed of depth 1, as long as little is known
        self._ranks = min(_RANKS, max(topk, 2))
        self._best = np.zeros(
            (depth, self._ranks)
        )  # the head's probabilities of each level's best candidates, summed,
        self._seen = np.zeros(depth)  # and of how many requests
        self._kept, self._before = (
            np.zeros(depth),
            np.zeros(depth),
        )  # summed probabilities of levels, and those above
        self.next_levels = [_PRIOR_NEXT] * depth  # [d]: share of depth d's probability that depth d + 1 keeps

    def observe(self, depths: Sequence[int], masses: Sequence[float]) -> None:
        """A round's accepted depths, one per speculating request, and its nodes' summed probabilities by depth."""
        self._reached *= _DECAY
        self._predicted *= _DECAY
        for depth, mass in enumerate(masses, start=1):
            if not mass > 0:  # nor if it isn't a number
                break
            self._reached[depth] += sum(d >= depth for d in depths)
            self._predicted[depth] += mass
        self._prior *= _DECAY
        self.calibration[1:] = _shrunk(self._reached[1:], self._predicted[1:], 1.0, self._prior)

    def observe_levels(self, levels: Sequence[Tensor], depth: int) -> None:
        """Learn from a tree's drafted levels, [B, C_d] cumulative log probabilities each.

        The round might have drafted `depth` levels; those that it left out promised too little.
        """
        for sums in (self._best, self._seen, self._kept, self._before):
            sums *= _DECAY
        before, requests = 0.0, 0
        for level, scores in enumerate(levels):
            finite = scores.nan_to_num(-np.inf).numpy()  # one request's overflow would be remembered for ever
            requests, count = len(finite), min(self._ranks, finite.shape[1])
            best = np.exp(np.sort(finite, 1)[:, : -count - 1 : -1]).sum(0)
            mass = float(best.sum()) * self.calibration[level + 1]
            self._best[level, :count] += best
            self._best[level, count:] += best[-1] * _PRIOR_RANK ** np.arange(1, self._ranks - count + 1)
            self._seen[level] += requests
            if level:
                self._kept[level] += min(mass, before)
                self._before[level] += before
            before = mass
        self._seen[len(levels) : depth] += requests
        self.next_levels[1:] = _shrunk(self._kept[1:], self._before[1:], _PRIOR_NEXT, _PRIOR)

    def best_nodes(self, depth: int, topk: int) -> np.ndarray:
        """Summed probabilities of the best 1, 2, ... nodes of an average tree: accepted drafts to be expected."""
        guess, prior = _PRIOR_BEST * _PRIOR_RANK ** np.arange(self._ranks), self._prior
        mass = []
        for level in range(depth):
            guess = (self._best[level] * self.calibration[level + 1] + prior * guess) / (
                self._seen[level] + prior
            )
            mass.append(guess[:topk])
            guess, prior = guess * self.next_level(level + 1), _PRIOR
        return np.sort(np.concatenate(mass))[::-1].cumsum()

    def next_level(self, level: int) -> float:
        """Share of level `level`'s probability that the best candidates of level + 1 are expected to keep."""
        return self.next_levels[level] if level < len(self.next_levels) else 0.0


def _shrunk(came: np.ndarray, expected: np.ndarray, guess: float, prior: float) -> list[float]:
    """came / expected by depth, each drawn towards the one above; the first, by `prior`, towards `guess`."""
    ratios = []
    for one, of in zip(came.tolist(), expected.tolist(), strict=True):
        guess = (one + prior * guess) / (of + prior)
        ratios.append(guess)
        prior = _PRIOR
    return ratios
