"""Tree shapes as text, such as `4-4-16`."""

from __future__ import annotations

import re

from fledge.base.errors import DataError
from fledge.engine.shapes import TreeShape

_SHAPE = re.compile(r"(\d+)-(\d+)-(\d+)")


def parse_shapes(text: str) -> tuple[TreeShape, ...]:
    """The shapes of `4-4-16,2-4-8`: depth, topk and nodes of each."""
    shapes = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _SHAPE.fullmatch(part)
        if match is None:
            raise DataError(f"{part!r} is not a tree shape; write depth-topk-nodes such as 4-4-16")
        shapes.append(TreeShape(*(int(number) for number in match.groups())))
    return tuple(shapes)
