"""The operations of training in plain torch: the reference, for any dtype and device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.train import attention_torch
from fledge.train.blocks import Block, Gradients, Inputs
from fledge.train.kernels import LogitMeasures, Normed


class TorchKernels:
    """See `Kernels`."""

    def rms_norm(self, x: Tensor, gain: Tensor, eps: float) -> Normed:
        value = x.float()
        scale = value.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        return Normed((value * scale * gain.float()).to(x.dtype), scale)

    def rms_norm_back(
        self, x: Tensor, gain: Tensor, scale: Tensor, dy: Tensor, d_gain: Tensor, *, wants_dx: bool
    ) -> Tensor | None:
        unit, slope = x.float() * scale, dy.float()
        d_gain += (unit * slope).sum(0)
        if not wants_dx:
            return None
        slope = slope * gain.float()
        along = (unit * slope).mean(-1, keepdim=True)
        return ((slope - unit * along) * scale).to(x.dtype)

    def swiglu(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        return F.silu(gate) * up

    def swiglu_back(self, gate_up: Tensor, dy: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        return torch.cat((torch.ops.aten.silu_backward(dy * up, gate), F.silu(gate) * dy), dim=1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
        rows, half = cos.shape
        first, second = x.float().view(rows, x.shape[1] // (2 * half), 2, half).unbind(2)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1) * direction
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=2)
        return rotated.view(x.shape).to(x.dtype)

    def transpose(self, x: Tensor, out: Tensor) -> Tensor:
        return out.copy_(x.t())

    def accumulate(self, total: Tensor, x: Tensor, scale: float) -> None:
        total.add_(x, alpha=scale)

    def softmax_(self, logits: Tensor) -> None:
        torch.softmax(logits, dim=-1, out=logits)

    def loss_gradient_(
        self, logits: Tensor, teacher: Tensor, counted: Tensor, *, measure: bool
    ) -> LogitMeasures | None:
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
        attention_torch.attend(block, inputs, output, log_sum)

    def attend_back(self, block: Block, inputs: Inputs, gradients: Gradients) -> None:
        attention_torch.attend_back(block, inputs, gradients)
