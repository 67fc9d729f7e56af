"""The loss: soft cross-entropy against the target's distribution on the draft vocabulary, and its gradient.

    teacher row      distribution over       is the label of
    r                x[p_r + 2]              row r at step 0, row r - 1 at step 1, row r - 2 at step 2 ...

Supervised rows of one answer follow each other, so at step j row r's label is simply teacher row r + j.

Logits exist for one chunk of rows at a time: they become probabilities, then their own gradient, in place, and go into
both products at once. Nothing of size [rows, Vd] is kept but the teacher.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fledge.train.elementwise import softmax_, softmax_gradient_
from fledge.train.weights import Weight
from fledge.train.workspace import Workspace, pieces

_CHUNK_ROWS = 2048  # rows whose logits exist at once: enough for the products to run at full speed


@dataclass(frozen=True)
class StepLoss:
    """What one TTT step gives. Sums are over its supervised rows; None where they were not asked for."""

    d_hidden: Tensor  # [R, H], gradient of the step's share of the loss
    loss: Tensor | None  # mean cross-entropy of the rows in the loss
    hits: Tensor | None  # [R] bool, the proposal is the conversation's own next token


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
    counted: Tensor,
    scale: float,
    labels: Tensor,
    workspace: Workspace,
    *,
    measure: bool,
) -> StepLoss:
    """The loss of one step and its gradients; lm_head's is added to its buffer.

    Args:
        hidden: [R, H], the head's output after the final norm.
        lm_head: its weight, stored [H, Vd] or [Vd, H].
        teacher: [R, Vd] the target's distribution for these rows.
        counted: [R] bool, rows that are in the loss.
        scale: what each of them counts.
        labels: [R] draft id of the conversation's own next token, -1 outside the vocabulary.
        workspace: scratch memory.
        measure: also compute the loss' value and the hits, which training itself doesn't need.
    """
    rows, width = teacher.shape
    d_hidden = torch.empty_like(hidden)
    values = torch.zeros(rows, dtype=torch.float32, device=hidden.device) if measure else None
    hits = torch.zeros(rows, dtype=torch.bool, device=hidden.device) if measure else None
    for chunk in pieces(rows, _CHUNK_ROWS):
        shape = (chunk.stop - chunk.start, width)
        logits = workspace.take("logits", shape, hidden.dtype, hidden.device)
        matrix = lm_head.compute if lm_head.transposed else lm_head.compute.t()
        torch.mm(hidden[chunk], matrix, out=logits)
        found = softmax_gradient_(logits, teacher[chunk], counted[chunk], measure=measure)
        if found is not None and values is not None and hits is not None:
            values[chunk] = found.loss
            hits[chunk] = found.best == labels[chunk]
        lm_head.multiply_back(logits, out=d_hidden[chunk])
        lm_head.add_gradient(hidden[chunk], logits, workspace, scale)
    loss = None if values is None else values[counted].mean()
    return StepLoss(d_hidden.mul_(scale), loss, hits)
