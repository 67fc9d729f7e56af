"""The head's building blocks: autograd functions with hand-written backward passes.

No large float32 tensor is recorded, and weight gradients are accumulated in place. RMSNorm, SwiGLU and RoPE are
defined here in short torch versions; for bf16 on a CPU a compiled kernel does the same in one pass over memory.
tests/train/test_functions.py compares every function with plain autograd, test_kernels.py the kernels with torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from fledge.train.kernels import call, kernels_for
from fledge.train.weights import Weight
from fledge.train.workspace import Workspace


class Linear(Function):
    """y = x W (+ add), for x [R, in]. `anchor` makes autograd record it even if x needs no gradient."""

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
    """Rotate x [R, heads * D] by its rows' angles, cos and sin [R, D // 2] float32; the gradient is rotated back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return rotate(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(dy, cos, sin, -1.0), None, None


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


class Normed(NamedTuple):
    """RMSNorm's output and what its backward pass needs."""

    y: Tensor  # [R, H]
    scale: Tensor  # [R, 1] float32, 1 / rms(x)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Normed:
    """x [R, H] / rms(x) * gain [H]."""
    rows, width = x.shape
    if kernels := kernels_for(x, gain):
        x = x.contiguous()
        y, scale = torch.empty_like(x), torch.empty(rows, 1)
        call(kernels.fledge_rms_norm, x, gain, y, scale, rows, width, eps)
        return Normed(y, scale)
    value = x.float()
    scale = value.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    return Normed((value * scale * gain.float()).to(x.dtype), scale)


def rms_norm_back(
    x: Tensor, gain: Tensor, scale: Tensor, dy: Tensor, d_gain: Tensor, *, wants_dx: bool
) -> Tensor | None:
    """Gradient of x if requested; the gain's is added to d_gain [H] float32."""
    rows, width = x.shape
    if kernels := kernels_for(x, gain, dy):
        x, dy = x.contiguous(), dy.contiguous()
        dx = torch.empty_like(x) if wants_dx else None
        call(kernels.fledge_rms_norm_back, x, gain, scale, dy, dx, d_gain, rows, width)
        return dx
    unit, slope = x.float() * scale, dy.float()
    d_gain += (unit * slope).sum(0)
    if not wants_dx:
        return None
    slope = slope * gain.float()
    along = (unit * slope).mean(-1, keepdim=True)
    return ((slope - unit * along) * scale).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for gate_up [R, 2 * I], gate first."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    if kernels := kernels_for(gate_up):
        y = gate_up.new_empty(rows, width)
        call(kernels.fledge_swiglu, gate_up, y, rows, width)
        return y
    gate, up = gate_up.split(width, dim=1)
    return F.silu(gate) * up


def swiglu_back(gate_up: Tensor, dy: Tensor) -> Tensor:
    """Gradient of gate_up."""
    rows, width = dy.shape
    if kernels := kernels_for(gate_up, dy):
        slope, dy = torch.empty_like(gate_up), dy.contiguous()
        call(kernels.fledge_swiglu_back, gate_up, dy, slope, rows, width)
        return slope
    gate, up = gate_up.split(width, dim=1)
    return torch.cat((torch.ops.aten.silu_backward(dy * up, gate), F.silu(gate) * dy), dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    """RoPE: x [R, heads * D] by its rows' angles, cos and sin [R, D // 2] float32; direction -1 rotates back."""
    rows, half = cos.shape
    heads = x.shape[1] // (2 * half)
    if (kernels := kernels_for(x)) and x.stride(1) == 1:
        y, cos, sin = x.new_empty(x.shape), cos.contiguous(), sin.contiguous()
        strided = (x, x.stride(0), y, y.stride(0))
        call(kernels.fledge_rope, *strided, cos, sin, direction, rows, heads, half)
        return y
    first, second = x.float().view(rows, heads, 2, half).unbind(2)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1) * direction
    rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=2)
    return rotated.view(x.shape).to(x.dtype)
