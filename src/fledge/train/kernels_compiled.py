"""The operations of training for bf16 on a CPU, each in one pass over memory: kernels.cpp and attention.cpp."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fledge.train import attention_compiled
from fledge.train.blocks import Block, Gradients, Inputs
from fledge.train.kernels import Kernels, LogitMeasures, Normed
from fledge.train.library import MAX_HEAD_DIM, call, load_library


class CompiledKernels(Kernels):
    """The same, compiled."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def rms_norm(self, x: Tensor, gain: Tensor, eps: float) -> Normed:
        rows, width = x.shape
        x = x.contiguous()
        y, scale = torch.empty_like(x), torch.empty(rows, 1)
        call(self._library.fledge_rms_norm, x, gain, y, scale, rows, width, eps)
        return Normed(y, scale)

    def rms_norm_back(
        self, x: Tensor, gain: Tensor, scale: Tensor, dy: Tensor, d_gain: Tensor, *, wants_dx: bool
    ) -> Tensor | None:
        x, dy = x.contiguous(), dy.contiguous()
        dx = torch.empty_like(x) if wants_dx else None
        call(self._library.fledge_rms_norm_back, x, gain, scale, dy, dx, d_gain, *x.shape)
        return dx

    def swiglu(self, gate_up: Tensor) -> Tensor:
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        y = gate_up.new_empty(rows, width)
        call(self._library.fledge_swiglu, gate_up, y, rows, width)
        return y

    def swiglu_back(self, gate_up: Tensor, dy: Tensor) -> Tensor:
        slope, dy = torch.empty_like(gate_up), dy.contiguous()
        call(self._library.fledge_swiglu_back, gate_up, dy, slope, *dy.shape)
        return slope

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
        rows, half = cos.shape
        x = x if x.stride(1) == 1 else x.contiguous()
        y, cos, sin = x.new_empty(x.shape), cos.contiguous(), sin.contiguous()
        sizes = rows, x.shape[1] // (2 * half), half
        call(self._library.fledge_rope, x, x.stride(0), y, y.stride(0), cos, sin, direction, *sizes)
        return y

    def transpose(self, x: Tensor, out: Tensor) -> Tensor:
        call(self._library.fledge_transpose, x.contiguous(), out, *x.shape)
        return out

    def accumulate(self, total: Tensor, x: Tensor, scale: float) -> None:
        call(self._library.fledge_accumulate, total, x, scale, x.numel())

    def softmax_(self, logits: Tensor) -> None:
        call(self._library.fledge_softmax, logits, *logits.shape)

    def loss_gradient_(
        self, logits: Tensor, teacher: Tensor, counted: Tensor, *, measure: bool
    ) -> LogitMeasures | None:
        rows, width = logits.shape
        best = torch.empty(rows, dtype=torch.int64)
        measures = LogitMeasures(torch.empty(rows), torch.empty(rows), best) if measure else None
        tensors = (logits, teacher, counted.contiguous(), *(measures or (None, None, None)))
        call(self._library.fledge_loss_gradient, *tensors, rows, width)
        return measures

    def attend(self, block: Block, inputs: Inputs, output: Tensor, log_sum: Tensor) -> None:
        if inputs.sizes.head_dim > MAX_HEAD_DIM:
            return super().attend(block, inputs, output, log_sum)
        return attention_compiled.attend(self._library, block, inputs, output, log_sum)

    def attend_back(self, block: Block, inputs: Inputs, gradients: Gradients) -> None:
        if inputs.sizes.head_dim > MAX_HEAD_DIM:
            return super().attend_back(block, inputs, gradients)
        return attention_compiled.attend_back(self._library, block, inputs, gradients)


def kernels_for(dtype: torch.dtype, device: torch.device) -> Kernels:
    """The compiled kernels, for bf16 on a CPU if the machine can compile or a wheel has them; else torch."""
    library = load_library() if dtype == torch.bfloat16 and device.type == "cpu" else None
    return Kernels() if library is None else CompiledKernels(library)
