"""Where tensors are: whether Triton's kernels run there, and numbers between host and device without waiting.

A copy from or to ordinary memory makes the host wait for all that was launched before. These go through page-locked
memory, which torch keeps a stock of, and which is used again once its copy is done. What belongs together goes in one
copy:

    host    [ tokens | positions | pages ]  --one copy-->  device  [ tokens | positions | pages ], three views
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ALIGNED = 8  # bytes, the largest number's


def shared(device: torch.device) -> bool:
    """True if the device shares the host's memory."""
    return device.type == "cpu"


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def runs_triton(tensor: Tensor) -> bool:
    """True if `tensor` is on a GPU where Triton is installed (`pip install "fledge[gpu]"`)."""
    return tensor.is_cuda and _installed()


def to_device(device: torch.device, *arrays: np.ndarray) -> list[Tensor]:
    """Tensors with what the arrays hold; on a CPU they share the arrays' memory."""
    if shared(device):
        return [torch.from_numpy(array) for array in arrays]
    ends = list(accumulate(-(-array.nbytes // _ALIGNED) * _ALIGNED for array in arrays))
    there = _pinned(arrays, ends).to(device, non_blocking=True)
    starts = [0, *ends[:-1]]
    return [
        there[start : start + array.nbytes].view(_dtype(array)).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    ]


def write(destination: Tensor, array: np.ndarray) -> None:
    """The array's numbers, of the same type, into a contiguous tensor of the same shape."""
    if shared(destination.device):
        destination.copy_(torch.from_numpy(array))
    else:
        packed = _pinned([array], [array.nbytes])
        destination.copy_(packed.view(destination.dtype).view(array.shape), non_blocking=True)


class HostTable:
    """A table [rows, width] int32 that the host writes and the device reads: on a CPU the same memory."""

    def __init__(self, rows: int, width: int, device: torch.device, padding: int = 0) -> None:
        self._padding, self._numbers = padding, np.full((rows, width), padding, np.int32)
        (self.tensor,) = to_device(device, self._numbers)

    def write(self, row: int, start: int, values: Sequence[int]) -> None:
        """Values into a row from column `start` on."""
        self._numbers[row, start : start + len(values)] = values
        self._send(row)

    def fill(self, row: int, values: Sequence[int]) -> None:
        """Values into a row from its first column on, and padding after them."""
        self._numbers[row] = self._padding
        self.write(row, 0, values)

    def copy(self, row: int, over: int) -> None:
        """Copy one row over another."""
        self._numbers[over] = self._numbers[row]
        self._send(over)

    def read(self, row: int) -> list[int]:
        """A row."""
        return [int(value) for value in self._numbers[row]]

    def _send(self, row: int) -> None:
        if not shared(self.tensor.device):
            write(self.tensor[row], self._numbers[row])


def to_host(value: Any) -> Any:
    """A nest of tuples and lists with its device tensors in page-locked memory, by one copy that isn't waited for."""
    found: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        if not shared(tensor.device):
            found.append(tensor)
        return tensor

    map_tensors(value, collect)
    if not found:
        return value
    # Larger numbers first, so that all are aligned.
    order = sorted(range(len(found)), key=lambda number: -found[number].element_size())
    sent = [found[number] for number in order]
    parts = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in sent]
    packed = parts[0] if len(parts) == 1 else torch.cat(parts)
    host = torch.empty(packed.shape, dtype=torch.uint8, pin_memory=True)
    host.copy_(packed, non_blocking=True)
    received = host.split([len(part) for part in parts])
    views = (part.view(tensor.dtype).view(tensor.shape) for part, tensor in zip(received, sent, strict=True))
    copies = dict(zip(order, views, strict=True))
    numbers = iter(range(len(found)))
    return map_tensors(value, lambda tensor: tensor if shared(tensor.device) else copies[next(numbers)])


def map_tensors(value: Any, copy: Callable[[Tensor], Tensor]) -> Any:
    """A nest of tuples and lists with each tensor replaced by what `copy` makes of it."""
    if isinstance(value, Tensor):
        return copy(value)
    if isinstance(value, tuple | list):
        copies = [map_tensors(part, copy) for part in value]
        if isinstance(value, list):
            return copies
        return value._make(copies) if hasattr(value, "_make") else tuple(copies)
    return value


def _pinned(arrays: Sequence[np.ndarray], ends: Sequence[int]) -> Tensor:
    """The arrays' bytes in page-locked memory; the space for each ends at `ends`."""
    packed = torch.empty(ends[-1], dtype=torch.uint8, pin_memory=True)
    room, start = packed.numpy(), 0
    for array, end in zip(arrays, ends, strict=True):
        room[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
        start = end
    return packed


def _dtype(array: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
