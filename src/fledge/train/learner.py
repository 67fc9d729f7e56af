"""One training step: unroll the head over a batch, compare every step with the target, collect gradients."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fledge.draft import HeadWeights
from fledge.heads import Head
from fledge.target import EndWeights
from fledge.train.batches import TrainBatch
from fledge.train.loss import (
    OUTSIDE,
    LossFunction,
    named_in,
    outside_mass,
    step_loss,
    teacher_probabilities,
)
from fledge.train.parallel import Ranks
from fledge.train.unroll import UnrolledHead

logger = logging.getLogger("fledge")

ALONE = Ranks()


@dataclass(frozen=True)
class BatchMeasures:
    """Loss, overlap and accuracy of one batch, by TTT step."""

    loss: float  # weighted over the steps, as minimised
    losses: list[float]  # per step
    overlap: list[float]  # per step, acceptance at temperature 1 within the draft vocabulary
    # Per step, share of valid rows whose proposal is the conversation's own token; misses count as wrong
    accuracy: list[float]


class Learner:
    """A head in training, and the target's lm_head rows for the draft vocabulary, its teacher."""

    def __init__(
        self,
        head: Head,
        target: EndWeights[Tensor],
        dtype: torch.dtype,
        device: torch.device,
        own_loss: LossFunction | None = None,
    ) -> None:
        """It computes in `dtype`, or in float32 where bf16 is slow: see `fast_dtype`."""
        dtype = fast_dtype(dtype, device)
        embedding = target.embedding if head.weights.embedding is None else head.weights.embedding
        self.head = head
        self.unrolled = UnrolledHead(head.config, head.weights, embedding, dtype, device)
        self.dtype, self.device = dtype, device
        self._own_loss = own_loss
        vocabulary = head.vocabulary
        self._teacher = target.lm_head[vocabulary.token_ids].to(device, dtype).t().contiguous()  # [Ht, Vd]
        self._draft_ids = vocabulary.draft_ids.to(device)  # [V]
        self._whole = target.lm_head.to(device, dtype) if OUTSIDE in named_in(own_loss) else None  # [V, Ht]

    def learn(
        self, batch: TrainBatch | None, step_weights: list[float], *, measure: bool, ranks: Ranks = ALONE
    ) -> BatchMeasures | None:
        """Accumulate the gradients of this process' share of a batch (None: it has none).

        `step_weights`, one per TTT step, sum to 1. A step's loss is a mean over the supervised rows of all shares.
        """
        steps = len(step_weights)
        sums = torch.zeros(4, steps, dtype=torch.float64)  # loss, overlap, hits, valid rows
        counts = torch.zeros(steps, dtype=torch.int64)
        counted: list[Tensor] = []  # per step, the rows in its loss
        if batch is not None:
            best = self._draft_ids[batch.argmax]
            counted = [batch.valid(step) & (best[step:] >= 0) for step in range(steps)]
            counts = torch.tensor([int(rows.sum()) for rows in counted])
        ranks.sum_(counts)
        if batch is not None:
            self._learn_share(batch, best, step_weights, counted, counts.tolist(), sums if measure else None)
        if not measure:
            return None
        loss, overlap, hits, valid = ranks.sum_(sums)
        seen = int((counts > 0).sum())  # steps without rows come last
        if not seen:
            return None
        losses, overlaps = (part[:seen] / counts[:seen] for part in (loss, overlap))
        total = sum(w * value for w, value in zip(step_weights, losses.tolist(), strict=False))
        return BatchMeasures(total, losses.tolist(), overlaps.tolist(), (hits / valid)[:seen].tolist())

    def _learn_share(
        self,
        batch: TrainBatch,
        best: Tensor,
        step_weights: list[float],
        counted: list[Tensor],
        counts: list[int],
        sums: Tensor | None,
    ) -> None:
        """Forward, loss and backward of one share; `counts` cover all shares, `sums` [4, steps] is added to."""
        workspace = self.unrolled.workspace
        lm_head = self.unrolled.weights["lm_head"]
        outputs, gradients = [], []
        with bf16_products(self.dtype):
            teacher = teacher_probabilities(batch.teacher_hidden, self._teacher, lm_head.kernels)  # [S, Vd]
            labels, outside = self._draft_ids[batch.labels], None
            if self._whole is not None:
                outside = outside_mass(batch.teacher_hidden, self._whole, self._draft_ids)
            for step, hidden in enumerate(self.unrolled.unroll(batch, len(step_weights))):
                valid, mine = batch.valid(step), counted[step]
                if not mine.any():
                    continue
                result = step_loss(
                    hidden.detach()[: len(valid)],
                    lm_head,
                    teacher[step:],
                    best[step:],
                    mine,
                    self._own_loss,
                    step_weights[step] / counts[step],
                    workspace,
                    measure=sums is not None,
                    step=step,
                    outside=None if outside is None else outside[step:],
                )
                outputs.append(hidden[: len(valid)])
                gradients.append(result.d_hidden)
                if sums is not None and result.measures is not None:
                    loss, overlap, proposed = result.measures
                    hits = proposed == labels[step:]
                    means = [float(part[mine].mean()) * int(mine.sum()) for part in (loss, overlap)]
                    sums[:, step] = torch.tensor([*means, float(hits[valid].sum()), float(valid.sum())])
            del teacher
            if outputs:
                torch.autograd.backward(outputs, gradients)

    @torch.no_grad()
    def outputs(self, batch: TrainBatch, steps: int) -> Iterator[Tensor]:
        """The lm_head's inputs at each step, [R, H], of the rows that have a label there."""
        with bf16_products(self.dtype):
            for step, hidden in enumerate(self.unrolled.unroll(batch, steps)):
                yield hidden[: len(batch.valid(step))]

    @torch.no_grad()
    def hits(self, batch: TrainBatch, steps: int) -> Tensor:
        """[steps, S] bool: at this step the row is valid and its proposal is the conversation's own token."""
        labels = self._draft_ids[batch.labels]
        hits = torch.zeros(steps, len(labels), dtype=torch.bool)
        with bf16_products(self.dtype):
            for step, hidden in enumerate(self.unrolled.unroll(batch, steps)):
                valid = batch.valid(step)
                proposals = self._best(hidden[: len(valid)])
                hits[step, : len(valid)] = (valid & (proposals == labels[step:])).cpu()
        return hits

    def trained_head(self, shard: Tensor | None = None) -> HeadWeights:
        """The current weights, or those in another buffer that is sharded like the masters."""
        return self.unrolled.head_weights(self.head.weights, shard)

    def _best(self, hidden: Tensor) -> Tensor:
        weight = self.unrolled.weights["lm_head"]
        parts = [weight.multiply(part).max(-1).indices for part in hidden.split(512)]
        return torch.cat(parts) if parts else hidden.new_empty(0, dtype=torch.int64)


def fast_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The type to compute in: float32 instead of bfloat16 on a CPU for which PyTorch has no fast bf16 products.

    On x86 without AVX-512 it multiplies bf16 matrices in plain loops, at a hundredth of float32's speed.
    """
    if dtype != torch.bfloat16 or device.type != "cpu" or _multiplies_bf16():
        return dtype
    return torch.float32


@functools.cache
def _multiplies_bf16() -> bool:
    if torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return True
    logger.info("heads are trained and evaluated in float32: PyTorch has no fast bf16 products for this CPU")
    return False


@contextmanager
def bf16_products(dtype: torch.dtype) -> Iterator[None]:
    """While training in bf16 on a CPU, let float32 products round their factors to bf16 and keep float32 results."""
    backend: Any = torch.backends.mkldnn
    settings = backend.matmul
    before = settings.fp32_precision
    if dtype == torch.bfloat16:
        settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before
