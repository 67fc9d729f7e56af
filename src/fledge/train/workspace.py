"""Memory that is used again and again.

Fresh large tensors cost a page fault per 4 KiB, which on a CPU is as dear as the arithmetic on them. Temporaries
therefore come from named buffers that only grow, and work goes through them in pieces that stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import torch
from torch import Tensor

PIECE_ROWS = 512  # rows of an elementwise piece: 512 x 576 float32 is 1.2 MB, within a core's L2


class Workspace:
    """Named scratch buffers. A name's content lasts until the name is taken again."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """An uninitialised contiguous tensor of this shape."""
        key, size = (name, dtype, device), prod(shape)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[key] = torch.empty(size, dtype=dtype, device=device)
        return buffer[:size].view(shape)


def pieces(rows: int, size: int = PIECE_ROWS) -> Iterator[slice]:
    """0 .. rows in slices of at most `size`."""
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))
