"""Tree shapes keep their meaning through the names that results are stored under."""

from __future__ import annotations

import pytest

from fledge.bench.shapes import read_shape_name, shape_name
from fledge.engine import PLAIN, TreeShape


@pytest.mark.parametrize(
    "shape", [PLAIN, TreeShape(3, 1, 4), TreeShape(1, 2, 4, lookup=3), TreeShape(0, 1, 6, lookup=5)], ids=str
)
def test_a_shape_is_read_back_from_its_name(shape: TreeShape) -> None:
    assert read_shape_name(shape_name(shape)) == shape
