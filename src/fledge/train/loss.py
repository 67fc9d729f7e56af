"""The loss and its gradient, from the head's distribution q and the target's p on the draft vocabulary.

The loss is -sum p log q, a cross-entropy: KL up to a constant. A recipe may name its own function (`train.loss`).

p is the target's distribution within the draft vocabulary.

    teacher row      distribution over       is the label of
    r                x[p_r + 2]              row r at step 0, row r - 1 at step 1, row r - 2 at step 2 ...

Supervised rows of one answer are consecutive, so at step j row r's label is simply teacher row r + j.

Logits exist for one chunk of rows at a time: they become probabilities, then their own gradient, in place, and enter
both products at once. Only the teacher has size [rows, Vd].
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fledge.base.errors import DataError
from fledge.train.kernels import Kernels, LogitMeasures
from fledge.train.weights import Weight
from fledge.train.workspace import Workspace, pieces

_CHUNK_ROWS = 2048  # rows per chunk of logits, at most: enough for full-speed products
_CHUNK_LOGITS = _CHUNK_ROWS * 16384  # so wide vocabularies take fewer rows at once

# A user-defined loss. Arguments: the head's logits [R, Vd] and the target's probabilities [R, Vd], both float32, and
# the draft ids [R] of the target's most probable tokens (int64, -1 outside the draft vocabulary). Returns [R] losses.
# One that names them as parameters also gets `step`, the TTT step, 0 first, and `outside` [R], float32, the target's
# probability of all tokens outside the draft vocabulary, which costs a product with its whole lm_head.
LossFunction = Callable[..., Tensor]
STEP, OUTSIDE = "step", "outside"


def chunk_rows(width: int) -> int:
    """Rows whose logits over a draft vocabulary of that width are in memory together."""
    return min(_CHUNK_ROWS, max(64, _CHUNK_LOGITS // width))


class StepLoss(NamedTuple):
    """One TTT step's gradient, and its measures."""

    d_hidden: Tensor  # [R, H], gradient of the step's share of the loss
    measures: LogitMeasures | None  # if requested


def teacher_probabilities(hidden: Tensor, lm_head: Tensor, kernels: Kernels) -> Tensor:
    """The target's distribution within the draft vocabulary, [S, Vd], from hidden [S, Ht] and lm_head [Ht, Vd]."""
    probabilities = hidden.new_empty(hidden.shape[0], lm_head.shape[1])
    for chunk in pieces(hidden.shape[0], chunk_rows(lm_head.shape[1])):
        part = probabilities[chunk]
        torch.mm(hidden[chunk], lm_head, out=part)
        kernels.softmax_(part)
    return probabilities


