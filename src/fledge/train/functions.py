"""The head's building blocks with hand-written backward passes.

Autograd joins them; inside, no large float32 tensor is recorded and weights' gradients are added in place. Every
function is compared with plain autograd in tests/train/test_functions.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from fledge.train.weights import Weight
from fledge.train.workspace import Workspace, pieces


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
    """RMSNorm over the last dimension of x [R, H], in float32 inside."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, anchor: Tensor, weight: Weight, eps: float, workspace: Workspace
    ) -> Tensor:
        rows, width = x.shape
        y = torch.empty_like(x)
        scale = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
        gain = weight.compute.float()
        for piece in pieces(rows):
            shape = (piece.stop - piece.start, width)
            value = workspace.take("norm_x", shape, torch.float32, x.device).copy_(x[piece])
            mean = torch.linalg.vecdot(value, value).div_(width)
            scale[piece, 0] = mean.add_(eps).rsqrt_()
            y[piece] = value.mul_(scale[piece]).mul_(gain)
        ctx.save_for_backward(x, scale)
        ctx.weight, ctx.workspace = weight, workspace
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, scale = ctx.saved_tensors
        rows, width = x.shape
        weight: Weight = ctx.weight
        gain = weight.compute.float()
        dx = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        for piece in pieces(rows):
            shape = (piece.stop - piece.start, width)
            unit, slope, both = (
                ctx.workspace.take(name, shape, torch.float32, x.device)
                for name in ("norm_x", "norm_dy", "norm_both")
            )
            unit.copy_(x[piece]).mul_(scale[piece])
            slope.copy_(dy[piece])
            weight.grad.add_(torch.mul(unit, slope, out=both).sum(0))
            if dx is not None:
                slope.mul_(gain)
                along = torch.linalg.vecdot(unit, slope).div_(width).unsqueeze(1)
                dx[piece] = slope.sub_(unit.mul_(along)).mul_(scale[piece])
        return dx, None, None, None, None


class SwiGlu(Function):
    """silu(gate) * up for gate_up [R, 2 * I], gate first."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, workspace: Workspace) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        y = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
        for piece in pieces(rows):
            gate, up = gate_up[piece].split(width, dim=1)
            torch.mul(F.silu(gate), up, out=y[piece])
        ctx.save_for_backward(gate_up)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        (gate_up,) = ctx.saved_tensors
        width = dy.shape[1]
        slope = torch.empty_like(gate_up)
        for piece in pieces(dy.shape[0]):
            gate, up = gate_up[piece].split(width, dim=1)
            d_gate, d_up = slope[piece].split(width, dim=1)
            torch.mul(F.silu(gate), dy[piece], out=d_up)
            d_gate.copy_(torch.ops.aten.silu_backward(dy[piece] * up, gate))
        return slope, None


class Rope(Function):
    """Turn x [R, heads, D] by its rows' angles, cos and sin [R, D // 2] float32; the gradient turns back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, workspace: Workspace) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.workspace = workspace
        return _turn(x, cos, sin, 1.0, workspace)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(dy, cos, sin, -1.0, ctx.workspace), None, None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor, direction: float, workspace: Workspace) -> Tensor:
    rows, heads, width = x.shape
    half = width // 2
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for piece in pieces(rows):
        shape = (piece.stop - piece.start, heads, half)
        first, second, out = (
            workspace.take(name, shape, torch.float32, x.device) for name in ("rope_a", "rope_b", "rope_c")
        )
        first.copy_(x[piece, :, :half])
        second.copy_(x[piece, :, half:])
        c, s = cos[piece, None], sin[piece, None]
        torch.mul(first, c, out=out).addcmul_(second, s, value=-direction)
        y[piece, :, :half] = out
        torch.mul(second, c, out=out).addcmul_(first, s, value=direction)
        y[piece, :, half:] = out
    return y


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
