"""The head's building blocks: autograd functions with hand-written backward passes.

No large float32 tensor is recorded, and weight gradients are accumulated in place: autograd gets a weight as an input,
so that it records the function, and no gradient of it. tests/train/test_functions.py compares every function with plain
autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from fledge.train.kernels import Kernels
from fledge.train.weights import Weight
from fledge.train.workspace import Workspace


class Linear(Function):
    """y = x W (+ add), for x [R, in]; `matrix` is W for autograd, `weight.compute`."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, add: Tensor | None, matrix: Tensor, weight: Weight, workspace: Workspace
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
    """RMSNorm over the last dimension of x [R, H], with the gain `weight.compute`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, weight: Weight, eps: float) -> Tensor:
        y, scale = weight.kernels.rms_norm(x, gain, eps)
        ctx.save_for_backward(x, scale)
        ctx.weight = weight
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, scale = ctx.saved_tensors
        weight: Weight = ctx.weight
        gain, needed = weight.compute, ctx.needs_input_grad[0]
        dx = weight.kernels.rms_norm_back(x, gain, scale, dy, weight.grad, wants_dx=needed)
        return dx, None, None, None


class SwiGlu(Function):
    """silu(gate) * up for gate_up [R, 2 * I], gate first."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, kernels: Kernels) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.kernels = kernels
        return kernels.swiglu(gate_up)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        return ctx.kernels.swiglu_back(gate_up, dy), None


class Rope(Function):
    """Rotate x [R, heads * D] by its rows' angles, cos and sin [R, D // 2] float32; the gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, kernels: Kernels) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.kernels = kernels
        return kernels.rotate(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return ctx.kernels.rotate(dy, cos, sin, -1.0), None, None, None


class TakeRows(Function):
    """x[rows] for distinct rows."""

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
    """y[r] = x[r] + shifted[r + by]; x is overwritten. The last `by` rows of y equal x and are never used."""

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
