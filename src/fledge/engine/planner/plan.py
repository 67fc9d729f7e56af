"""One round's plan: how large its trees may get, and what is decided while they grow.

What takes t seconds has to bring more than mu * t tokens. With

    price           mu * extra: tokens that a predicted second is worth, as rounds take `extra` times the predicted
    c[d]            calibration of the head's probabilities at depth d
    share[d]        of level d's probability, what level d + 1 is expected to keep        (both: `acceptance.py`)

level d + 1 is drafted while the next tokens that only the head could name are worth more than the step that names them;
a request counts for what is left once it has paid for a row more in the verify:

    sum over requests of  max(open mass * c[d] * share[d] - price * seconds of a row, 0)  >  price * seconds of the step

and the candidates verified are the n most probable of all requests' together, for the n that makes this largest:

    sum of the n best candidates' calibrated probabilities  -  price * seconds of a verify of B + n rows
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.engine import native_tree
from fledge.engine.lookup import MatchRates
from fledge.engine.planner.acceptance import AcceptanceModel
from fledge.engine.planner.cost import CostModel
from fledge.engine.shapes import TreeShape


class Terms(NamedTuple):
    """What a plan decides by, in numbers. Costs are in tokens: price * seconds."""

    calibration: list[float]  # by depth
    next_levels: list[float]  # share by depth
    rows: tuple[int, ...]  # of a verify,
    costs: list[float]  # and what so many cost; linear between
    step: float  # what a draft step costs


class RoundPlan:
    """A fixed tree, always grown to its bound; and what other plans decide while it grows."""

    def __init__(
        self, bound: TreeShape, match_rates: MatchRates | None = None, *, hopes: bool = False
    ) -> None:
        """`match_rates`: what proposals of prompt lookup are worth."""
        self.bound = bound
        self.drafts = bound.depth > 0  # the head runs
        self.hopes = hopes  # by costs lower than those believed in, which only a first try does
        self.match_rates = match_rates or MatchRates()

    def terms(self) -> Terms | None:
        """What a kernel needs to take the decisions; None: trees are always grown to `bound`."""
        return None

    def goes_deeper(self, level: int, open_mass: Tensor) -> bool:
        """Whether level + 1 is drafted.

        `open_mass` [B]: probability that the next token is one which only that draft step could name.
        """
        return True

    def nodes(self, scores: Tensor, depths: Tensor | None) -> tuple[int, Tensor | None]:
        """How many nodes are verified, of candidates with cumulative log probabilities [B, C] at depths [C].

        `depths` None: the probabilities aren't the head's but lookup's, which need no calibration.
        Where requests have numbers of their own also those [B], roots left out; None: all have the same.
        """
        return self.bound.nodes, None


class ConfidentPlan(RoundPlan):
    """Decides by the tree's own probabilities; on a CPU, where the host may look at them."""

    def __init__(
        self,
        bound: TreeShape,
        match_rates: MatchRates,
        requests: int,
        price: float,
        cost: CostModel,
        acceptance: AcceptanceModel,
        *,
        hopes: bool = False,
    ) -> None:
        """`price`: tokens that a second predicted by `cost` is worth."""
        super().__init__(bound, match_rates, hopes=hopes)
        self._requests, self._price, self._curve, self._acceptance = requests, price, cost.target, acceptance
        self._step = price * cost.head.at(requests * bound.topk)

    @functools.cached_property
    def _terms(self) -> Terms:
        costs = [self._price * seconds for seconds in self._curve.seconds]
        acceptance = self._acceptance
        return Terms(acceptance.calibration, acceptance.next_levels, self._curve.rows, costs, self._step)

    def terms(self) -> Terms:
        return self._terms

    def goes_deeper(self, level: int, open_mass: Tensor) -> bool:
        requests, curve = self._requests, self._curve
        share = self._acceptance.calibration[level] * self._acceptance.next_level(level)
        # One more node for each request that is likely enough to use it.
        row = self._price * (curve.at(requests * (level + 2)) - curve.at(requests * (level + 1))) / requests
        return sum(max(mass * share - row, 0.0) for mass in open_mass.tolist()) > self._step

    def nodes(self, scores: Tensor, depths: Tensor | None) -> tuple[int, Tensor | None]:
        known = self._acceptance.calibration
        calibration = None if depths is None else torch.tensor(known, dtype=torch.float32)
        counts = self._shared_out(scores, calibration, depths)
        return 1 + max(counts.tolist()), counts if len(counts) > 1 else None

    def _shared_out(self, scores: Tensor, calibration: Tensor | None, depths: Tensor | None) -> Tensor:
        """How many of its candidates [B, C] each request gets [B]."""
        most = self.bound.nodes - 1
        if native_tree.runs_here(scores):
            rows, costs = torch.tensor(self._curve.rows), torch.tensor(self._terms.costs, dtype=torch.float64)
            return native_tree.share_out(scores, calibration, depths, rows, costs, most)
        worth = scores.exp().numpy()
        if calibration is not None:
            worth *= calibration[depths].numpy()
        best = np.sort(worth, 1)[:, ::-1][:, :most]
        requests, width = best.shape
        # Never what is worth nothing.
        order = (-best).argsort(axis=None, kind="stable")[: np.count_nonzero(best)]
        gains = np.concatenate(([0.0], best.ravel()[order].cumsum()))
        rows_of = requests + np.arange(len(gains))
        count = (gains - self._price * self._curve.over(rows_of)).argmax()
        return torch.from_numpy(np.bincount(order[:count] // width, minlength=requests))
