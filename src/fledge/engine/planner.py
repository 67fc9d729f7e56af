"""Which tree shape the next round uses: the one with the most tokens per second for the present batch.

    tokens per second of a shape  =  requests * tau(shape) / seconds(requests, shape)

Seconds come from the cost curves measured at start, corrected by what rounds really took. Tau comes from acceptance
by depth, tracked per shape with decay; a shape that hasn't run lately leans on what the others saw at that depth.
Plain decode is one of the shapes (tau 1), so a head that isn't worth its cost is left alone, and tried again ever
more rarely while it stays that way. While speculating, the least tried of the promising shapes, plain decode
among them, gets a round now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fledge.engine.cost import CostModel
from fledge.engine.layout import PLAIN, TreeShape

# Few, so that each is known well. 16 nodes are one AMX tile of rows: fewer cost a verify as much.
ADAPTIVE_SHAPES = (
    PLAIN,
    TreeShape(2, 4, 8),
    TreeShape(4, 4, 16),
    TreeShape(6, 4, 16),
    TreeShape(7, 8, 32),
)
_DECAY = 0.98  # per round: the last 50 rounds or so count
_PRIOR_ACCEPTANCE, _PRIOR_WEIGHT = 0.6, 4.0  # of a head nothing is known about
_POOLED_WEIGHT = 8.0  # how many observations of its own outweigh the other shapes'
_COST_STEP = 0.1  # weight of a new timing
_COST_RANGE = (0.5, 2.0)  # a single timing outside this is the machine's doing
_REPLAN_ROUNDS = 4
_EXPLORE_ROUNDS = 32  # between tries of another shape while speculating
_HOPELESS_TRIES = 8  # one of so many tries isn't limited to promising shapes
_RETRY_ROUNDS = (32, 1024)  # between tries of speculation while it doesn't pay: doubles each time
_RETRY_LENGTH = 2  # rounds of such a try
_OPTIMISM = 1.3  # a shape this much below the best may still turn out better
_MARGIN = 1.02  # speculation has to promise this much


class _Acceptance:
    """How often depth d was accepted when depth d - 1 was, with decay. Plain lists: they are short."""

    def __init__(self, depth: int) -> None:
        self.reached = [0.0] * depth  # [d - 1]: requests that got to depth d - 1
        self.accepted = [0.0] * depth  # [d - 1]: requests that got to depth d

    def observe(self, depths: Sequence[int], deepest: int) -> None:
        """Add one round's accepted depths, one per request, of trees `deepest` levels deep."""
        self.reached = [_DECAY * value for value in self.reached]
        self.accepted = [_DECAY * value for value in self.accepted]
        left = len(depths)
        for depth in range(deepest):
            self.reached[depth] += left
            left -= depths.count(depth)
            self.accepted[depth] += left


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
        # By shape and batch size: measured over predicted seconds, and how often that was measured.
        self._correction: dict[tuple[TreeShape, int], tuple[float, int]] = {}
        self._drift = 1.0  # the same for everything, where nothing better is known
        self._rounds = dict.fromkeys(self.shapes, 0)
        self._best: dict[int, TreeShape] = {}  # by batch size
        self._age = 0  # rounds since `_best` was worked out
        self._wait = _REPLAN_ROUNDS  # rounds until another shape is tried; the first time soon
        self._retry = _RETRY_ROUNDS[0]
        self._tries = 0
        self._trying = PLAIN
        self._tries_left = 0
        self._next_try = 0

    def choose(self, requests: int) -> TreeShape:
        """The shape of the next round."""
        if self._fixed:
            return self.shapes[-1]
        if self._tries_left:
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
        known, times = self._correction.get((shape, requests), (self._drift, 0))
        low, high = _COST_RANGE
        ratio = min(max(ratio, low * known), high * known)
        step = max(1 / (times + 2), _COST_STEP)
        self._correction[shape, requests] = known + step * (ratio - known), times + 1
        self._drift += _COST_STEP / 2 * (ratio - self._drift)
        if shape.depth and depths:
            self._acceptance[shape].observe(depths, shape.depth)
            self._pooled.observe(depths, shape.depth)

    def tau(self, shape: TreeShape) -> float:
        """Expected tokens per round and request.

        What a shape hasn't seen of a depth it takes from all shapes together, and what those haven't seen, from the
        depth above: acceptance given that a depth was reached changes little from depth to depth.
        """
        total, reach, all_shapes = 1.0, 1.0, _PRIOR_ACCEPTANCE
        own, pooled = self._acceptance[shape], self._pooled
        for depth in range(shape.depth):
            all_shapes = (pooled.accepted[depth] + _PRIOR_WEIGHT * all_shapes) / (
                pooled.reached[depth] + _PRIOR_WEIGHT
            )
            reach *= (own.accepted[depth] + _POOLED_WEIGHT * all_shapes) / (
                own.reached[depth] + _POOLED_WEIGHT
            )
            total += reach
        return total

    def explain(self, requests: int) -> list[PlannedShape]:
        """What the planner believes of every shape for this batch size; nothing if there is nothing to choose."""
        if self._fixed:
            return []
        rows = []
        for shape in self.shapes:
            tau, seconds = self.tau(shape), self._seconds(requests, shape)
            rows.append(
                PlannedShape(shape, tau, seconds * 1e3, requests * tau / seconds, self._rounds[shape])
            )
        return rows

    def _plan(self, requests: int) -> TreeShape:
        best = max(self.shapes, key=lambda shape: self._speed(requests, shape))
        return best if self._speed(requests, best) > _MARGIN * self._speed(requests, PLAIN) else PLAIN

    def _speed(self, requests: int, shape: TreeShape) -> float:
        return self.tau(shape) / self._seconds(requests, shape)

    def _seconds(self, requests: int, shape: TreeShape) -> float:
        correction, _ = self._correction.get((shape, requests), (self._drift, 0))
        return max(self._cost.round_seconds(requests, shape) * correction, 1e-9)

    def _try_another(self, requests: int, best: TreeShape) -> TreeShape:
        """Give another shape a turn, so that what is believed of it doesn't go stale."""
        others = [shape for shape in self.shapes if shape != best]
        if best == PLAIN:
            self._wait, self._tries_left = self._retry, _RETRY_LENGTH - 1
            self._retry = min(2 * self._retry, _RETRY_ROUNDS[1])
            self._trying = max(others, key=lambda shape: self._speed(requests, shape))
            return self._trying
        self._retry, self._wait = _RETRY_ROUNDS[0], _EXPLORE_ROUNDS
        speed = self._speed(requests, best)
        self._tries += 1
        hopeless = self._tries % _HOPELESS_TRIES == 0  # even what looks bad is looked at again
        promising = [s for s in others if hopeless or _OPTIMISM * self._speed(requests, s) > speed]
        return min({PLAIN, *promising}, key=lambda shape: self._rounds[shape])
