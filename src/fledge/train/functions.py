"""The head's building blocks with hand-written backward passes.

Autograd joins them; inside, no large float32 tensor is recorded and weights' gradients are added in place. Every
function is compared with plain autograd in tests/train/test_functions.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from fledge.train.elementwise import rms_norm, rms_norm_back, swiglu, swiglu_back, turn
from fledge.train.weights import Weight
from fledge.train.workspace import Workspace


class Linear(Function):
    """y = x W (+ add), for x [R, in]. `anchor` only makes autograd record it when x needs no gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, add: Tensor | None, anchor: Tensor, weight: Weight, workspace: Workspace
    ) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.workspace, ctx.has_add = weight, workspace, add is not None
        return weight.multiply(x, add)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        (x,) = ctx.saved_tensors
        dy = dy.contiguous()
        ctx.weight.add_gradient(x, dy, ctx.workspace)
        dx = ctx.weight.multiply_back(dy) if ctx.needs_input_grad[0] else None
        return dx, dy if ctx.has_add else None, None, None, None


class RmsNorm(Function):
    """RMSNorm over the last dimension of x [R, H]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, weight: Weight, eps: float) -> Tensor:
        y, scale = rms_norm(x, weight.compute, eps)
        ctx.save_for_backward(x, scale)
        ctx.weight = weight
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, scale = ctx.saved_tensors
        weight: Weight = ctx.weight
        dx = rms_norm_back(x, weight.compute, scale, dy, weight.grad, wants_dx=ctx.needs_input_grad[0])
        return dx, None, None, None


class SwiGlu(Function):
    """silu(gate) * up for gate_up [R, 2 * I], gate first."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        return swiglu_back(gate_up, dy)


class Rope(Function):
    """Turn x [R, heads * D] by its rows' angles, cos and sin [R, D // 2] float32; the gradient turns back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turn(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return turn(dy, cos, sin, -1.0), None, None


class TakeRows(Function):
    """x[rows] for rows that differ from each other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.count = x.shape[0]
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        dx = dy.new_zeros(ctx.count, *dy.shape[1:])
        return dx.index_copy_(0, rows, dy), None


class AddShifted(Function):
    """y[r] = x[r] + shifted[r + by]; x is overwritten. The last `by` rows of y stay as x, they are never used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shifted: Tensor, by: int) -> Tensor:
        ctx.mark_dirty(x)
        ctx.by = by
        x[: x.shape[0] - by] += shifted[by:]
        return x

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        if not ctx.by:
            return dy, dy, None
        moved = torch.empty_like(dy)
        moved[: ctx.by] = 0
        moved[ctx.by :] = dy[: -ctx.by]
        return dy, moved, None
