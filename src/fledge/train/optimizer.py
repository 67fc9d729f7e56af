"""Updates of the flat float32 masters, with warm-up, cosine decay and clipping.

The layer's matrices are updated by Muon (momentum, then the nearest orthogonal matrix; Jordan et al. 2024, scaled to
AdamW's step size as in arXiv 2502.16982), lm_head and norms by AdamW. Or everything by AdamW.

Masters and moments may be sharded (parallel.py). AdamW works on a shard as it is. Muon needs whole matrices:

    momentum of a shard -> all-gather -> orthogonalise, each matrix in one process -> broadcast -> update of a shard
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fledge.base.errors import DataError
from fledge.train.options import TrainOptions
from fledge.train.weights import TrainableWeights, Weight

# Five steps of this quintic bring all singular values near 1 (Jordan et al., "Muon", 2024).
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5
_MUON_MOMENTUM = 0.95
_MUON_RMS = 0.2  # as AdamW's updates, so that learning rates are comparable


class Optimizer:
    """Turns the gradients in the weights' buffer into one update."""

    def __init__(self, weights: TrainableWeights, options: TrainOptions, total_steps: int) -> None:
        self._weights = weights
        self._options = options
        self.total_steps = total_steps  # the schedule's length
        masters = weights.masters.shard
        self._first = torch.zeros_like(masters)  # AdamW's moments; the first is Muon's momentum too
        self._second = torch.zeros_like(masters)
        self.best = masters.clone() if options.keep == "best" else None  # the weights kept so far
        every, muon = weights.weights.values(), options.optimizer == "muon"
        self._matrices = [w for w in every if muon and _in_layer(w)]  # updated by Muon
        self._adamw_weights = [w for w in every if not (muon and _in_layer(w))]  # updated by AdamW

    def learning_rate(self, step: int) -> float:
        """AdamW's rate of step 0, 1, ...: linear warm-up, then cosine decay to `final_learning_rate` of the peak."""
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
        """Sum the gradients over all processes, apply and clear them, refresh the compute copies.

        Returns the gradient norm before clipping. Raises a DataError if it isn't finite; nothing is changed then.
        """
        w, o = self._weights, self._options
        grad = w.masters.reduce(w.grad)  # [P], this process' shard
        norm = w.masters.norm(grad)
        if not math.isfinite(norm):
            raise DataError(
                f"the gradient of step {step + 1} isn't finite: training has diverged; lower train.learning_rate and "
                "train.muon_learning_rate, and train in another folder"
            )
        if norm > o.clip:
            grad.mul_(o.clip / norm)
        for weight in self._adamw_weights:
            self._adamw(weight, grad, step)
        if self._matrices:
            self._muon(grad, step)
        w.grad.zero_()
        w.refresh()
        return norm

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo the updates made inside. Only for use before the first update of the run."""
        before = self._weights.masters.shard.clone()
        try:
            yield
        finally:
            self._weights.masters.shard.copy_(before)
            self._weights.grad.zero_()
            self._first.zero_()
            self._second.zero_()
            self._weights.refresh()

    def keep(self) -> None:
        """Keep the weights as they are now as the best ones."""
        assert self.best is not None
        self.best.copy_(self._weights.masters.shard)

    @property
    def state_bytes(self) -> int:
        """Size of `state()`."""
        return len(self._shards()) * self._weights.grad.nbytes

    def state(self) -> dict[str, Tensor]:
        """A copy of the complete state for a resumed run, to be saved by the leader. It isn't sharded, so any number of
        processes can resume from it. All processes call this."""
        return {name: self._weights.masters.gather_to_leader(shard) for name, shard in self._shards().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Resume from a `state()`."""
        for name, shard in self._shards().items():
            shard.copy_(state[name][self._weights.masters.span])
        self._weights.refresh()

    def _shards(self) -> dict[str, Tensor]:
        shards = {"master": self._weights.masters.shard, "first": self._first, "second": self._second}
        return shards if self.best is None else shards | {"best": self.best}

    def _muon(self, grad: Tensor, step: int) -> None:
        """Update each matrix by the orthogonal matrix nearest to its Nesterov momentum. `grad` [P] is overwritten."""
        w, o, masters = self._weights, self._options, self._weights.masters
        for weight in self._matrices:
            mine = w.in_shard(weight)
            momentum, direction = self._first[mine], grad[mine]
            momentum.lerp_(direction, 1 - _MUON_MOMENTUM)
            direction.lerp_(momentum, _MUON_MOMENTUM)
        w.grad.copy_(masters.all_gather(grad))
        for turn, weight in enumerate(self._matrices):
            if masters.computes(turn):
                weight.grad.copy_(orthogonal(weight.grad, weight.compute.dtype))
        rate, directions = o.muon_learning_rate * self._schedule(step), w.grad[masters.span]
        for turn, weight in enumerate(self._matrices):
            masters.broadcast(weight.grad, turn)
            master = masters.shard[w.in_shard(weight)]
            if o.weight_decay:
                master.mul_(1 - rate * o.weight_decay)
            size = _MUON_RMS * math.sqrt(max(weight.grad.shape))
            master.add_(directions[w.in_shard(weight)], alpha=-rate * size)

    def _adamw(self, weight: Weight, grad: Tensor, step: int) -> None:
        """One fused pass over this process' shard of a weight's master, gradient and moments."""
        o, mine = self._options, self._weights.in_shard(weight)
        if mine.start == mine.stop:
            return
        count = torch.tensor(float(step + 1), device=grad.device)
        torch._fused_adamw_(
            [self._weights.masters.shard[mine]],
            [grad[mine]],
            [self._first[mine]],
            [self._second[mine]],
            [],
            [count],
            lr=self.learning_rate(step) * (o.lm_head_rate if weight.name == "lm_head" else 1.0),
            beta1=o.beta1,
            beta2=o.beta2,
            weight_decay=o.weight_decay if weight.grad.dim() == 2 else 0.0,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


def _in_layer(weight: Weight) -> bool:
    """True if Muon may update this matrix."""
    return weight.grad.dim() == 2 and weight.name != "lm_head"


def orthogonal(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """Roughly the nearest matrix [m, n] with all singular values 1, by Newton-Schulz steps in `dtype`."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    x = (wide / (wide.norm() + 1e-7)).to(dtype)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.t()
        x = a * x + (b * square + c * (square @ square)) @ x
    return x if wide is matrix else x.t()
