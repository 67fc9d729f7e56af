"""How many tokens per second plain decode, prompt lookup alone and speculation with the head bring.

For B requests, with T(n) the seconds of a target forward over n rows and H(n) those of the head (`cost.py`), a round's
predicted seconds are

    plain            T(B)
    lookup alone     T(n)                                                  n rows are verified
    with the head    (levels - 1) * H(B * K)  +  T(n)  +  H(B * (depth + 1))         draft, verify and extend

Rounds really take longer or shorter. `pace.py` tells how much of that is the machine's and how much is the kind's:

    seconds  =  predicted seconds * pace * extra[kind]                     extra[plain] = 1

What a kind of round brings is remembered as its gain over plain decode. Both are taken in predicted seconds, so that
it doesn't matter whether the machine was slow during the round:

    gain[kind]  =  mean of  (tokens / predicted seconds)  /  (B / T(B))

The three speeds follow from that:

    plain            B / (T(B) * pace)
    lookup alone     plain * gain[lookup] / extra[lookup]
    with the head    plain * gain[head] / extra[head]

Before a batch size has had rounds with the head, its gain is that of the tree which promises most by `cost.py` and
`acceptance.py`, corrected by how far the nearest batch size was off.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from fledge.engine.acceptance import AcceptanceModel
from fledge.engine.cost import CostCurve, CostModel, LearntCurve
from fledge.engine.pace import Kind, Pace
from fledge.engine.shapes import MAX_DEPTH, NODES, PLAIN, TOPKS, TreeShape, trees

_GROUPS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
EARLY_ROUNDS = (2, 4, 8, 16)  # of a kind at a batch size: its timings still change much
_HEAD_STEP = 0.02  # least weight of a new measurement of the head's gain,
_LARGEST_GAIN = 8.0  # and the most it may say
_PRIOR_ROUNDS = 16  # rounds of a request that the first guess is worth
_LOOKUP_STEP = 0.01  # weight of a new measurement of lookup's gain,
_HOPE = 0.004  # and of the guess that it is 1 again, in rounds that don't ask for lookup


@dataclass
class _Gains:
    """Tokens per second over plain decode's, in predicted seconds, of a group of batch sizes."""

    head: float
    lookup: float = 1.0


@functools.cache
def group_of(requests: int) -> int:
    """Batch sizes that share what was measured: up to 4 each its own, then half a power of two apart."""
    return requests if requests <= 4 else next(n for n in _GROUPS if requests <= n or n == _GROUPS[-1])


