"""The kernels' C structures and the calls around them. Pointers in, pointers out; shapes are checked by the callers."""

from __future__ import annotations

import contextlib
import math
import mmap
import weakref
from ctypes import POINTER, Structure, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor

from fledge.native.build import library

PAGE_SIZE = 32
MAX_GROUP = 16  # query heads per KV head
_HUGE_PAGE = 2 << 20


class Shape(Structure):
    """Sizes of a layer, and its activation: GELU or SiLU. `Shape` in layer.h."""

    _fields_ = [
        ("hidden", c_int),
        ("intermediate", c_int),
        ("heads", c_int),
        ("kv_heads", c_int),
        ("head_dim", c_int),
        ("eps", c_float),
        ("gelu", c_int),
    ]


class LayerPointers(Structure):
    """One layer's float32 vectors, packed matrices and rotary tables; `Layer` in layer.h."""

    _fields_ = [
        *((n, c_void_p) for n in ("input_norm", "post_norm", "qkv_bias", "q_norm", "k_norm")),
        *((n, c_void_p) for n in ("attention_out_norm", "mlp_out_norm")),
        *((n, c_void_p) for n in ("qkv", "o", "gate_up", "down", "cos", "sin")),
        ("windowed", c_int),
    ]


class BatchStruct(Structure):
    """The rows of a forward; a null mask: causal. `Batch` in attention_plan.h."""

    _fields_ = [
        *((n, c_int) for n in ("rows", "requests", "max_pages")),
        *((n, c_void_p) for n in ("token_ids", "positions", "row_start", "prefix_length", "window_offset")),
        *((n, c_void_p) for n in ("page_table", "window_mask")),
    ]


class DecoderStruct(Structure):
    """A whole target; `Decoder` in models.h."""

    _fields_ = [
        ("shape", Shape),
        ("layers", c_int),
        ("vocabulary", c_int),
        ("feature_layers", c_int * 3),
        ("layer", POINTER(LayerPointers)),
        ("embedding", c_void_p),
        ("embedding_scale", c_float),
        ("window", c_int),
        ("norm", c_void_p),
        ("lm_head", c_void_p),
        ("screen", c_void_p),
    ]


class DecoderOutputs(Structure):
    """Where a decoder forward writes; null: not wanted. Of the same name in models.h."""

    _fields_ = [
        ("logit_rows", c_void_p),
        ("count", c_int64),
        ("logits", c_void_p),
        ("chosen", c_void_p),
        ("features", c_void_p),
        ("hidden", c_void_p),
        ("filters", c_void_p),
        ("coins", c_void_p),
        ("allowed", c_void_p),
    ]


class HeadStruct(Structure):
    """A draft head; `DraftHead` in models.h."""

    _fields_ = [
        ("shape", Shape),
        ("target_hidden", c_int),
        ("draft_vocabulary", c_int),
        ("norm_output", c_int),
        ("norm_before_residual", c_int),
        ("layer", LayerPointers),
        ("embedding", c_void_p),
        ("hidden_norm", c_void_p),
        ("norm", c_void_p),
        ("fc_norm", c_void_p),
        ("fc", c_void_p),
        ("lm_head", c_void_p),
        ("target_ids", c_void_p),
    ]


class HeadOutputs(Structure):
    """What a head forward reads besides the batch, and where it writes. Of the same name in models.h."""

    _fields_ = [
        ("logit_rows", c_void_p),
        ("count", c_int64),
        ("k", c_int64),
        ("features", c_void_p),
        ("inputs", c_void_p),
        ("token_ids", c_void_p),
        ("log_probs", c_void_p),
        ("hidden", c_void_p),
        ("filters", c_void_p),
        ("coins", c_void_p),
        ("feature_rows", c_void_p),
    ]


def address(tensor: Tensor | None) -> int | None:
    """The data pointer of a tensor, None for None."""
    return None if tensor is None else tensor.data_ptr()


def pages_of_zeros(*shape: int) -> Tensor:
    """Zeros, bf16, for a KV pool: in huge pages where there are any, or attention waits for address translation."""
    size = math.prod(shape) * torch.bfloat16.itemsize
    held = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        held.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(held, dtype=torch.uint8)  # keeps `held`
    first = -whole.data_ptr() % _HUGE_PAGE
    # Written, so that it is there from now on.
    return whole[first : first + size].view(torch.bfloat16).view(shape).zero_()


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
        self.struct = BatchStruct(
            rows, requests, pages, *(t.data_ptr() for t in self.held), address(self.mask)
        )


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
