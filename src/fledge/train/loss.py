"""The loss and its gradient, from the head's distribution q and the target's p on the draft vocabulary.

    kl     -sum p log q             soft cross-entropy: KL but for a constant
    hard   -log q[argmax p]         cross-entropy to the token a greedy target will take
    tv     1 - sum min(p, q)        what rejection sampling rejects at temperature 1: the total variation distance
    lk     -log sum min(p, q)       the same as a log-likelihood of acceptance: strong where acceptance is low

A recipe mixes them (`train.loss`). p is the target's distribution within the draft vocabulary.

    teacher row      distribution over       is the label of
    r                x[p_r + 2]              row r at step 0, row r - 1 at step 1, row r - 2 at step 2 ...

Supervised rows of one answer follow each other, so at step j row r's label is simply teacher row r + j.

Logits exist for one chunk of rows at a time: they become probabilities, then their own gradient, in place, and go into
both products at once. Nothing of size [rows, Vd] is kept but the teacher.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.train.elementwise import LogitMeasures, LossMix, loss_gradient_, softmax_
from fledge.train.weights import Weight
from fledge.train.workspace import Workspace, pieces

_CHUNK_ROWS = 2048  # rows whose logits exist at once: enough for the products to run at full speed


class StepLoss(NamedTuple):
    """What one TTT step gives."""

    d_hidden: Tensor  # [R, H], gradient of the step's share of the loss
    measures: LogitMeasures | None  # where they were asked for


def teacher_probabilities(hidden: Tensor, lm_head: Tensor) -> Tensor:
    """The target's distribution within the draft vocabulary, [S, Vd], from hidden [S, Ht] and lm_head [Ht, Vd]."""
    probabilities = hidden.new_empty(hidden.shape[0], lm_head.shape[1])
    for chunk in pieces(hidden.shape[0], _CHUNK_ROWS):
        part = probabilities[chunk]
        torch.mm(hidden[chunk], lm_head, out=part)
        softmax_(part)
    return probabilities


def step_loss(
    hidden: Tensor,
    lm_head: Weight,
    teacher: Tensor,
    best: Tensor,
    counted: Tensor,
    mix: LossMix,
    scale: float,
    workspace: Workspace,
    *,
    measure: bool,
) -> StepLoss:
    """The loss of one step and its gradients; lm_head's is added to its buffer.

    Args:
        hidden: [R, H], the head's output after the final norm.
        lm_head: its weight, stored [H, Vd] or [Vd, H].
        teacher: [R, Vd] the target's distribution for these rows.
        best: [R] draft id of the target's most probable token, -1 outside the vocabulary.
        counted: [R] bool, rows that are in the loss.
        mix: which loss.
        scale: what each of them counts.
        workspace: scratch memory.
        measure: whether the measures are wanted.
    """
    rows, width = teacher.shape
    d_hidden = torch.empty_like(hidden)
    parts = []
    for chunk in pieces(rows, _CHUNK_ROWS):
        shape = (chunk.stop - chunk.start, width)
        logits = workspace.take("logits", shape, hidden.dtype, hidden.device)
        matrix = lm_head.compute if lm_head.transposed else lm_head.compute.t()
        torch.mm(hidden[chunk], matrix, out=logits)
        found = loss_gradient_(logits, teacher[chunk], best[chunk], counted[chunk], mix, measure=measure)
        if found is not None:
            parts.append(found)
        lm_head.multiply_back(logits, out=d_hidden[chunk])
        lm_head.add_gradient(hidden[chunk], logits, workspace, scale)
    measures = LogitMeasures(*(torch.cat(part) for part in zip(*parts, strict=True))) if parts else None
    return StepLoss(d_hidden.mul_(scale), measures)
