"""Names of tree shapes in results (`depth 4, top 4, 16 nodes`), and how often an engine used each."""

from __future__ import annotations

import re

from fledge.engine import PLAIN, Engine, TreeShape

PLAIN_NAME = "plain decode"
_SHAPE = re.compile(r"depth (\d+), top (\d+), (\d+) nodes(?:, lookup (\d+))?")


def shape_rounds(engine: Engine) -> dict[str, int]:
    """Rounds per tree shape so far."""
    return {shape_name(record.shape): record.rounds for record in engine.stats().shapes}


def rounds_since(before: dict[str, int], engine: Engine) -> dict[str, int]:
    """Rounds per tree shape since `before` was read."""
    used = {shape: rounds - before.get(shape, 0) for shape, rounds in shape_rounds(engine).items()}
    return {shape: rounds for shape, rounds in used.items() if rounds}


def shape_name(shape: TreeShape) -> str:
    """`depth 4, top 4, 16 nodes, lookup 7`, or `plain decode`."""
    if shape.nodes == 1:
        return PLAIN_NAME
    lookup = f", lookup {shape.lookup}" if shape.lookup else ""
    return f"depth {shape.depth}, top {shape.topk}, {shape.nodes} nodes{lookup}"


def read_shape_name(name: str) -> TreeShape:
    """The shape with this name."""
    match = _SHAPE.fullmatch(name)
    return TreeShape(*(int(number or 0) for number in match.groups())) if match else PLAIN
