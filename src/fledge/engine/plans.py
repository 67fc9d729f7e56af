"""One round's plan: how large its trees may get, and what is decided while they grow.

The rule is `planner.py`'s: what takes t seconds has to bring more than mu * t tokens. With

    price           mu * slower: tokens that a predicted second is worth, as rounds take `slower` times the predicted
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
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.engine import native_tree
from fledge.engine.lookup import MatchRates
from fledge.engine.pace import Kind
from fledge.engine.shapes import TreeShape

if TYPE_CHECKING:
    from fledge.engine.speeds import Speeds

_LOOKUP_MARGIN = 1.25  # of rounds without the head: with drafts they also cost the host more than a plain one


class Terms(NamedTuple):
    """What a plan decides by, in numbers. Costs are in tokens: price * seconds."""

    calibration: list[float]  # by depth
    next_levels: list[float]  # share by depth
    rows: tuple[int, ...]  # of a verify,
    costs: list[float]  # and what so many cost; linear between
    step: float  # what a draft step costs


class RoundPlan:
    """A fixed tree, always grown to its bound; and what other plans decide while it grows."""

    by_terms = True  # False (tests): the decisions don't follow from `terms`, so that no kernel can take them

    def __init__(self, bound: TreeShape, match_rates: MatchRates | None = None) -> None:
        """`match_rates`: what proposals of prompt lookup are worth."""
        self.bound = bound
        self.drafts = bound.depth > 0  # the head runs
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

    def __init__(self, bound: TreeShape, speeds: Speeds, requests: int, match_rates: MatchRates) -> None:
        super().__init__(bound, match_rates)
        self._speeds, self._requests = speeds, requests
        if self.drafts:
            self._price = speeds.best(requests) * speeds.slower(requests, Kind.HEAD)
        else:
            slower = speeds.slower(requests, Kind.PLAIN) * _LOOKUP_MARGIN
            self._price = speeds.without_head(requests) * slower
        self._terms: Terms | None = None

    def terms(self) -> Terms:
        if self._terms is None:
            acceptance, curve = self._speeds.acceptance, self._speeds.hoped
            self._terms = Terms(
                acceptance.calibration,
                acceptance.next_levels,
                curve.rows,
                [self._price * seconds for seconds in curve.seconds],
                self._price * self._speeds.cost.head.at(self._requests * self.bound.topk),
            )
        return self._terms

    def goes_deeper(self, level: int, open_mass: Tensor) -> bool:
        acceptance, hoped, requests = self._speeds.acceptance, self._speeds.hoped, self._requests
        share = acceptance.calibration[level] * acceptance.next_level(level)
        step = self._price * self._speeds.cost.head.at(requests * self.bound.topk)
        # One more node for each request that is likely enough to use it.
        row = self._price * (hoped.at(requests * (level + 2)) - hoped.at(requests * (level + 1))) / requests
        return sum(max(mass * share - row, 0.0) for mass in open_mass.tolist()) > step

    def nodes(self, scores: Tensor, depths: Tensor | None) -> tuple[int, Tensor | None]:
        known = self._speeds.acceptance.calibration
        calibration = None if depths is None else torch.tensor(known, dtype=torch.float32)
        counts = self._shared_out(scores, calibration, depths)
        return 1 + max(counts.tolist()), counts if len(counts) > 1 else None

    def _shared_out(self, scores: Tensor, calibration: Tensor | None, depths: Tensor | None) -> Tensor:
        """How many of its candidates [B, C] each request gets [B]."""
        curve, price, most = self._speeds.hoped, self._price, self.bound.nodes - 1
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
