"""Which tree shape the next round uses: the one with the most tokens per second for the present batch.

    tokens per second of a shape  =  requests * tau(shape) / seconds(requests, shape)

Seconds come from the cost curves measured at start, corrected by what rounds really took. Tau comes from acceptance
by depth, tracked per shape with decay; a shape that hasn't run lately leans on what the others saw at that depth.
Plain decode is one of the shapes (tau 1), so a head that isn't worth its cost is left alone, and tried again ever
more rarely while it stays that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fledge.engine.cost import CostModel
from fledge.engine.layout import PLAIN, TreeShape

ADAPTIVE_SHAPES = (
    PLAIN,
    TreeShape(2, 1, 3),
    TreeShape(3, 3, 8),
    TreeShape(4, 4, 12),
    TreeShape(5, 4, 16),
    TreeShape(6, 6, 24),
    TreeShape(7, 8, 32),
)
_DECAY = 0.98  # per round: the last 50 rounds or so count
_PRIOR_ACCEPTANCE, _PRIOR_WEIGHT = 0.6, 4.0  # of a head nothing is known about
_POOLED_WEIGHT = 8.0  # how many observations of its own outweigh the other shapes'
_COST_STEP = 0.1  # weight of a new timing
_COST_RANGE = (0.5, 2.0)  # a single timing outside this is the machine's doing
_REPLAN_ROUNDS = 4
_EXPLORE_ROUNDS = 32  # between tries of another shape while speculating
_RETRY_ROUNDS = (32, 1024)  # between tries of speculation while it doesn't pay: doubles each time
_RETRY_LENGTH = 2  # rounds of such a try
_MARGIN = 1.02  # speculation has to promise this much


@dataclass
class _Acceptance:
    """How often depth d was accepted when depth d - 1 was, with decay."""

    depth: int
    reached: np.ndarray = field(init=False)  # [D] requests that got to depth d - 1
    accepted: np.ndarray = field(init=False)  # [D] requests that got to depth d

    def __post_init__(self) -> None:
        self.reached, self.accepted = np.zeros(self.depth), np.zeros(self.depth)

    def observe(self, depths: np.ndarray) -> None:
        """Add one round's accepted depths, one per request."""
        got_to = np.bincount(depths, minlength=self.depth + 1)[::-1].cumsum()[
            ::-1
        ]  # [d]: requests of depth >= d
        self.reached *= _DECAY
        self.accepted *= _DECAY
        self.reached[: len(got_to) - 1] += got_to[:-1]
        self.accepted[: len(got_to) - 1] += got_to[1:]


@dataclass(frozen=True)
class PlannedShape:
    """Why a shape was or wasn't chosen."""

    shape: TreeShape
    tau: float
    milliseconds: float  # of a round
    tokens_per_second: float
    rounds: int  # rounds of this shape so far


class Planner:
    """Chooses a shape per round and learns from what came of it."""

    def __init__(self, shapes: Sequence[TreeShape], cost: CostModel, *, fixed: bool = False) -> None:
        """`shapes` holds PLAIN. `fixed`: always take the last one, whatever it costs."""
        self.shapes = tuple(shapes)
        self._fixed = fixed
        self._cost = cost
        self._acceptance = {shape: _Acceptance(shape.depth) for shape in self.shapes}
        self._pooled = _Acceptance(max(shape.depth for shape in self.shapes))
        self._correction: dict[tuple[TreeShape, int], float] = {}  # measured over predicted seconds
        self._drift = 1.0  # the same for everything, where nothing better is known
        self._rounds = dict.fromkeys(self.shapes, 0)
        self._best: dict[int, TreeShape] = {}  # by batch size
        self._age = 0  # rounds since `_best` was worked out
        self._wait = _EXPLORE_ROUNDS  # rounds until another shape is tried
        self._retry = _RETRY_ROUNDS[0]
        self._trying: TreeShape | None = None
        self._tries_left = 0
        self._next_try = 0

    def choose(self, requests: int) -> TreeShape:
        """The shape of the next round."""
        if self._fixed:
            return self.shapes[-1]
        if self._tries_left and self._trying is not None:
            self._tries_left -= 1
            return self._trying
        self._age += 1
        if self._age >= _REPLAN_ROUNDS:
            self._best.clear()
            self._age = 0
        best = self._best.get(requests)
        if best is None:
            best = self._best[requests] = self._plan(requests)
        self._wait -= 1
        if self._wait > 0:
            return best
        return self._try_another(requests, best)

    def observe(self, shape: TreeShape, requests: int, seconds: float, depths: Sequence[int]) -> None:
        """Learn from a round; `depths` are the accepted depths of the requests that speculated."""
        self._rounds[shape] += 1
        ratio = seconds / max(self._cost.round_seconds(requests, shape), 1e-9)
        known = self._correction.get((shape, requests), self._drift)
        low, high = _COST_RANGE
        ratio = min(max(ratio, low * known), high * known)
        self._correction[shape, requests] = known + _COST_STEP * (ratio - known)
        self._drift += _COST_STEP / 2 * (ratio - self._drift)
        if shape.depth and depths:
            array = np.asarray(depths)
            self._acceptance[shape].observe(array)
            self._pooled.observe(array)

    def tau(self, shape: TreeShape) -> float:
        """Expected tokens per round and request."""
        total, reach = 1.0, 1.0
        own = self._acceptance[shape]
        for depth in range(shape.depth):
            prior = (self._pooled.accepted[depth] + _PRIOR_WEIGHT * _PRIOR_ACCEPTANCE) / (
                self._pooled.reached[depth] + _PRIOR_WEIGHT
            )
            reach *= (own.accepted[depth] + _POOLED_WEIGHT * prior) / (own.reached[depth] + _POOLED_WEIGHT)
            total += reach
        return float(total)

    def explain(self, requests: int) -> list[PlannedShape]:
        """What the planner believes of every shape for this batch size."""
        rows = []
        for shape in self.shapes:
            tau, seconds = self.tau(shape), self._seconds(requests, shape)
            rows.append(
                PlannedShape(shape, tau, seconds * 1e3, requests * tau / seconds, self._rounds[shape])
            )
        return rows

    def _plan(self, requests: int) -> TreeShape:
        best, speed = PLAIN, _MARGIN / self._seconds(requests, PLAIN)
        for shape in self.shapes:
            if shape.depth and self.tau(shape) / self._seconds(requests, shape) > speed:
                best, speed = shape, self.tau(shape) / self._seconds(requests, shape)
        return best

    def _seconds(self, requests: int, shape: TreeShape) -> float:
        correction = self._correction.get((shape, requests), self._drift)
        return max(self._cost.round_seconds(requests, shape) * correction, 1e-9)

    def _try_another(self, requests: int, best: TreeShape) -> TreeShape:
        """Give another shape a turn, so that what is believed of it doesn't go stale."""
        if best.depth:
            self._retry = _RETRY_ROUNDS[0]
            self._wait, self._tries_left = _EXPLORE_ROUNDS, 0
            others = [shape for shape in self.shapes if shape.depth and shape != best]
        else:
            self._wait, self._tries_left = self._retry, _RETRY_LENGTH - 1
            self._retry = min(2 * self._retry, _RETRY_ROUNDS[1])
            others = [shape for shape in self.shapes if shape.depth]
        if not others:
            self._tries_left = 0
            return best
        # Neighbours in cost first: they differ least from what is best now.
        base = self._seconds(requests, best)
        others.sort(key=lambda shape: abs(self._seconds(requests, shape) - base))
        self._next_try = (self._next_try + 1) % min(len(others), 3)
        self._trying = others[self._next_try]
        return self._trying
