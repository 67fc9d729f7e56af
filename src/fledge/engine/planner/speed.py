"""Throughput of plain decode, prompt lookup alone and speculation with the head, in tokens per second.

All seconds here are at the machine's usual pace (`cost.py`), so that a slow spell counts neither for nor against the
kind of round that met it. A kind's gain over plain decode is what renewal reward asks for, tokens over seconds:

    gain[kind]  =  sum of tokens / B  over  sum of seconds / T(B)         of the kind's rounds, older ones fading

To these sums belongs a promise, which weighs less and less: for the head the tree of most tokens per second by
`cost.py` and `acceptance.py`, for lookup a gain of 1. Batch sizes near each other share their sums.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from fledge.engine.planner.acceptance import AcceptanceModel
from fledge.engine.planner.cost import CostModel, LearntCosts
from fledge.engine.planner.plan import Kind
from fledge.engine.shapes import MAX_DEPTH, MAX_NODES, PLAIN, TOPKS, TreeShape

_NODES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)  # of the trees that are compared
_GROUPS = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_PROMISE_ROUNDS = 16  # weight of a prediction, in rounds of a request
_FADE = (1.0, 0.99, 0.98)  # what a round leaves of those before it, by kind


class Promise(NamedTuple):
    """The best tree by cost and acceptance, with the expected tokens and seconds of a request's round."""

    shape: TreeShape
    tokens: float
    seconds: float  # over a plain round's


@dataclass
class _Sums:
    """Sums over one kind of round: tokens per request, and seconds over a plain round's."""

    tokens: float = 0.0
    seconds: float = 0.0
    promised: float = 1.0  # remaining weight of the prediction

    def add(self, tokens: float, seconds: float, fade: float) -> None:
        self.tokens = fade * self.tokens + tokens
        self.seconds = fade * self.seconds + seconds
        self.promised *= fade


@functools.cache
def group_of(requests: int) -> int:
    """Batch sizes that share what was measured: up to 4 each its own, then half a power of two apart."""
    return requests if requests <= 4 else next(n for n in _GROUPS if requests <= n or n == _GROUPS[-1])


class Speeds:
    """The tokens per second of one engine by batch size, and what they are made of."""

    def __init__(
        self,
        cost: CostModel,
        *,
        topk: int,
        reach: int = MAX_DEPTH,
        few: Callable[[int], Collection[TreeShape]] | None = None,
    ) -> None:
        """`cost` as measured at start. `topk` bounds the trees' width, `reach` their depth.

        `few`: by number of requests, the only trees to choose from; None: all.
        """
        self.costs = LearntCosts(cost)
        self._topk, self._reach = topk, reach
        self.acceptance = AcceptanceModel(MAX_DEPTH, topk, reach)
        self._topks, self._few = [k for k in TOPKS if k <= topk], few
        self._sums: defaultdict[int, list[_Sums]] = defaultdict(lambda: [_Sums() for _ in Kind])
        self._promises: dict[int, Promise] = {}  # by group, until `forget_promises`

    def plain(self, requests: int) -> float:
        """Tokens per second of plain decode."""
        return requests / max(self.costs.model.plain_seconds(requests), 1e-9)

    def gain(self, kind: Kind, requests: int) -> float:
        """Tokens per second of this kind of round over plain decode's."""
        if kind == Kind.PLAIN:
            return 1.0
        sums = self._sums[group_of(requests)][kind]
        tokens, seconds = 1.0, self.costs.extra(kind)
        if kind == Kind.HEAD:
            promise = self.promise(requests)
            tokens, seconds = promise.tokens * self._kept(requests), promise.seconds * seconds
        weight = sums.promised * _PROMISE_ROUNDS / requests
        return (sums.tokens + weight * tokens) / max(sums.seconds + weight * seconds, 1e-9)

    def _kept(self, requests: int) -> float:
        """Ratio of measured to predicted head throughput, taken from the nearest batch size with enough rounds.

        It exceeds 1 where rounds adapt each tree, since predictions assume an average tree.
        """
        group = group_of(requests)
        measured = [
            one for one, sums in self._sums.items() if sums[Kind.HEAD].promised < 0.5 and one != group
        ]
        if not measured:
            return 1.0
        other = min(measured, key=lambda one: abs(one - group))
        sums, promise = self._sums[other][Kind.HEAD], self.promise(other)
        promised = promise.tokens / (promise.seconds * self.costs.extra(Kind.HEAD))
        return sums.tokens / max(sums.seconds, 1e-9) / promised

    def promise(self, requests: int) -> Promise:
        """Prediction for the best tree at this batch size, or at the one first searched in its group."""
        group = group_of(requests)
        if group not in self._promises:
            self._promises[group] = self._search(requests)
        return self._promises[group]

    def forget_promises(self) -> None:
        """Search for the best trees again."""
        self._promises.clear()

    def forget_head(self) -> None:
        """Forget acceptance: another head drafts now."""
        self.acceptance = AcceptanceModel(MAX_DEPTH, self._topk, self._reach)
        for sums in self._sums.values():
            sums[Kind.HEAD] = _Sums()
        self.forget_promises()

    def learn(
        self,
        kind: Kind,
        requests: int,
        shape: TreeShape,
        levels: int,
        rows: int,
        tokens: float,
        seconds: float,
        *,
        costs_only: bool = False,
    ) -> float:
        """Learn from a round; returns how many plain ones it took. `levels` were drafted, `rows` verified."""
        usual, as_expected = self.costs.learn(kind, requests, shape, levels, rows, seconds)
        over_plain = usual / max(self.costs.model.plain_seconds(requests), 1e-9)
        if not as_expected:  # so the rounds before tell nothing of those to come
            self._sums[group_of(requests)][kind] = _Sums()
        elif not costs_only:
            self._sums[group_of(requests)][kind].add(tokens / requests, over_plain, _FADE[kind])
        return over_plain

    def _search(self, requests: int) -> Promise:
        """tau / seconds, tried for all trees: tau = 1 + the summed probabilities of an average tree's best nodes.

        The best one is sought with the costs hoped for, and promises what it most probably takes.
        """
        best, best_rate = Promise(PLAIN, 1.0, 1.0), -math.inf
        cost, few = self.costs.hoped(requests), self._few and self._few(group_of(requests))
        verify = {nodes: cost.target.at(requests * nodes) for nodes in _NODES}
        for topk in self._topks:
            for depth in range(1, MAX_DEPTH + 1):
                worth = self.acceptance.best_nodes(depth, topk).tolist()
                head = cost.head_seconds(requests, TreeShape(depth, topk, depth + 1))
                for shape in trees(depth, topk, len(worth)):
                    if few is not None and shape not in few:
                        continue
                    tau, seconds = 1.0 + worth[shape.nodes - 2], max(verify[shape.nodes] + head, 1e-9)
                    if tau / seconds > best_rate:
                        best, best_rate = Promise(shape, tau, seconds), tau / seconds
        likely = self.costs.model
        return best._replace(
            seconds=likely.round_seconds(requests, best.shape) / max(likely.plain_seconds(requests), 1e-9)
        )


@functools.cache
def trees(depth: int, topk: int, tracked: int) -> tuple[TreeShape, ...]:
    """The trees of this depth and width, of no more candidates than the `tracked` ones."""
    limit = min(MAX_NODES, TreeShape(depth, topk, depth + 1).candidates + 1, tracked + 1)
    return tuple(TreeShape(depth, topk, nodes) for nodes in _NODES if depth < nodes <= limit)
