"""Drafts for structured outputs: tokens that the grammar forbids aren't verified, tokens that it forces are proposed.

    {"name": "Ada"   the head says   } (0.6)   , (0.3)     the form wants an age first: , (0.75) remains
    {"               the form says   name                  a proposal, as prompt lookup's are

That only saves rows and raises acceptance. Answers don't depend on it: the target's own logits are masked by the
grammar (see `structured.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from fledge.engine.drafters.proposal import Proposal, Source
from fledge.engine.structured import Follower

_FORCED = math.log(0.9)  # forced text can be split in other ways, and the target may prefer one
_MOST_FORBIDDEN = 0.99  # of the head's probability: what is left isn't certain then


def guided(followers: Mapping[int, Follower]) -> GuidedDrafts | None:
    """Filter that keeps a round's drafts within the grammars; None if no request has one."""
    return GuidedDrafts(followers) if followers else None


class GuidedDrafts:
    """One round's drafts for requests with structured outputs. B requests, P nodes expanded, K children each."""

    def __init__(self, followers: Mapping[int, Follower]) -> None:
        """`followers` by row of the batch."""
        self._followers = followers
        # To the P nodes, root left out.
        self._paths: dict[int, list[list[int]]] = {row: [[]] for row in followers}

    def proposal(self, lookup: Proposal) -> Proposal:
        """Prompt lookup's proposal, cut where the grammar forbids it, then the tokens that the grammar forces next.

        Where tokens are forced right now, those alone.
        """
        token_ids, log_probs, matched, sources = (column.clone() for column in lookup)
        limit = token_ids.shape[1]
        for row, follower in self._followers.items():
            copied = [token for token in token_ids[row].tolist() if token >= 0]
            copied = [] if (forced := follower.forced([])) else copied[: follower.fitting(copied)]
            tokens = (copied + (forced or follower.forced(copied)))[:limit]
            token_ids[row] = torch.tensor(tokens + [-1] * (limit - len(tokens)))
            log_probs[row, len(copied) : len(tokens)] = _FORCED
            log_probs[row, len(tokens) :] = -math.inf
            sources[row, len(copied) :] = Source.GRAMMAR
            if not copied:
                matched[row] = 0
        return Proposal(token_ids, log_probs, matched, sources)

    def first(self, token_ids: Tensor, log_probs: Tensor, topk: int) -> tuple[Tensor, Tensor]:
        """The best `topk` of the first level's candidates [B, K]; forbidden ones come last."""
        log_probs, best = self.kept(token_ids, log_probs).sort(dim=1, descending=True, stable=True)
        token_ids = token_ids.gather(1, best)[:, :topk]
        for row in self._paths:
            self._paths[row] = [[token] for token in token_ids[row].tolist()]
        return token_ids, log_probs[:, :topk]

    def kept(self, token_ids: Tensor, log_probs: Tensor) -> Tensor:
        """The log probabilities [B * P, K] of the expanded nodes' children, -inf where the grammar forbids one.

        The others are divided by what remains, so that they gain what the forbidden ones had.
        """
        allowed = torch.ones(token_ids.shape, dtype=torch.bool)
        for row, paths in self._paths.items():
            for node, path in enumerate(paths, start=row * len(paths)):
                allowed[node] = torch.tensor(self._followers[row].may_follow(path, token_ids[node].tolist()))
        forbidden = ~allowed.to(log_probs.device)
        lost = log_probs.exp().masked_fill(~forbidden, 0.0).sum(1, keepdim=True).clamp(max=_MOST_FORBIDDEN)
        return (log_probs - torch.log1p(-lost)).clamp(max=0.0).masked_fill(forbidden, -torch.inf)

    def descend(self, parents: Tensor, token_ids: Tensor) -> None:
        """Go down to the next nodes, `token_ids` [B, K]; `parents` [B * K] are their parents' rows among the B * P."""
        above = parents.view(token_ids.shape).tolist()
        for row, paths in self._paths.items():
            self._paths[row] = [
                [*paths[parent - row * len(paths)], token]
                for parent, token in zip(above[row], token_ids[row].tolist(), strict=True)
            ]
