"""Low-rank estimates of a head's lm_head, by which it finds the candidates that get exact scores (EAGLE-4).

    x [H] --down [r, H]--> [r] --up [Vd, r]--> estimates [Vd] --the largest--> candidates --their lm_head rows--> scores

Of all products of rank r the one with the least mean square error of the scores, over the head's outputs x, comes from
the singular value decomposition of lm_head C^(1/2), C = mean of x x^T: scores of what the head never puts out may be
wrong. From there, EAGLE-4's second stage can train the two matrices, with the rest of the head frozen: it minimises the
forward KL from the exact scores' softmax to the estimates', over the outputs of all steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.base.errors import RecipeError
from fledge.draft.description import HeadConfig
from fledge.features.extract import by_tokens
from fledge.heads import Head
from fledge.target import EndWeights, Target
from fledge.train.batches import TrainBatch, even_subset, is_trainable
from fledge.train.feed import FeatureSource, read_batch
from fledge.train.learner import Learner
from fledge.train.options import TrainOptions
from fledge.train.start import drawn_conversations

logger = logging.getLogger("fledge")

_ENOUGH_TOKENS = 30_000  # of conversations, for the second moment
_RATE = 0.02  # of AdamW, relative to a matrix' root mean square
_LOGITS = 1 << 22  # of a step, rows times tokens: what memory holds at once
_LEAST = 1e-4  # of C's eigenvalues, relative to their mean: directions that the sample lacks are kept
_MULTIPLE = 32  # of ranks, as the kernels want


class Asked(NamedTuple):
    """The estimates that a head is to get; no candidates: none."""

    candidates: int
    rank: int


def asked_estimates(start: HeadConfig, options: TrainOptions) -> Asked:
    """Those that the options name, or else those that training starts with.

    Raises a RecipeError for estimates that a head of these sizes can't have, and for options without effect.
    """
    count = start.candidates if options.candidates is None else options.candidates
    quarter = start.hidden_size // 4 // _MULTIPLE * _MULTIPLE
    rank = options.candidate_rank or start.candidate_rank or max(_MULTIPLE, quarter)
    if not count and (options.candidate_rank or options.candidate_steps):
        raise RecipeError(
            "train.candidate_rank and train.candidate_steps are of low-rank estimates, which the head doesn't get: set "
            "train.candidates, or leave them out"
        )
    if count and (count > start.draft_vocab_size or rank > start.hidden_size):
        raise RecipeError(
            f"train.candidates={count} of rank {rank} don't fit a head of {start.draft_vocab_size} tokens and hidden "
            f"size {start.hidden_size}: neither may be larger"
        )
    return Asked(count, rank)


def as_asked(head: Head, asked: Asked, target: Target, source: FeatureSource, options: TrainOptions) -> Head:
    """The trained head with these estimates, from the conversations that it was trained on."""
    if not asked.candidates:
        return head
    drawn = drawn_conversations(source.split("train"), options, source.url)
    chosen = even_subset([info for info in drawn if is_trainable(info)], _ENOUGH_TOKENS)
    parts = by_tokens(chosen, options.batch_tokens, lambda info: info.tokens)
    batches = (read_batch(source, infos, torch.float32, target.device) for infos in parts)
    read = (batch for batch in batches if batch is not None)
    steps = {"steps": options.ttt_steps, "train_steps": options.candidate_steps}
    return with_candidates(head, target.ends, read, count=asked.candidates, rank=asked.rank, **steps)


def with_candidates(
    head: Head,
    ends: EndWeights[Tensor],
    batches: Iterable[TrainBatch],
    *,
    count: int,
    rank: int,
    steps: int,
    train_steps: int = 0,
) -> Head:
    """The head with low-rank estimates of its lm_head, from its outputs over `steps` TTT steps of the batches.

    Args:
        head: one that scores all tokens.
        ends: the target's embedding, norm and lm_head.
        batches: as for training, float32.
        count: candidates that get exact scores.
        rank: r of the estimates.
        steps: TTT steps.
        train_steps: of the second stage.
    """
    learner = Learner(head, ends, torch.float32, ends.embedding.device)
    outputs = (x for batch in batches for x in learner.outputs(batch, steps))
    if not train_steps:
        return estimated(head, second_moment(outputs), count=count, rank=rank)
    held = torch.cat([x.bfloat16().cpu() for x in outputs])
    return refined(
        estimated(head, second_moment(held.split(4096)), count=count, rank=rank), held, train_steps
    )


def second_moment(outputs: Iterable[Tensor]) -> Tensor:
    """The mean of x x^T over rows x of tensors [N, H], float64 [H, H]."""
    total, rows = torch.zeros(()), 0
    for part in outputs:
        x = part.float()
        total, rows = total + (x.t() @ x).double().cpu(), rows + len(x)
    return total / max(rows, 1)


def estimated(head: Head, moment: Tensor, *, count: int, rank: int) -> Head:
    """The head with low-rank estimates of its lm_head; `moment` [H, H] is the second moment of its outputs."""
    values, vectors = torch.linalg.eigh(moment)
    values = values.clamp(min=_LEAST * float(values.mean()))
    root = (vectors * values.sqrt()) @ vectors.t()
    inverse = (vectors / values.sqrt()) @ vectors.t()
    weighted = head.weights.lm_head.double().cpu() @ root  # [Vd, H]
    spectrum, right = torch.linalg.eigh(weighted.t() @ weighted)  # ascending
    up, down = weighted @ right[:, -rank:], right[:, -rank:].t() @ inverse
    balance = (
        up.norm(dim=0) / down.norm(dim=1)
    ).sqrt()  # so that neither needs larger numbers than the other
    dtype = head.weights.lm_head.dtype
    weights = replace(
        head.weights,
        candidate_up=(up / balance).to(dtype),
        candidate_down=(down * balance[:, None]).to(dtype),
    )
    kept = float(spectrum[-rank:].sum() / spectrum.sum())
    logger.info("estimates of rank %d keep %.1f %% of the scores' variance", rank, 100 * kept)
    config = replace(head.config, candidates=count, candidate_rank=rank)
    return Head(config, weights, head.metadata, name=head.name)


def refined(head: Head, outputs: Tensor, steps: int) -> Head:
    """The head with its low-rank estimates trained for some steps of AdamW on its outputs [N, H]; float32."""
    w = head.weights
    assert w.candidate_up is not None
    assert w.candidate_down is not None
    lm_head = w.lm_head.float().cpu()
    up, down = (t.float().cpu().clone().requires_grad_() for t in (w.candidate_up, w.candidate_down))
    groups = [{"params": [t], "lr": _RATE * float(t.detach().square().mean().sqrt())} for t in (up, down)]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(0)
    rows = max(64, _LOGITS // len(lm_head))
    for _ in range(steps):
        x = outputs[torch.randint(len(outputs), (rows,), generator=generator)].float()
        with torch.no_grad():
            wanted = (x @ lm_head.t()).softmax(-1)
        loss = -(wanted * (x @ down.t() @ up.t()).log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    dtype = w.lm_head.dtype
    trained = replace(w, candidate_up=up.detach().to(dtype), candidate_down=down.detach().to(dtype))
    return Head(head.config, trained, head.metadata, name=head.name)
