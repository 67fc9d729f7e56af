"""The unroll's attention on one block in bf16 on a CPU: matrix products by torch, the rest by attention.cpp.

Scores and their gradients are float32 products of bf16 factors (see `bf16_products`), as in serving.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_void_p
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.train.blocks import Block, Gradients, Inputs
from fledge.train.library import MAX_STEPS, FledgeBlock, as_c, call


def attend(library: ctypes.CDLL, block: Block, inputs: Inputs, output: Tensor, log_sum: Tensor) -> None:
    """Fill the block's rows of output [S, heads * D] and log_sum [S, heads]."""
    call, sizes = _Call(library, block, inputs), inputs.sizes
    scaled = call.gather(inputs.query, block.queries, "query", sizes.group, sizes.head_dim**-0.5)
    keys = call.gather(inputs.others[0], block.keys, "keys", 1)
    values = call.gather(inputs.others[1], block.keys, "values", 1)
    scores = call.products("scores", scaled.high, keys.high)
    weights = call.take("weights", scores.shape, torch.bfloat16)
    own = call.take("own_weights", (*scaled.high.shape[:-1], max(1, inputs.steps)), torch.float32)
    call.run("fledge_attend", scaled.high, scores, weights, own, log_sum)
    mixed = call.take("mixed", scaled.low.shape, torch.bfloat16)
    torch.bmm(weights, values.low, out=mixed)
    call.run("fledge_attend_finish", mixed, own, output)


def attend_back(library: ctypes.CDLL, block: Block, inputs: Inputs, gradients: Gradients) -> None:
    """Fill the block's rows of all gradients."""
    output, log_sum, d_output, d_query, d_others = gradients
    call, sizes = _Call(library, block, inputs), inputs.sizes
    scale = sizes.head_dim**-0.5
    scaled = call.gather(inputs.query, block.queries, "query", sizes.group, scale)
    slope = call.gather(d_output, block.queries, "slope", sizes.group)
    keys = call.gather(inputs.others[0], block.keys, "keys", 1)
    values = call.gather(inputs.others[1], block.keys, "values", 1)
    scores = call.products("scores", scaled.high, keys.high)
    d_weights = call.products("d_weights", slope.high, values.high)
    weights = call.take("weights", scores.shape, torch.bfloat16)
    d_scores = call.take("d_scores", scores.shape, torch.bfloat16)
    from_own = call.take("from_own", scaled.high.shape, torch.float32)
    d_own_keys, d_own_values = d_others[2 : 2 + inputs.steps], d_others[2 + inputs.steps :]
    d_own = [(c_void_p * MAX_STEPS)(*(t.data_ptr() for t in part)) for part in (d_own_keys, d_own_values)]
    tensors = (scaled.high, slope.high, output, log_sum, scores, d_weights, weights, d_scores, from_own)
    call.run("fledge_attend_back", *tensors, *d_own)
    mixed = call.take("mixed", scaled.low.shape, torch.bfloat16)
    torch.bmm(d_scores, keys.low, out=mixed)
    call.run("fledge_attend_back_finish", mixed, from_own, scale, d_query)
    rows = block.keys.flatten()[block.real_keys]
    for target, weight, factor in ((d_others[0], d_scores, scaled.low), (d_others[1], weights, slope.low)):
        grad = torch.bmm(weight.transpose(1, 2), factor)  # [b * kv, L, D]
        grad = grad.unflatten(0, (-1, sizes.kv_heads)).transpose(1, 2).flatten(0, 1).flatten(1)
        target[rows] = grad[block.real_keys]


class _Gathered(NamedTuple):
    """The block's part of a tensor, [b * kv_heads, Q * group, D]."""

    high: Tensor  # float32
    low: Tensor  # bf16


class _Call:
    """One block's arguments. Memory is laid out as [b, kv_heads, Q, group, D], seen as [b * kv_heads, Q * group, D]."""

    def __init__(self, library: ctypes.CDLL, block: Block, inputs: Inputs) -> None:
        sizes, others, steps = inputs.sizes, inputs.others, inputs.steps
        self._library = library
        self._sizes, self._workspace = sizes, inputs.workspace
        own_keys, own_values = others[2 : 2 + steps], others[2 + steps :]
        self._held = (block.queries.contiguous(), block.seen.contiguous())
        rows, seen = self._held
        self.struct = FledgeBlock(
            rows.data_ptr(),
            seen.data_ptr(),
            rows.shape[0],
            rows.shape[1],
            sizes.kv_heads,
            sizes.group,
            sizes.head_dim,
            block.keys.shape[1],
            steps,
            sizes.window,
            sizes.sinks,
            _stride(own_keys),
            _stride(own_values),
            (c_void_p * MAX_STEPS)(*(t.data_ptr() for t in own_keys)),
            (c_void_p * MAX_STEPS)(*(t.data_ptr() for t in own_values)),
            torch.get_num_threads(),
        )

    def run(self, name: str, *arguments: object) -> None:
        """Call a kernel that takes the block first."""
        getattr(self._library, name)(ctypes.byref(self.struct), *map(as_c, arguments))

    def take(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Scratch memory."""
        return self._workspace.take(name, tuple(shape), dtype, torch.device("cpu"))

    def gather(self, x: Tensor, rows: Tensor, name: str, group: int, scale: float = 1.0) -> _Gathered:
        """The rows [b, Q] of x [.., kv_heads * group * D], times scale."""
        (b, q), kv, width = rows.shape, self._sizes.kv_heads, self._sizes.head_dim
        shape = (b * kv, q * group, width)
        high, low = self.take(name, shape, torch.float32), self.take(name, shape, torch.bfloat16)
        sizes = (b, q, kv, group, width)
        call(self._library.fledge_gather_heads, x, x.stride(0), rows.contiguous(), high, low, scale, *sizes)
        return _Gathered(high, low)

    def products(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """left [n, Q * g, D] with right [n, L, D]: [n, Q * g, L] float32."""
        out = self.take(name, (left.shape[0], left.shape[1], right.shape[1]), torch.float32)
        return torch.bmm(left, right.transpose(1, 2), out=out)


def _stride(tensors: Sequence[Tensor]) -> int:
    """The row stride shared by own keys or own values; all come from the same projection."""
    strides = {t.stride(0) for t in tensors}
    if len(strides) > 1:
        raise RuntimeError(f"own keys of different layouts {sorted(strides)}; use the torch attention")
    return strides.pop() if strides else 0
