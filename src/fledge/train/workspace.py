"""Memory that is used again and again.

Fresh large tensors cost a page fault per 4 KiB, which on a CPU is as dear as the arithmetic on them. Temporaries
therefore come from named buffers that only grow, and what autograd allocates is not handed back to the system.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import Tensor


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


def pieces(rows: int, size: int) -> Iterator[slice]:
    """0 .. rows in slices of at most `size`."""
    for start in range(0, rows, size):
        yield slice(start, min(rows, start + size))


_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # glibc's mallopt parameters
_MMAP_MAX_DEFAULT, _TRIM_DEFAULT, _NEVER = 65536, 128 * 1024, 2**31 - 1
_BY_CORES = 0  # as many heaps as the C library finds right, where it hasn't decided yet


@contextmanager
def freed_memory_is_kept() -> Iterator[None]:
    """Let the C library keep large freed blocks for the next allocation (glibc; elsewhere nothing changes).

    By default it returns them to the system, so that every activation tensor is faulted in again, page by page. All
    threads use one heap meanwhile, so that a batch of the feed's thread may take what a step has freed. (glibc chooses
    the number of heaps once: threads that start after this may keep to one heap.)
    """
    library = _c_library()
    if library is None:
        yield
        return
    library.mallopt(_MMAP_MAX, 0)
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    library.mallopt(_ARENA_MAX, 1)
    try:
        yield
    finally:
        library.mallopt(_MMAP_MAX, _MMAP_MAX_DEFAULT)
        library.mallopt(_TRIM_THRESHOLD, _TRIM_DEFAULT)
        library.mallopt(_ARENA_MAX, _BY_CORES)
        library.malloc_trim(0)


def return_unused_memory() -> None:
    """Return free memory to the system. Called now and then, so that the needs of different batches don't add up."""
    library = _c_library()
    if library is not None:
        library.malloc_trim(0)


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    """glibc, or None elsewhere."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if library is not None and hasattr(library, "gnu_get_libc_version") else None
