"""The tree shapes a planner chooses from, and what came of them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from fledge.engine.layout import TreeShape

MAX_DEPTH = 8
MAX_NODES = 32
TOPKS = (1, 2, 4, 8)
NODES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32)


@dataclass
class PlannedShape:
    """What rounds of one shape brought."""

    shape: TreeShape
    rounds: int = 0
    requests: int = 0  # summed over the rounds
    tokens: int = 0
    seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Tokens per round and request."""
        return self.tokens / self.requests if self.requests else 1.0


@functools.cache
def deepest(topk: int, lookup: int) -> TreeShape:
    """The largest tree of this width."""
    candidates = TreeShape(MAX_DEPTH, topk, MAX_DEPTH + 1).candidates
    return TreeShape(MAX_DEPTH, topk, min(MAX_NODES, 1 + candidates), lookup)


@functools.cache
def lookup_alone(lookup: int) -> TreeShape:
    """The largest tree of a round without the head: a chain of prompt lookup's tokens."""
    return TreeShape(0, 1, lookup + 1, lookup)


@functools.cache
def trees(depth: int, topk: int, known: int) -> tuple[TreeShape, ...]:
    """The trees of this depth and width, of no more candidates than the `known` whose probabilities are tracked."""
    limit = min(MAX_NODES, TreeShape(depth, topk, depth + 1).candidates + 1, known + 1)
    return tuple(TreeShape(depth, topk, nodes) for nodes in NODES if depth < nodes <= limit)
