"""Tree shapes as text, `4-4-16`, and as the file that `fledge tune` writes."""

from __future__ import annotations

import json
import re

from fledge.base.errors import DataError, EngineError
from fledge.base.storage import read_bytes
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


def shape_text(shape: TreeShape) -> str:
    """`4-4-16`, the inverse of `parse_shapes`."""
    return f"{shape.depth}-{shape.topk}-{shape.nodes}" if shape.depth else "plain"


def read_tuned(url: str) -> dict[int, TreeShape]:
    """The best shape by number of requests, from a `tuned.json`. Raises a DataError for any other file."""
    try:
        best = json.loads(read_bytes(url))["best"]
        return {int(level): TreeShape(**shape) for level, shape in best.items()}
    except (EngineError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{url} is not a result of fledge tune ({error!r}); run fledge tune --output {url}"
        ) from error
