"""One round's plan: how large its trees may get, and what is decided as they grow (the rule: `planner.py`)."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.engine import native_tree
from fledge.engine.layout import TreeShape
from fledge.engine.lookup import MatchRates

if TYPE_CHECKING:
    from fledge.engine.planner import Planner

_COPY_MARGIN = 1.25  # a round with drafts also costs the host more than a plain one


class Terms(NamedTuple):
    """What a plan decides by, in numbers: tokens are what the engine could earn elsewhere in that time."""

    calibration: list[float]  # by depth
    next_levels: list[float]  # by depth: of a level's probability, what the next one is expected to keep
    rows: tuple[int, ...]  # of a verify,
    costs: list[float]  # and the tokens it is worth; linear between
    step: float  # likewise a draft step


class RoundPlan:
    """Bounds of one round's tree, and the decisions taken while it grows.

    A round may leave the decisions to a kernel; a plan that takes others than those of its `terms` says so.
    """

    by_terms = True

    def __init__(self, bound: TreeShape, match_rates: MatchRates | None = None) -> None:
        """A fixed tree: always grown to `bound`. `match_rates`: what proposals of prompt lookup are worth."""
        self.bound = bound
        self.drafts = bound.depth > 0  # with the head
        self.match_rates = match_rates or MatchRates()

    def terms(self) -> Terms | None:
        """What decisions are taken by, for rounds that decide natively; None: trees are always grown to `bound`."""
        return None

    def goes_deeper(self, level: int, open_mass: Tensor) -> bool:
        """Whether level + 1 is drafted; `open_mass` [B] is the probability that it is only named if it is."""
        return True

    def nodes(self, scores: Tensor, depths: Tensor | None) -> tuple[int, Tensor | None]:
        """How many nodes are verified, of candidates with cumulative log probabilities [B, C] at depths [C].

        `depths` None: the probabilities aren't the head's but lookup's, which need no calibration.
        Where requests have numbers of their own also those [B], roots left out; None: all have the same.
        """
        return self.bound.nodes, None


class ConfidentPlan(RoundPlan):
    """Decides by the tree's own probabilities, with what the planner knows; on a CPU, where the host may look."""

    def __init__(self, bound: TreeShape, planner: Planner, requests: int) -> None:
        super().__init__(bound, planner.match_rates)
        self._planner, self._requests = planner, requests
        self._rate = planner.rate(requests) if self.drafts else planner.headless_speed(requests)
        self._scale = planner.scale(requests, drafts=self.drafts)
        if not self.drafts:
            self._scale *= _COPY_MARGIN
        self._terms: Terms | None = None

    def terms(self) -> Terms:
        if self._terms is None:
            beliefs, curve, price = self._planner.beliefs, self._planner.hoped, self._rate * self._scale
            self._terms = Terms(
                beliefs.calibration,
                beliefs.next_levels,
                curve.rows,
                [price * seconds for seconds in curve.seconds],
                price * self._planner.cost.head.at(self._requests * self.bound.topk),
            )
        return self._terms

    def goes_deeper(self, level: int, open_mass: Tensor) -> bool:
        beliefs = self._planner.beliefs
        share = beliefs.calibration[level] * beliefs.next_level(level)
        hoped, requests = self._planner.hoped, self._requests
        step = self._planner.cost.head.at(requests * self.bound.topk)
        # One more node for each request that is likely enough to use it.
        row = hoped.at(requests * (level + 2)) - hoped.at(requests * (level + 1))
        price = self._rate * self._scale * row / requests
        gain = sum(max(mass * share - price, 0.0) for mass in open_mass.tolist())
        return gain > self._rate * self._scale * step

    def nodes(self, scores: Tensor, depths: Tensor | None) -> tuple[int, Tensor | None]:
        known = self._planner.beliefs.calibration
        calibration = None if depths is None else torch.tensor(known, dtype=torch.float32)
        counts = self._shared_out(scores, calibration, depths)
        return 1 + max(counts.tolist()), counts if len(counts) > 1 else None

    def _shared_out(self, scores: Tensor, calibration: Tensor | None, depths: Tensor | None) -> Tensor:
        """How many of its candidates [B, C] each request gets: the best of all requests, while they are worth a row."""
        curve, price, most = self._planner.hoped, self._rate * self._scale, self.bound.nodes - 1
        if native_tree.runs_here(scores):
            costs = torch.tensor([price * seconds for seconds in curve.seconds], dtype=torch.float64)
            return native_tree.share_out(scores, calibration, depths, _as_tensor(curve.rows), costs, most)
        worth = scores.exp().numpy()
        if calibration is not None:
            worth *= calibration[depths].numpy()
        best = np.sort(worth, 1)[:, ::-1][:, :most]
        requests, width = best.shape
        # Never what is worth nothing.
        order = (-best).argsort(axis=None, kind="stable")[: np.count_nonzero(best)]
        gains = np.concatenate(([0.0], best.ravel()[order].cumsum()))
        count = (gains - price * curve.over(requests + np.arange(len(gains)))).argmax()
        return torch.from_numpy(np.bincount(order[:count] // width, minlength=requests))


@functools.cache
def _as_tensor(rows: tuple[int, ...]) -> Tensor:
    return torch.tensor(rows)
