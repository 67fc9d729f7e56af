"""AdamW on the flat float32 masters, with warm-up, cosine decay, clipping, and an average of the weights if wanted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fledge.train.options import TrainOptions
from fledge.train.weights import TrainableWeights


class Optimizer:
    """Turns the gradients in the weights' buffer into one update."""

    def __init__(self, weights: TrainableWeights, options: TrainOptions, total_steps: int) -> None:
        self._weights = weights
        self._options = options
        self._total = total_steps
        self._first = torch.zeros_like(weights.master)  # AdamW's moments
        self._second = torch.zeros_like(weights.master)
        self.average = weights.master.clone() if options.ema else None

    def learning_rate(self, step: int) -> float:
        """The rate of step 0, 1, ...: linear up, then half a cosine down to `final_learning_rate` of the peak."""
        o = self._options
        warmup = max(1, round(o.warmup * self._total))
        if step < warmup:
            return o.learning_rate * (step + 1) / warmup
        done = (step - warmup) / max(1, self._total - warmup)
        share = o.final_learning_rate + (1 - o.final_learning_rate) * 0.5 * (1 + math.cos(math.pi * done))
        return o.learning_rate * share

    def update(self, step: int) -> float:
        """Apply the gradients, clear them, refresh the compute copies. Returns the gradient norm before clipping."""
        w, o = self._weights, self._options
        norm = float(w.grad.norm())
        if norm > o.clip:
            w.grad.mul_(o.clip / norm)
        matrices = w.matrix_size
        for span, decay in ((slice(0, matrices), o.weight_decay), (slice(matrices, None), 0.0)):
            if w.master[span].numel():
                self._adamw(span, step, decay)
        w.grad.zero_()
        w.refresh()
        if self.average is not None:
            decay = min(o.ema, (step + 1) / (step + 10))  # early on the average follows closely
            self.average.lerp_(w.master, 1 - decay)
        return norm

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed run needs."""
        state = {"master": self._weights.master, "first": self._first, "second": self._second}
        return state if self.average is None else state | {"average": self.average}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from `state()`."""
        for name, tensor in self.state().items():
            tensor.copy_(state[name])
        self._weights.refresh()

    def _adamw(self, span: slice, step: int, decay: float) -> None:
        """One fused pass over masters, gradients and moments."""
        o, count = self._options, torch.tensor(float(step + 1))
        torch._fused_adamw_(
            [self._weights.master[span]],
            [self._weights.grad[span]],
            [self._first[span]],
            [self._second[span]],
            [],
            [count],
            lr=self.learning_rate(step),
            beta1=o.beta1,
            beta2=o.beta2,
            weight_decay=decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )
