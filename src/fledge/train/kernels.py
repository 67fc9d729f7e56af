"""The operations of training that have compiled versions for bf16 on a CPU; which ones run is chosen once.

kernels_torch.py defines them in plain torch, for any dtype and device; kernels_compiled.py does each in one pass over
memory. tests/train/test_kernels.py compares the two.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

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


class Kernels(Protocol):
    """The operations. Tensors are contiguous unless it says otherwise."""

    def rms_norm(self, x: Tensor, gain: Tensor, eps: float) -> Normed:
        """x [R, H] / rms(x) * gain [H]; x may be strided."""

    def rms_norm_back(
        self, x: Tensor, gain: Tensor, scale: Tensor, dy: Tensor, d_gain: Tensor, *, wants_dx: bool
    ) -> Tensor | None:
        """Gradient of x if requested; the gain's is added to d_gain [H] float32. x and dy may be strided."""

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for gate_up [R, 2 * I], gate first."""

    def swiglu_back(self, gate_up: Tensor, dy: Tensor) -> Tensor:
        """Gradient of gate_up; dy may be strided."""

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor, direction: float) -> Tensor:
        """RoPE: x [R, heads * D] by its rows' angles, cos and sin [R, D // 2] float32; direction -1 rotates back.

        Rows of x may be strided.
        """

    def transpose(self, x: Tensor, out: Tensor) -> Tensor:
        """x [R, C], which may be strided, into `out` [C, R]."""

    def accumulate(self, total: Tensor, x: Tensor, scale: float) -> None:
        """total += scale * x, for float32 `total` of x's shape."""

    def softmax_(self, logits: Tensor) -> None:
        """Turn logits [R, V] into probabilities in place."""

    def loss_gradient_(
        self, logits: Tensor, teacher: Tensor, counted: Tensor, *, measure: bool
    ) -> LogitMeasures | None:
        """Turn logits [R, V] into the gradient of the cross-entropy to teacher [R, V] in place.

        It is 0 in rows not `counted` [R].
        """

    def attend(self, block: Block, inputs: Inputs, output: Tensor, log_sum: Tensor) -> None:
        """The unroll's attention: fill the block's rows of output [S, heads * D] and log_sum [S, heads]."""

    def attend_back(self, block: Block, inputs: Inputs, gradients: Gradients) -> None:
        """Fill the block's rows of all gradients."""