class Speeds:
    """The tokens per second of one engine by batch size, and what they are made of."""

    def __init__(self, cost: CostModel, *, topk: int, confident: bool, lookup: int = 0) -> None:
        """`cost` as measured at start. The others as for `Planner`."""
        self.cost = cost
        self.acceptance = AcceptanceModel(MAX_DEPTH, topk, max(MAX_DEPTH, lookup))
        self._confident = confident
        self._topks = [k for k in TOPKS if k <= topk]
        self._target, self._head = LearntCurve(cost.target), LearntCurve(cost.head)
        self._forward_pace = 0.0  # of the latest forwards, as a logarithm (see `LearntCurve`)
        self._pace = Pace()
        self._rounds: dict[tuple[int, Kind], int] = {}  # measured, by group and kind
        self._gains: dict[int, _Gains] = {}  # by group
        # By batch size, until they are searched for anew.
        self._best_trees: dict[int, tuple[TreeShape, float]] = {}

    def plain(self, requests: int) -> float:
        """Of plain decode."""
        return requests / max(self.cost.plain_seconds(requests) * self.slower(requests, Kind.PLAIN), 1e-9)

    def without_head(self, requests: int) -> float:
        """Of plain decode, or of lookup alone where that is faster."""
        return self.plain(requests) * max(self.lookup_gain(requests), 1.0)

    def with_head(self, requests: int) -> float:
        """Of speculation with the head."""
        measured = self.cost.plain_seconds(requests) * self.slower(requests, Kind.HEAD)
        return self._gains_at(requests).head * requests / max(measured, 1e-9)

    def best(self, requests: int) -> float:
        """mu: of the fastest way."""
        return max(self.with_head(requests), self.without_head(requests))

    def lookup_gain(self, requests: int) -> float:
        """Of lookup alone, over plain decode."""
        return self._gains_at(requests).lookup / self._pace.extra(group_of(requests), Kind.LOOKUP)

    def slower(self, requests: int, kind: Kind) -> float:
        """Measured over predicted seconds of rounds of this kind: pace * extra[kind]."""
        return self._pace.slower(group_of(requests), kind)

    def rounds(self, requests: int, kind: Kind) -> int:
        """How many rounds of this kind were measured."""
        return self._rounds.get((group_of(requests), kind), 0)

    @property
    def hoped(self) -> CostCurve:
        """What a verify may be hoped to cost (see `LearntCurve`)."""
        return self._target.hoped

    def best_tree(self, requests: int) -> tuple[TreeShape, float]:
        """The tree that promises most tokens per second by cost and acceptance alone, and how many."""
        found = self._best_trees.get(requests)
        if found is None:
            found = self._best_trees[requests] = self._search(requests)
        return found

    def search_anew(self) -> None:
        """Forget the best trees."""
        self._best_trees.clear()

    def observe(self, kind: Kind, requests: int, tokens: int, seconds: float, predicted: float) -> None:
        """Learn from a round, which took `seconds` and brought `tokens`."""
        predicted, group = max(predicted, 1e-9), group_of(requests)
        self._pace.observe(group, kind, seconds / predicted)
        rounds = self._rounds[group, kind] = self._rounds.get((group, kind), 0) + 1
        if self._confident and rounds in EARLY_ROUNDS:
            self._best_trees.pop(requests, None)
        gains, gain = self._gains_at(requests), self._gain(requests, tokens / predicted)
        if kind == Kind.LOOKUP:
            gains.lookup += _LOOKUP_STEP * (gain - gains.lookup)
        elif kind == Kind.HEAD:
            weight = max(_HEAD_STEP, 1 / (rounds + _PRIOR_ROUNDS / requests))
            gains.head += weight * (min(gain, _LARGEST_GAIN) - gains.head)

    def hope(self, requests: int) -> None:
        """A round passed that didn't ask for lookup because that didn't pay: in time it gets another chance."""
        self._gains_at(requests).lookup += _HOPE * (1 - self.lookup_gain(requests))

    def time(self, requests: int, topk: int, steps: int, rows: int, draft: float, verify: float) -> None:
        """Learn from a round's forwards: `steps` draft steps took `draft` seconds in all, the verify `verify`."""
        self._forward_pace = self._target.learn(rows, verify, self._forward_pace)
        if steps > 0:
            self._head.learn(requests * topk, draft / steps, self._forward_pace)
        self.cost = CostModel(self._target.curve, self._head.curve)

    def _gains_at(self, requests: int) -> _Gains:
        group = group_of(requests)
        if group not in self._gains:
            head = self._promised(requests)
            if self._gains:
                nearest = min(self._gains, key=lambda other: abs(other - group))
                head *= self._gains[nearest].head / self._promised(nearest)
            self._gains[group] = _Gains(head)
        return self._gains[group]

    def _promised(self, requests: int) -> float:
        """The head's gain by cost and acceptance alone."""
        return self._gain(requests, self.best_tree(requests)[1])

    def _gain(self, requests: int, speed: float) -> float:
        """Over plain decode; both in predicted seconds."""
        return speed * self.cost.plain_seconds(requests) / requests

    def _search(self, requests: int) -> tuple[TreeShape, float]:
        """tau / seconds, tried for all trees: tau = 1 + the summed probabilities of an average tree's best nodes."""
        best, most = PLAIN, -math.inf
        verify = {nodes: self.cost.target.at(requests * nodes) for nodes in NODES}
        for topk in self._topks:
            for depth in range(1, MAX_DEPTH + 1):
                worth = self.acceptance.best_nodes(depth, topk).tolist()
                head = self.cost.head_seconds(requests, depth, topk)
                for shape in trees(depth, topk, len(worth)):
                    tau = 1.0 + worth[shape.nodes - 2]
                    speed = requests * tau / max(verify[shape.nodes] + head, 1e-9)
                    if speed > most:
                        best, most = shape, speed
        return best, most
