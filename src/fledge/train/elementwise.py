"""The elementwise parts of the head's layer: short torch versions that define them, and the compiled ones beside them.

Each function takes the compiled kernel for bf16 on a CPU, one pass over memory, and torch everywhere else.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.train.kernels import call, kernels_for


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
    """Gradient of x if it is wanted; the gain's is added to d_gain [H] float32."""
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


def turn(x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
    """RoPE: x [R, heads * D] by its rows' angles, cos and sin [R, D // 2] float32; direction -1 turns back."""
    rows, half = cos.shape
    heads = x.shape[1] // (2 * half)
    if (kernels := kernels_for(x)) and x.stride(1) == 1:
        y, cos, sin = x.new_empty(x.shape), cos.contiguous(), sin.contiguous()
        strided = (x, x.stride(0), y, y.stride(0))
        call(kernels.fledge_rope, *strided, cos, sin, direction, rows, heads, half)
        return y
    first, second = x.float().view(rows, heads, 2, half).unbind(2)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1) * direction
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=2)
    return turned.view(x.shape).to(x.dtype)


def transpose(x: Tensor, out: Tensor) -> Tensor:
    """x [R, C] into `out` [C, R]."""
    if (kernels := kernels_for(x, out)) and x.is_contiguous():
        call(kernels.fledge_transpose, x, out, *x.shape)
        return out
    return out.copy_(x.t())


def accumulate(total: Tensor, x: Tensor, scale: float) -> None:
    """total += scale * x, for float32 `total` of x's shape."""
    if kernels := kernels_for(x):
        call(kernels.fledge_accumulate, total, x, scale, x.numel())
    else:
        total.add_(x, alpha=scale)
