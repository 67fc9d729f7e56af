"""Prompt lookup's proposal as part of the tree the head grows.

    proposal     on - the - mat - and           with M = 4
    head's tree  on - the - rug                 (and other branches)

As long as the head proposes the same tokens, its nodes take the proposal's probability where that is higher; from
where it doesn't, the rest becomes a chain of its own, M slots of which the first are left empty:

    candidate    0      1 .. C                  C+1    C+2   C+3   C+4
                 root   the head's: on, the     -      -     mat   and          here k = 2 tokens agree

If the proposal is right with probability q, the head's other candidates in that place share what is left.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.engine.lookup import Proposal


class Slots(NamedTuple):
    """The proposal's own nodes, slot j at depth j + 1."""

    token_ids: Tensor  # [B, M] int64, -1 in empty slots: no token, so never accepted
    log_probs: Tensor  # [B, M] float32, cumulative from the root, -inf in empty slots
    parents: Tensor  # [B, M] int64, candidate numbers, 0 in empty slots


class Follower:
    """Where each request's tree and its proposal still go together."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal
        batch = proposal.token_ids.shape[0]
        self._agreed = proposal.matched.new_zeros(batch)  # k, tokens the head proposed as well
        self.number = proposal.matched.new_zeros(batch)  # candidate number of the last of them; the root
        self._score = proposal.log_probs.new_zeros(batch)  # and its cumulative log probability

    def raised(self, level: int, tokens: Tensor, scores: Tensor, own: Tensor | None, first: int) -> Tensor:
        """The scores [B, C] of level `level`'s candidates `tokens` [B, C], numbered from `first` on.

        `own` [B, C] are the children of the node the proposal has come to; None: all of them.
        """
        if level > self._proposal.token_ids.shape[1]:
            return scores
        rate = self._proposal.log_probs[:, level - 1, None]  # [B, 1]
        same = tokens == self._proposal.token_ids[:, level - 1, None]
        if own is not None:
            same &= own
        before = self._score[:, None]
        head = scores.masked_fill(~same, -torch.inf).amax(1, keepdim=True) - before  # the head's own opinion
        others = (_log_rest(rate) - _log_rest(head)).clamp(max=0)
        if own is not None:
            others = others * own
        hit, place = same.max(1)
        score = (before + torch.maximum(rate, head))[:, 0]
        scores = torch.where(same, score[:, None], scores + others)
        self._agreed = torch.where(hit, level, self._agreed)
        self.number = torch.where(hit, place + first, self.number)
        self._score = torch.where(hit, score, self._score)
        return scores

    def covered(self, level: int) -> Tensor | None:
        """[B]: probability, from the root on, of what the proposal already says about the level after `level`."""
        if level >= self._proposal.log_probs.shape[1]:
            return None
        going_on = self._agreed == level
        return torch.where(going_on, (self._score + self._proposal.log_probs[:, level]).exp(), 0.0)

    def slots(self, numbers: Tensor, candidates: int) -> Slots:
        """What the head's `candidates` candidates lack; `numbers` [M] are 0 .. M - 1."""
        tokens, steps = self._proposal.token_ids, self._proposal.log_probs
        agreed = self._agreed[:, None]
        empty = (numbers < agreed) | (tokens < 0)
        scores = self._score[:, None] + steps.masked_fill(empty, 0.0).cumsum(1)
        parents = torch.where(numbers == agreed, self.number[:, None], candidates + numbers)
        return Slots(
            tokens.masked_fill(empty, -1),
            scores.masked_fill(empty, -torch.inf),
            parents.masked_fill(empty, 0),
        )


def _log_rest(log_prob: Tensor) -> Tensor:
    """log(1 - p), at least log(1/1000)."""
    return torch.log1p(-log_prob.exp().clamp(max=0.999))
