"""Where Triton's kernels run instead of what they are tested against."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def runs_triton(tensor: Tensor) -> bool:
    """Whether `tensor` is on a GPU where Triton is installed (`pip install "fledge[gpu]"`)."""
    return tensor.is_cuda and _installed()
