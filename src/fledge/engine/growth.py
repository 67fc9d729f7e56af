"""Growing a batch of dynamic draft trees (EAGLE-2, arXiv 2406.16858, sec. 4), in fixed shapes.

Every level expands the K nodes of highest cumulative probability into K children each. In the end the N - 1 most
probable candidates become the tree. A child is never more probable than its parent, so these are connected.

    candidate   0     1 .. K      K+1 .. K+K*K           ...
                root  level 1     level 2: children of   level 3: children of the K best of level 2
                                  candidates 1 .. K

Candidates are numbered level by level, so sorting the chosen ones by number puts parents before children, and a
stable sort by score prefers parents among equals. Child c (> K) belongs to expanded node (c - 1) // K - 1, which is
also that node's index in the draft window.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine import native_tree
from fledge.engine.layout import TreeLayout
from fledge.engine.lookup import Proposal
from fledge.engine.merge import ProposalMerge, Slots
from fledge.engine.native_tree import Frontier
from fledge.engine.shapes import TreeShape

_EMPTY = 1 << 40  # stands for the number of a candidate that isn't there


class TreeGrowth:
    """B trees while they grow. B requests, K topk, N nodes, D depth."""

    def __init__(
        self,
        shape: TreeShape,
        layout: TreeLayout,
        root: Tensor,
        token_ids: Tensor,
        log_probs: Tensor,
        proposal: Proposal | None = None,
    ) -> None:
        """`root` [B, 1]; `token_ids` and `log_probs` [B, K] are the first level, best first."""
        self._shape = shape
        self._layout = layout
        self._level = 0
        self._slots: Slots | None = None
        self._scores: Tensor | None = None  # of all candidates, when there are no more
        self._merge = None if proposal is None else ProposalMerge(proposal)
        if self._merge is not None:
            log_probs = self._merge.raised(1, token_ids, log_probs, None, 1)
        self.frontier_tokens = token_ids  # [B, K] nodes to expand next
        self.frontier_mask = layout.draft_bit[0]  # [B, K] draft-window mask, own bit included
        self.frontier_scores = log_probs  # [B, K] cumulative log probabilities
        self.levels = [log_probs]  # per level: [B, K] or [B, K * K], cumulative
        self._tokens = [root, token_ids]
        self._expanded = [layout.root, layout.first_level]  # candidate numbers; column 0 is the root

    def expand(self, token_ids: Tensor, log_probs: Tensor) -> Tensor | None:
        """Take the frontier's children, [B * K, K] each, best first, and move the frontier down one level.

        Returns [B * K], the place in the old frontier of each new frontier node's parent; None after the last level.
        """
        batch, topk = self.frontier_scores.shape
        children = token_ids.view(batch, topk * topk)
        scores = (self.frontier_scores[:, :, None] + log_probs.view(batch, topk, topk)).view(
            batch, topk * topk
        )
        if self._merge is not None:
            first = 1 + sum(level.shape[1] for level in self.levels)
            scores = self._merge.raised(self._level + 2, children, scores, self._expanded[-1], first)
        self._tokens.append(children)
        self.levels.append(scores)
        self._level += 1
        if self._level == self._shape.depth - 1:
            return None
        grown = self._best_of(children, scores)
        self.frontier_tokens, self.frontier_scores, self.frontier_mask, numbers, rows = grown
        self._expanded.append(numbers)
        return rows

    def _best_of(self, children: Tensor, scores: Tensor) -> Frontier:
        """The next frontier, of the level's candidates [B, K * K]."""
        if native_tree.runs_here(scores):
            return native_tree.frontier(children, scores, self.frontier_mask, self._level)
        layout, topk = self._layout, self.frontier_mask.shape[1]
        found, best = scores.sort(dim=1, descending=True, stable=True)
        best = best[:, :topk]
        parent = best // topk
        return Frontier(
            token_ids=children.gather(1, best),
            scores=found[:, :topk],
            mask=self.frontier_mask.gather(1, parent) | layout.draft_bit[self._level],
            numbers=best + (1 + topk + (self._level - 1) * topk * topk),
            rows=(parent + layout.draft_rows.first_row_column).view(-1),
        )

    @property
    def _depths(self) -> Tensor:
        """[1 + C] depths of the root and all candidates."""
        return self._layout.candidate_depth[len(self.levels)]

    @property
    def open_mass(self) -> Tensor:
        """[B] probability that the next token is a child of a frontier node and isn't proposed by lookup.

        That is what drafting another level may find.
        """
        merge, level = self._merge, self._level + 1
        if native_tree.runs_here(self.frontier_scores):
            state = None if merge is None else merge.state
            return native_tree.open_mass(state, level, self.frontier_scores)
        mass = self.frontier_scores.exp().sum(1)
        covered = None if merge is None else merge.covered(level)
        return mass if covered is None else mass - covered

    def candidates(self) -> tuple[Tensor, Tensor]:
        """[B, C] cumulative log probabilities of all candidates, and their depths [C]; candidate 1 first."""
        if self._merge is None:
            self._scores = torch.cat(self.levels, 1)
        else:
            count = sum(level.shape[1] for level in self.levels)
            self._slots = self._merge.slots(self._layout.lookup_number, count)
            self._scores = torch.cat((*self.levels, self._slots.log_probs), 1)
        return self._scores, self._depths[1:]

    def select(self, nodes: int, counts: Tensor | None = None) -> DraftTree:
        """The trees of the N - 1 best candidates each, root first, parents before children.

        `counts` [B]: how many of them each request really gets; the nodes left over are empty and come last.
        """
        scores = self.candidates()[0] if self._scores is None else self._scores
        layout, topk, tokens, slots = self._layout, self._shape.topk, self._tokens, self._slots
        expanded = torch.cat(self._expanded, 1)  # [B, 1 + (D - 1) * K]
        all_tokens = torch.cat(tokens if slots is None else (*tokens, slots.token_ids), 1)
        if native_tree.runs_here(layout.root):
            own = None if slots is None else slots.parents
            return native_tree.select(
                all_tokens, scores, self._depths, expanded, own, counts, topk=topk, nodes=nodes
            )
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, : nodes - 1]
        if counts is not None:
            order = order.masked_fill(torch.arange(nodes - 1, device=order.device) >= counts[:, None], _EMPTY)
        numbers = torch.cat((layout.root, (order + 1).sort(1).values), 1)  # [B, N] candidate numbers
        empty = None if counts is None else numbers > _EMPTY
        chosen = numbers if empty is None else numbers.masked_fill(empty, 0)
        family = (chosen - 1).div_(topk, rounding_mode="floor").clamp_(0, expanded.shape[1] - 1)
        parent_candidate = expanded.gather(1, family)
        if slots is not None:
            slot = chosen - (all_tokens.shape[1] - slots.parents.shape[1])
            own = slots.parents.gather(1, slot.clamp(min=0))
            parent_candidate = torch.where(slot >= 0, own, parent_candidate)
        parents = torch.searchsorted(numbers, parent_candidate)  # [B, N]; the root's own is 0
        mask, ancestor = layout.node_bit[:nodes].expand_as(parents), parents
        for _ in range(self._shape.reach.bit_length()):  # a mask covers 1, 2, 4, ... generations
            mask = mask | mask.gather(1, ancestor)
            ancestor = ancestor.gather(1, ancestor)
        parents[:, 0].fill_(-1)
        tree = DraftTree(
            token_ids=all_tokens.gather(1, chosen),
            parents=parents,
            depths=self._depths[chosen],
            window_mask=mask,
            log_probs=torch.cat((layout.no_scores, scores), 1).gather(1, chosen),
        )
        if empty is None:
            return tree
        return tree._replace(
            token_ids=tree.token_ids.masked_fill(empty, -1),
            depths=tree.depths.masked_fill(empty, 1),
            log_probs=tree.log_probs.masked_fill(empty, -torch.inf),
        )
