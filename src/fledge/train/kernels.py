"""The operations of training that have compiled versions for bf16 on a CPU, defined here in plain torch.

Which ones run is chosen once, with the weights. tests/train/test_kernels.py compares kernels_compiled.py with this.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.train import attention_torch
from fledge.train.blocks import Block, Gradients, Inputs


class Normed(NamedTuple):
    """RMSNorm's output and what its backward pass needs."""

    y: Tensor  # [R, H]
    scale: Tensor  # [R, 1] float32, 1 / rms(x)


class LogitMeasures(NamedTuple):
    """Per-row figures for the metrics; training doesn't need them."""

    loss: Tensor  # [R] float32
    overlap: Tensor  # [R] float32, sum of min(p, q) over the vocabulary
    best: Tensor  # [R] int64, index of the highest logit


class Kernels:
    """The operations in plain torch, for any dtype and device. Tensors are contiguous unless it says otherwise."""

    def rms_norm(self, x: Tensor, gain: Tensor, eps: float) -> Normed:
        """x [R, H] / rms(x) * gain [H]; x may be strided."""
        value = x.float()
        scale = value.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return Normed((value * scale * gain.float()).to(x.dtype), scale)

    def rms_norm_back(
        self, x: Tensor, gain: Tensor, scale: Tensor, dy: Tensor, d_gain: Tensor, *, wants_dx: bool
    ) -> Tensor | None:
        """Gradient of x if requested; the gain's is added to d_gain [H] float32. x and dy may be strided."""
        unit, slope = x.float() * scale, dy.float()
        d_gain += (unit * slope).sum(0)
        if not wants_dx:
            return None
        slope = slope * gain.float()
        along = (unit * slope).mean(-1, keepdim=True)
        return ((slope - unit * along) * scale).to(x.dtype)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up [R, 2 * I], gate first."""
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate) * up

    def swiglu_back(self, gate_up: Tensor, dy: Tensor) -> Tensor:
        """Gradient of gate_up; dy may be strided."""
        gate, up = gate_up.chunk(2, dim=1)
        return torch.cat((torch.ops.aten.silu_backward(dy * up, gate), F.silu(gate) * dy), dim=1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
        """RoPE: x [R, heads * D] by its rows' angles, cos and sin [R, D // 2] float32; direction -1 rotates back.

        Rows of x may be strided.
        """
        rows, half = cos.shape
        first, second = x.float().view(rows, x.shape[1] // (2 * half), 2, half).unbind(2)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1) * direction
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=2)
        return rotated.view(x.shape).to(x.dtype)

    def transpose(self, x: Tensor, out: Tensor) -> Tensor:
        """x [R, C], which may be strided, into `out` [C, R]."""
        return out.copy_(x.t())

    def accumulate(self, total: Tensor, x: Tensor, scale: float) -> None:
        """total += scale * x, for float32 `total` of x's shape."""
        total.add_(x, alpha=scale)

    def softmax_(self, logits: Tensor) -> None:
        """Turn logits [R, V] into probabilities in place."""
        torch.softmax(logits, dim=-1, out=logits)

    def loss_gradient_(
        self, logits: Tensor, teacher: Tensor, counted: Tensor, *, measure: bool
    ) -> LogitMeasures | None:
        """Turn logits [R, V] into the gradient of the cross-entropy to teacher [R, V] in place.

        It is 0 in rows not `counted` [R].
        """
        if not measure:  # in place
            self.softmax_(logits)
            logits.sub_(teacher)
            logits[~counted] = 0
            return None
        best, value, p = logits.argmax(-1), logits.float(), teacher.float()
        log_sum = value.logsumexp(-1)
        q = (value - log_sum[:, None]).exp()
        overlap = torch.minimum(p, q).sum(-1).clamp_(min=1e-6)
        loss = log_sum - torch.linalg.vecdot(p, value)
        logits.copy_(q.sub_(p).masked_fill_(~counted[:, None], 0))
        return LogitMeasures(loss, overlap, best)

    def attend(self, block: Block, inputs: Inputs, output: Tensor, log_sum: Tensor) -> None:
        """The unroll's attention: fill the block's rows of output [S, heads * D] and log_sum [S, heads]."""
        attention_torch.attend(block, inputs, output, log_sum)

    def attend_back(self, block: Block, inputs: Inputs, gradients: Gradients) -> None:
        """Fill the block's rows of all gradients."""
        attention_torch.attend_back(block, inputs, gradients)
