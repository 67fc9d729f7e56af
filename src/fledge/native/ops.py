"""Calls of single kernels: packing, multiplying, sampling, reading. Pointers in and out; callers check the shapes."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from fledge.native import abi
from fledge.native.build import library

MAX_GROUP = 16  # query heads per KV head
_HUGE_PAGE = 2 << 20


def address(tensor: Tensor | None) -> int | None:
    """The data pointer of a tensor, None for None."""
    return None if tensor is None else tensor.data_ptr()


def pages_of_zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Zeros for a KV pool: in huge pages where there are any, or attention waits for address translation.

    The system provides a page's memory when it is first written, so a pool takes as much as has been used of it.
    """
    size = math.prod(shape) * dtype.itemsize
    held = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        held.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(held, dtype=torch.uint8)  # keeps `held`
    first = -whole.data_ptr() % _HUGE_PAGE
    return whole[first : first + size].view(dtype).view(shape)


class PackedMatrix:
    """A bf16 weight [N, K] in the order the kernels read it, held outside torch; K is a multiple of 32.

    interleaved: the weight is [2 * I, K] with gate rows first, stored so that gate i and up i sit side by side.
    int8: kept in 8 bits, symmetric, with one scale per output.
    """

    def __init__(self, weight: Tensor, *, interleaved: bool = False, int8: bool = False) -> None:
        outputs, inputs = weight.shape
        held = weight.detach().to(torch.bfloat16).contiguous()
        kernels = library()
        self.shape = (outputs, inputs)
        self.pointer: int = kernels.fledge_pack(
            c_void_p(held.data_ptr()), outputs, inputs, int(interleaved), int(int8)
        )
        if not self.pointer:
            raise MemoryError(f"no memory to pack a weight of {outputs} x {inputs}")
        self.bytes = int(kernels.fledge_packed_bytes(c_void_p(self.pointer)))
        weakref.finalize(self, kernels.fledge_unpack, c_void_p(self.pointer))

    def multiply(self, rows: Tensor) -> Tensor:
        """`rows` [M, K] times the weight, not an interleaved one: [M, N] float32."""
        outputs, inputs = self.shape
        count = rows.shape[0]
        held = torch.zeros(-(-count // 32) * 32, inputs, dtype=torch.bfloat16)
        held[:count] = rows
        out = torch.empty(count, outputs, dtype=torch.float32)
        library().fledge_multiply(
            c_void_p(held.data_ptr()), count, c_void_p(self.pointer), c_void_p(out.data_ptr())
        )
        return out


class Screen:
    """The 8-bit copy of an lm_head [V, H] that finds a row's token without reading all of it; see `screen.h`."""

    def __init__(self, weight: Tensor) -> None:
        outputs, inputs = weight.shape
        held = weight.detach().to(torch.bfloat16).contiguous()
        kernels = library()
        self.pointer: int = kernels.fledge_pack_screen(c_void_p(held.data_ptr()), outputs, inputs)
        if not self.pointer:
            raise MemoryError(f"no memory for the 8-bit copy of an lm_head of {outputs} x {inputs}")
        self.bytes = int(kernels.fledge_screen_bytes(c_void_p(self.pointer)))
        weakref.finalize(self, kernels.fledge_unpack_screen, c_void_p(self.pointer))


class BatchArguments:
    """A forward's batch as the kernels read it; keeps its tensors alive while the call runs.

    `tensors`: token_ids, positions, row_start, prefix_length, window_offset and page_table of a `ForwardBatch`.
    """

    def __init__(
        self, tensors: tuple[Tensor, ...], window_mask: Tensor | None, rows: int, requests: int, pages: int
    ) -> None:
        self.held = tuple(
            t if t.dtype == torch.int32 and t.is_contiguous() else t.int().contiguous() for t in tensors
        )
        self.mask = None if window_mask is None else window_mask.contiguous()
        self.struct = abi.Batch(rows, requests, pages, *(t.data_ptr() for t in self.held), address(self.mask))


def read(memory: Tensor) -> int:
    """Read contiguous memory on all threads, as fast as they can; the sum of its words, in blocks of 512 bytes."""
    return int(library().fledge_read(c_void_p(memory.data_ptr()), c_int64(memory.nbytes)))


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, coins: Tensor
) -> Tensor:
    """One token per row of `logits` [M, V] float32; the other arguments are [M]. Temperature 0 is argmax."""
    rows, vocabulary = logits.shape
    out = torch.empty(rows, dtype=torch.int64)
    held = [logits.contiguous(), temperature.float().contiguous(), top_k.long().contiguous()]
    held += [top_p.float().contiguous(), min_p.float().contiguous(), coins.long().contiguous()]
    p = [c_void_p(t.data_ptr()) for t in held]
    library().fledge_sample(p[0], c_int64(rows), c_int64(vocabulary), *p[1:], c_void_p(out.data_ptr()))
    return out
