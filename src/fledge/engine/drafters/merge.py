"""Merging prompt lookup's proposal into the tree that the head grows.

    proposal     on - the - mat - and           with M = 4
    head's tree  on - the - rug                 (and other branches)

As long as the head proposes the same tokens, no node is added: the head's nodes take the proposal's probability where
that is higher. Where the two part, the rest of the proposal becomes a branch of its own. The branch has M slots among
the candidates, one per proposed token; the slots of the k tokens that both propose stay empty:

    candidate    0      1 .. C                  C+1    C+2   C+3   C+4
                 root   the head's: on, the     -      -     mat   and          here k = 2

If the proposed token is right with probability q, the head's other candidates in its place share the other 1 - q: their
probabilities are multiplied by (1 - q) / (1 - p), at most 1, where p is the head's own probability of that token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.engine.drafters.proposal import Proposal


class MergeState(NamedTuple):
    """Each request's proposal, M tokens, and how many of its tokens the tree has; `raised` moves it on."""

    token_ids: Tensor  # [B, M] int64
    log_probs: Tensor  # [B, M] float32
    agreed: Tensor  # [B] int64: k, how many of its tokens the head proposed, too
    number: Tensor  # [B] int64, the candidate that is the last of these; 0, the root, if there is none
    score: Tensor  # [B] float32, that candidate's cumulative log probability


class Slots(NamedTuple):
    """The proposal's own nodes, slot j at depth j + 1."""

    token_ids: Tensor  # [B, M] int64, -1 in empty slots: no token, so never accepted
    log_probs: Tensor  # [B, M] float32, cumulative from the root, -inf in empty slots
    parents: Tensor  # [B, M] int64, candidate numbers, 0 in empty slots


class ProposalMerge:
    """Merges each request's proposal into its tree, level by level."""

    def __init__(self, proposal: Proposal) -> None:
        kinds = torch.int64, torch.int64, torch.float32
        none = [torch.zeros_like(proposal.matched, dtype=kind) for kind in kinds]
        self.state = MergeState(proposal.token_ids, proposal.log_probs, *none)

    def raised(
        self, level: int, tokens: Tensor, scores: Tensor, parents: Tensor | None, first: int
    ) -> Tensor:
        """Scores [B, C] of a level's candidates `tokens` [B, C], with the proposal's token of that level merged in.

        The candidates are numbered from `first` on. `parents` [B, K] are the candidates they belong to, C / K to each;
        None: all to the root.
        """
        if level > self.state.token_ids.shape[1]:
            return scores
        proposed, rates, agreed, number, reached = self.state
        rate = rates[:, level - 1, None]  # [B, 1]
        same = tokens == proposed[:, level - 1, None]
        below = None
        if parents is not None:  # [B, C], the children of the node the proposal has come to
            below = (parents == number[:, None]).repeat_interleave(scores.shape[1] // parents.shape[1], 1)
            same &= below
        before = reached[:, None]
        head = scores.masked_fill(~same, -torch.inf).amax(1, keepdim=True) - before  # the head's own opinion
        others = (_log_rest(rate) - _log_rest(head)).clamp(max=0)
        if below is not None:
            others = others * below
        hit, place = same.max(1)
        score = (before + torch.maximum(rate, head))[:, 0]
        self.state = self.state._replace(
            agreed=torch.where(hit, level, agreed),
            number=torch.where(hit, place + first, number),
            score=torch.where(hit, score, reached),
        )
        return torch.where(same, score[:, None], scores + others)

    def slots(self, candidates: int) -> Slots:
        """The nodes that the head's `candidates` candidates lack."""
        tokens, rates = self.state[:2]
        numbers = torch.arange(tokens.shape[1], device=tokens.device)
        agreed, number, score = (column[:, None] for column in self.state[2:])
        empty = (numbers < agreed) | (tokens < 0)
        scores = score + rates.masked_fill(empty, 0.0).cumsum(1)
        parents = torch.where(numbers == agreed, number, candidates + numbers)
        return Slots(
            tokens.masked_fill(empty, -1),
            scores.masked_fill(empty, -torch.inf),
            parents.masked_fill(empty, 0),
        )


def _log_rest(log_prob: Tensor) -> Tensor:
    """log(1 - p), at least log(1/1000). In float64: so that all devices and libraries round it to the same."""
    return torch.log1p(-log_prob.double().exp().clamp(max=0.999)).float()