def outside_mass(hidden: Tensor, lm_head: Tensor, draft_ids: Tensor) -> Tensor:
    """The target's probability outside the draft vocabulary, [S] float32.

    From hidden [S, Ht], its whole lm_head [V, Ht], and the draft ids [V], -1 outside.
    """
    outside = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
    for chunk in pieces(hidden.shape[0], _CHUNK_ROWS // 8):
        probabilities = torch.mm(hidden[chunk], lm_head.t()).float().softmax(-1)
        outside[chunk] = probabilities[:, draft_ids < 0].sum(-1)
    return outside


def named_in(loss: LossFunction | None) -> set[str]:
    """The further parameters that a user-defined loss names."""
    return set() if loss is None else {STEP, OUTSIDE} & set(inspect.signature(loss).parameters)


@torch.no_grad()
def step_loss(
    hidden: Tensor,
    lm_head: Weight,
    teacher: Tensor,
    best: Tensor,
    counted: Tensor,
    own_loss: LossFunction | None,
    scale: float,
    workspace: Workspace,
    *,
    measure: bool,
    step: int = 0,
    outside: Tensor | None = None,
) -> StepLoss:
    """The loss of one step and its gradients; lm_head's is added to its buffer.

    Args:
        hidden: [R, H], the head's output after the final norm.
        lm_head: its weight, stored [H, Vd] or [Vd, H].
        teacher: [R, Vd] the target's distribution for these rows.
        best: [R] draft id of the target's most probable token, -1 outside the vocabulary.
        counted: [R] bool, rows in the loss.
        own_loss: a user-defined loss; None: the cross-entropy.
        scale: the weight of each counted row.
        workspace: scratch memory.
        measure: whether to return measures.
        step: the TTT step, for a user-defined loss.
        outside: [R] the target's probability outside the draft vocabulary, for a user-defined loss that names it.
    """
    also: dict[str, Any] = {STEP: step} if STEP in named_in(own_loss) else {}
    rows, width = teacher.shape
    d_hidden = torch.empty_like(hidden)
    parts = []
    for chunk in pieces(rows, chunk_rows(width)):
        shape = (chunk.stop - chunk.start, width)
        logits = workspace.take("logits", shape, hidden.dtype, hidden.device)
        matrix = lm_head.compute if lm_head.transposed else lm_head.compute.t()
        torch.mm(hidden[chunk], matrix, out=logits)
        if own_loss is None:
            part = lm_head.kernels.loss_gradient_(logits, teacher[chunk], counted[chunk], measure=measure)
        else:
            labels = teacher[chunk], best[chunk], counted[chunk]
            if outside is not None:
                also[OUTSIDE] = outside[chunk]
            part = own_loss_gradient_(logits, *labels, own_loss, measure=measure, also=also)
        if part is not None:
            parts.append(part)
        lm_head.multiply_back(logits, out=d_hidden[chunk])
        lm_head.add_gradient(hidden[chunk], logits, workspace, scale)
    measures = LogitMeasures(*(torch.cat(part) for part in zip(*parts, strict=True))) if parts else None
    return StepLoss(d_hidden.mul_(scale), measures)


def own_loss_gradient_(
    logits: Tensor,
    teacher: Tensor,
    target: Tensor,
    counted: Tensor,
    loss: LossFunction,
    *,
    measure: bool,
    also: Mapping[str, Any] = {},
) -> LogitMeasures | None:
    """Turn logits [R, V] into the gradient of a user-defined loss in place; it is 0 in rows not `counted` [R].

    teacher [R, V] holds the target's probabilities, target [R] int64 the index of its most probable token or -1.
    `also`: the further arguments that the function names.
    Raises a DataError for a result that can't be trained on.
    """
    value = logits.to(torch.float32, copy=True).requires_grad_()
    with torch.enable_grad():
        # Copies: a function that writes into them must not change them for later steps.
        losses = loss(value, teacher.to(torch.float32, copy=True), target.clone(), **also)
        if not isinstance(losses, Tensor) or losses.shape != target.shape:
            returned = tuple(losses.shape) if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
            raise DataError(
                f"train.loss: the function returns {returned} for {len(target)} rows; "
                "it must return one number per row"
            )
        if not losses.requires_grad:
            raise DataError("train.loss: the function's result doesn't depend on the logits, or was detached")
        (slope,) = torch.autograd.grad(losses.float() @ counted.to(losses.device, torch.float32), value)
    wrong = counted & ~(losses.isfinite().to(counted.device) & slope.isfinite().all(-1))
    if wrong.any() and value[wrong].isfinite().all():  # otherwise training has diverged
        raise DataError(
            f"train.loss: in {int(wrong.sum())} of {int(counted.sum())} rows the function's loss or gradient isn't "
            "finite although the logits are; look for log, sqrt and division at 0, then run the same command again"
        )
    logits.copy_(slope.masked_fill_(~counted[:, None], 0.0))
    if not measure:
        return None
    value = value.detach()
    overlap = torch.minimum(teacher.float(), value.softmax(-1)).sum(-1)
    return LogitMeasures(losses.detach().float(), overlap, value.argmax(-1))
