"""Growing a batch of dynamic draft trees (EAGLE-2, arXiv 2406.16858, sec. 4), in fixed shapes.

Every level expands the K nodes of highest cumulative probability into K children each. All of them are candidates for
the tree, of which the most probable are verified (`Candidates.select`).

    candidate   0     1 .. K      K+1 .. K+K*K           ...                        the last M
                root  level 1     level 2: children of   level 3: children of the   lookup's own (merge.py)
                                  candidates 1 .. K      K best of level 2
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.base.device import to_device
from fledge.engine.drafters.drafter import Candidates, node_bits
from fledge.engine.drafters.merge import ProposalMerge
from fledge.engine.drafters.proposal import Proposal


class Frontier(NamedTuple):
    """The K nodes of each tree that are expanded next, best first."""

    token_ids: Tensor  # [B, K] int64
    log_probs: Tensor  # [B, K] float32, cumulative
    mask: Tensor  # [B, K] int64, draft-window mask, own bit included
    numbers: Tensor  # [B, K] int64, as candidates
    above: Tensor  # [B * K] int64, their parents' places in the frontier before, which has B * K


class TreeGrowth:
    """B trees while they grow. B requests, K topk."""

    def __init__(self, root: Tensor, proposal: Proposal | None = None) -> None:
        """`root` [B, 1] int64: the bonus tokens."""
        self._proposal = proposal
        self._merge = None if proposal is None else ProposalMerge(proposal)
        self._tokens, self._parents = [root], [torch.zeros_like(root)]
        self.levels: list[Tensor] = []  # [B, K] or [B, K * K] cumulative log probabilities

    def begin(self, token_ids: Tensor, log_probs: Tensor) -> Frontier:
        """Take the first level [B, K], best first, which is the first frontier."""
        numbers = torch.arange(1, token_ids.shape[1] + 1, device=token_ids.device).expand_as(token_ids)
        scores = self._add(token_ids, log_probs, None)
        mask = node_bits(token_ids.shape[1], token_ids.device).expand_as(token_ids)
        return Frontier(token_ids, scores, mask, numbers, torch.empty(0))

    def expand(self, frontier: Frontier, token_ids: Tensor, log_probs: Tensor) -> Frontier:
        """Take the frontier's children, [B * K, K] each, best first; the best of them are the next frontier."""
        batch, topk = frontier.token_ids.shape
        children = token_ids.view(batch, topk * topk)
        scores = (frontier.log_probs[:, :, None] + log_probs.view(batch, topk, topk)).view_as(children)
        first = 1 + self._candidates
        scores = self._add(children, scores, frontier.numbers)
        best_scores, best = (part[:, :topk] for part in scores.sort(dim=1, descending=True, stable=True))
        parent = best // topk
        bits = node_bits(len(self.levels) * topk, best.device)[-topk:]
        above = parent + torch.arange(batch, device=best.device)[:, None] * topk
        return Frontier(
            children.gather(1, best),
            best_scores,
            frontier.mask.gather(1, parent) | bits,
            best + first,
            above.view(-1),
        )

    def candidates(self) -> Candidates:
        """All that was proposed, lookup's own last."""
        tokens, parents, scores = list(self._tokens), list(self._parents), list(self.levels)
        depths = [0, *(depth for depth, level in enumerate(scores, 1) for _ in range(level.shape[1]))]
        sources = None
        if self._merge is not None and self._proposal is not None:
            slots = self._merge.slots(self._candidates)
            tokens.append(slots.token_ids)
            parents.append(slots.parents)
            scores.append(slots.log_probs)
            sources = torch.nn.functional.pad(self._proposal.sources, (1 + self._candidates, 0))
        return Candidates(
            torch.cat(tokens, 1),
            torch.cat(parents, 1),
            _depths(tuple(depths), tokens[-1].shape[1] if self._merge else 0, tokens[0].device),
            torch.cat(scores, 1),
            self.levels,
            self._proposal,
            sources,
        )

    @property
    def _candidates(self) -> int:
        return sum(level.shape[1] for level in self.levels)

    def _add(self, token_ids: Tensor, log_probs: Tensor, parents: Tensor | None) -> Tensor:
        """A level of candidates below the `parents` [B, K], None: the root; their scores with lookup's merged in."""
        level, first = len(self.levels) + 1, 1 + self._candidates
        if self._merge is not None:
            log_probs = self._merge.raised(level, token_ids, log_probs, parents, first)
        if parents is None:
            above = torch.zeros_like(token_ids)
        else:
            above = parents.repeat_interleave(token_ids.shape[1] // parents.shape[1], 1)
        self._tokens.append(token_ids)
        self._parents.append(above)
        self.levels.append(log_probs)
        return log_probs


_known_depths: dict[tuple[tuple[int, ...], int, torch.device], Tensor] = {}


def _depths(grown: tuple[int, ...], copied: int, device: torch.device) -> Tensor:
    """[1 + C] int64. Kept, since to make it is a transfer to the device."""
    key = grown, copied, device
    if key not in _known_depths:
        (_known_depths[key],) = to_device(device, np.array([*grown, *range(1, copied + 1)]))
    return _known_depths[key]
