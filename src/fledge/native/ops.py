"""Calls of single kernels: packing, multiplying, sampling, reading. Pointers in and out; callers check the shapes."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from collections.abc import Sequence
from ctypes import addressof, c_int, c_int64, c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.native import abi
from fledge.native.build import library

MAX_GROUP = 16  # query heads per KV head
_HUGE_PAGE = 2 << 20
_ROUND_UP = 1.001  # a norm that is summed in float32 is too small by less than this


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


class Format(NamedTuple):
    """The numbers of a weight's part; `weight.h` has the formats there are."""

    rows: int
    bits: int = 16  # 16: bf16; 8, 6 or 4: codes u with w = scale * (u - zero) - minimum
    groups: int = 0  # of every 32 inputs, with a scale each: 1 or 2
    minima: bool = False
    zero: int = 0


class Weight:
    """A weight [N, K] in the order the kernels read it, held outside torch; K is a multiple of 32.

    `parts` lie below one another; all but the last have a multiple of 32 rows. Raises a MemoryError.
    """

    def __init__(self, inputs: int, parts: Sequence[Format]) -> None:
        self.shape = (sum(part.rows for part in parts), inputs)
        kernels = library()
        described = (c_int * (5 * len(parts)))(*(int(number) for part in parts for number in part))
        self.pointer: int = kernels.fledge_weight(*self.shape, described, len(parts))
        if not self.pointer:
            raise MemoryError(f"no memory to pack a weight of {self.shape[0]} x {inputs}")
        self.bytes = int(kernels.fledge_weight_bytes(c_void_p(self.pointer)))
        self.coded = parts[0].bits != 16
        weakref.finalize(self, kernels.fledge_free_weight, c_void_p(self.pointer))

    @classmethod
    def of(cls, numbers: Tensor) -> Weight:
        """Of a matrix [N, K], rounded to bf16."""
        weight = cls(numbers.shape[1], [Format(numbers.shape[0])])
        weight.pack_numbers(0, numbers)
        return weight

    def pack_numbers(self, first: int, numbers: Tensor) -> None:
        """Rows [M, K] from row `first` on, a multiple of 32, of one part, rounded to bf16."""
        held = numbers.detach().to(torch.bfloat16).contiguous()
        library().fledge_pack_numbers(c_void_p(self.pointer), first, held.shape[0], c_void_p(held.data_ptr()))

    def pack_codes(self, first: int, values: Tensor, scale: Tensor, minimum: Tensor | None) -> None:
        """The same with codes: values [M, K] uint8, the others [M, K / 32 * groups] float16."""
        held = [None if t is None else t.contiguous() for t in (values, scale, minimum)]
        pointers = [c_void_p(address(t)) for t in held]
        library().fledge_pack_codes(c_void_p(self.pointer), first, values.shape[0], *pointers)

    def rows(self, first: int, stop: int) -> Tensor:
        """Rows first .. stop - 1, float32."""
        out = torch.empty(stop - first, self.shape[1])
        library().fledge_unpack_rows(c_void_p(self.pointer), first, stop - first, c_void_p(out.data_ptr()))
        return out

    def multiply(self, rows: Tensor) -> Tensor:
        """`rows` [M, K] times the weight: [M, N] float32."""
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
    """An 8-bit copy of an lm_head [V, H], and for each output a bound of the error of its products; see `screen.h`."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self._weight = Weight(inputs, [Format(outputs, 8, 1, zero=128)])
        self._bounds = torch.zeros(-(-outputs // 32), 2, 32)
        self._struct = abi.Screen(self._weight.pointer, self._bounds.data_ptr())
        self.bytes = self._weight.bytes + self._bounds.nbytes

    @property
    def pointer(self) -> int:
        """The screen's address for the kernels, valid as long as it lives."""
        return addressof(self._struct)

    def pack(self, first: int, numbers: Tensor, values: Tensor, scale: Tensor, rounded: Tensor) -> None:
        """Rows [M, H] from row `first` on, a multiple of 32: as they are, as codes, and what the codes stand for."""
        self._weight.pack_codes(first, values, scale, None)
        norms = torch.stack(((numbers - rounded).norm(dim=1), rounded.norm(dim=1)), 1) * _ROUND_UP  # [M, 2]
        norms = torch.nn.functional.pad(norms, (0, 0, 0, -len(norms) % 32)).view(-1, 32, 2)
        self._bounds[first // 32 : first // 32 + len(norms)] = norms.transpose(1, 2)


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
