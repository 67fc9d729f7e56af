"""Reused memory.

Fresh large tensors cost a page fault per 4 KiB, which on a CPU is as expensive as the arithmetic on them. So
temporaries come from named buffers that only grow, and memory that autograd frees isn't returned to the system.
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
    """Named scratch buffers. A buffer's content is valid until its name is taken again."""

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
_BY_CORES = 0  # let the C library choose the number of heaps, if it hasn't yet


@contextmanager
def freed_memory_is_kept() -> Iterator[None]:
    """Let the C library keep large freed blocks for the next allocation (glibc; elsewhere nothing changes).

    By default it returns them to the system, so that every activation tensor is faulted in again, page by page.
    Meanwhile all threads share one heap, so that a batch read by the feed's thread can reuse a step's memory. (glibc
    chooses the number of heaps once: threads started later may stay on one heap.)
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
    """Return free memory to the system. Called regularly so that the peaks of different batches don't add up."""
    library = _c_library()
    if library is not None:
        library.malloc_trim(0)


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    """glibc, or None elsewhere."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if library is not None and hasattr(library, "gnu_get_libc_version") else None
