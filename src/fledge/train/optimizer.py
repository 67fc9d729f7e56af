"""Updates of the flat float32 masters, with warm-up, cosine decay, clipping, and an average of the weights if wanted.

The layer's matrices move by Muon (momentum, then the nearest orthogonal matrix; Jordan et al. 2024, scaled to AdamW's
step size as in arXiv 2502.16982), lm_head and norms by AdamW. Or everything by AdamW.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fledge.train.options import TrainOptions
from fledge.train.weights import TrainableWeights, Weight

# Five steps of this quintic bring all singular values near 1 (Jordan et al., "Muon", 2024).
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_MUON_MOMENTUM = 0.95
_MUON_RMS = 0.2  # what AdamW's updates have, so that rates are comparable


class Optimizer:
    """Turns the gradients in the weights' buffer into one update."""

    def __init__(self, weights: TrainableWeights, options: TrainOptions, total_steps: int) -> None:
        self._weights = weights
        self._options = options
        self.total_steps = total_steps  # the schedule's length
        self._first = torch.zeros_like(weights.master)  # AdamW's moments; the first is Muon's momentum too
        self._second = torch.zeros_like(weights.master)
        self.average = weights.master.clone() if options.ema else None

    def learning_rate(self, step: int) -> float:
        """AdamW's rate of step 0, 1, ...: linear up, then half a cosine down to `final_learning_rate` of the peak."""
        return self._options.learning_rate * self._schedule(step)

    def _schedule(self, step: int) -> float:
        """The rate of a step relative to the peak."""
        o = self._options
        warmup = max(1, round(o.warmup * self.total_steps))
        if step < warmup:
            return (step + 1) / warmup
        done = (step - warmup) / max(1, self.total_steps - warmup)
        return o.final_learning_rate + (1 - o.final_learning_rate) * 0.5 * (1 + math.cos(math.pi * done))

    def update(self, step: int) -> float:
        """Apply the gradients, clear them, refresh the compute copies. Returns the gradient norm before clipping."""
        w, o = self._weights, self._options
        norm = float(w.grad.norm())
        if norm > o.clip:
            w.grad.mul_(o.clip / norm)
        start = 0
        for weight in w.weights.values():
            span = slice(start, start + weight.master.numel())
            matrix = weight.master.dim() == 2
            if o.optimizer == "muon" and matrix and weight.name != "lm_head":
                self._muon(weight, span, step)
            else:
                share = o.lm_head_rate if weight.name == "lm_head" else 1.0
                self._adamw(span, step, o.weight_decay if matrix else 0.0, share)
            start = span.stop
        w.grad.zero_()
        w.refresh()
        if self.average is not None:
            decay = min(o.ema, (step + 1) / (step + 10))  # early on the average follows closely
            self.average.lerp_(w.master, 1 - decay)
        return norm

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Take back the updates made inside; only before the first update that stays."""
        before = self._weights.master.clone()
        try:
            yield
        finally:
            self._weights.master.copy_(before)
            self._weights.grad.zero_()
            self._first.zero_()
            self._second.zero_()
            if self.average is not None:
                self.average.copy_(before)
            self._weights.refresh()

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed run needs."""
        state = {"master": self._weights.master, "first": self._first, "second": self._second}
        return state if self.average is None else state | {"average": self.average}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from `state()`."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self._weights.refresh()

    def _muon(self, weight: Weight, span: slice, step: int) -> None:
        """Move a matrix along the orthogonal matrix nearest to its Nesterov momentum."""
        o = self._options
        rate = o.muon_learning_rate * self._schedule(step)
        momentum = self._first[span].view(weight.master.shape)
        momentum.lerp_(weight.grad, 1 - _MUON_MOMENTUM)
        update = orthogonal(weight.grad.lerp(momentum, _MUON_MOMENTUM), weight.compute.dtype)
        if o.weight_decay:
            weight.master.mul_(1 - rate * o.weight_decay)
        weight.master.add_(update, alpha=-rate * _MUON_RMS * math.sqrt(max(update.shape)))

    def _adamw(self, span: slice, step: int, decay: float, share: float) -> None:
        """One fused pass over masters, gradients and moments, at `share` of the rate."""
        o, count = self._options, torch.tensor(float(step + 1))
        torch._fused_adamw_(
            [self._weights.master[span]],
            [self._weights.grad[span]],
            [self._first[span]],
            [self._second[span]],
            [],
            [count],
            lr=share * self.learning_rate(step),
            beta1=o.beta1,
            beta2=o.beta2,
            weight_decay=decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Roughly the nearest matrix [m, n] with all singular values 1, float32, by Newton-Schulz steps in `dtype`."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    x = (wide / (wide.norm() + 1e-7)).to(dtype)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.t()
        x = a * x + (b * square + c * (square @ square)) @ x
    return (x if wide is matrix else x.t()).float()
