"""Shapes of draft trees: what a shape is, and which ones the planner chooses from."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from fledge.base.errors import EngineError
from fledge.base.options import whole
from fledge.native.abi import MOST_NODES

# What the planner chooses from.
MAX_DEPTH = 8  # levels
MAX_NODES = 32  # nodes of a request's tree, root included
TOPKS = (1, 2, 4, 8)

_SHAPE = re.compile(r"(\d+)-(\d+)-(\d+)")


@dataclass(frozen=True, order=True)
class TreeShape:
    """A draft tree: `depth` levels below the root, `topk` children per expanded node, `nodes` in all, root included.

    `depth` 0 is plain decode, or nothing but lookup. `topk` 1 is a chain. `lookup` more candidates, a chain, may come
    from the request's own tokens (see `lookup.py`), so that the tree may become deeper than `depth`.
    """

    depth: int
    topk: int
    nodes: int
    lookup: int = 0

    def __post_init__(self) -> None:
        for name in ("depth", "topk", "nodes", "lookup"):
            try:
                object.__setattr__(self, name, whole(getattr(self, name)))
            except ValueError as error:
                raise EngineError(f"a tree's {name} is {getattr(self, name)!r}; {error}") from None
        if self.depth < 0 or self.topk < 1 or self.nodes < 1 or self.lookup < 0:
            raise EngineError(
                f"{self} is not a tree; use a depth of 0 or more and at least one child and node"
            )
        if max(self.nodes, self.topk, self.expanded) > MOST_NODES or self.lookup >= MOST_NODES:
            raise EngineError(
                f"{self} is too large: use at most {MOST_NODES} nodes, a topk and (depth - 1) * topk of at most "
                f"{MOST_NODES}, and fewer tokens than that from lookup"
            )
        if not self.depth < self.nodes <= 1 + self.candidates:
            raise EngineError(
                f"{self} can't be grown: with this depth and topk use {self.depth + 1} to {1 + self.candidates} nodes"
            )

    @property
    def expanded(self) -> int:
        """Nodes the head runs over while the tree grows: `topk` in each level but the last."""
        return max(self.depth - 1, 0) * self.topk

    @property
    def candidates(self) -> int:
        """Nodes that are proposed, of which the best become the tree."""
        return (self.topk + self.expanded * self.topk if self.depth else 0) + self.lookup

    def cut(self, levels: int | None = None, nodes: int | None = None) -> TreeShape:
        """The shape of a tree that stopped after `levels` levels and was cut to `nodes` nodes; None: all."""
        return _cut(self, self.depth if levels is None else levels, self.nodes if nodes is None else nodes)

    @property
    def reach(self) -> int:
        """Depth of the deepest node there can be."""
        return max(self.depth, self.lookup)

    @property
    def chain(self) -> bool:
        """True if every node has at most one child."""
        return not self.depth or (self.topk == 1 and not self.lookup)

    @property
    def window(self) -> int:
        """KV indices beyond the committed length that a round of this shape writes, in target or head."""
        return max(self.nodes, self.expanded, self.reach + 1)

    def __str__(self) -> str:
        lookup = f", lookup={self.lookup}" if self.lookup else ""
        return f"TreeShape(depth={self.depth}, topk={self.topk}, nodes={self.nodes}{lookup})"


PLAIN = TreeShape(0, 1, 1)


def shape_from(text: str) -> TreeShape:
    """The shape written as depth-topk-nodes, such as 4-4-16."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise EngineError(f"{text!r} is not a tree shape; write depth-topk-nodes such as 4-4-16")
    return TreeShape(*(int(number) for number in match.groups()))


@functools.cache
def _cut(shape: TreeShape, levels: int, nodes: int) -> TreeShape:
    drafts = nodes - 1
    return TreeShape(min(levels, drafts), shape.topk, nodes, min(shape.lookup, drafts)) if drafts else PLAIN


@functools.cache
def deepest(topk: int, lookup: int) -> TreeShape:
    """The largest tree of this width."""
    candidates = TreeShape(MAX_DEPTH, topk, MAX_DEPTH + 1).candidates
    return TreeShape(MAX_DEPTH, topk, min(MAX_NODES, 1 + candidates), lookup)


@functools.cache
def lookup_alone(lookup: int) -> TreeShape:
    """The largest tree of a round without the head: a chain of prompt lookup's tokens."""
    return TreeShape(0, 1, lookup + 1, lookup)
