"""What a native round writes about its draft trees. Most of it is for the planner, which takes it apart later."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.drafters.proposal import Proposal
from fledge.engine.shapes import TreeShape
from fledge.native import abi


class VerifyRows(NamedTuple):
    """The R rows of a verify."""

    row_start: Tensor  # [B + 1] int32
    first_row: Tensor  # [B] int64
    picked: Tensor  # [R] int64, which of the B * N nodes they are
    tokens: Tensor  # [R] int32
    positions: Tensor  # [R] int32
    masks: Tensor  # [R] int64


class NativeDraft:
    """A round's draft trees and all that is known of them (see `result.Drafts`).

    A call wrote everything into one buffer; each part is cut out of it when it is first asked for.
    """

    def __init__(self, requests: int, bound: TreeShape) -> None:
        """Room for trees within `bound`."""
        self._requests, self._bound = requests, bound
        lookup, nodes = bound.lookup, requests * bound.nodes
        integers = requests * (lookup + 3) + 6 * nodes
        floats = integers + -(-(requests * (lookup + bound.candidates) + nodes) // 2)
        smalls = floats + -(-(requests + 1 + 2 * nodes) // 2)
        # One buffer for int64, then float32 and int32, of which two fit an int64.
        self._room = torch.empty(smalls, dtype=torch.int64)
        self._begins = integers, floats
        at = self._room.data_ptr()
        self.raw = abi.Drafts(at, at + 8 * integers, at + 8 * floats)

    @property
    def rows(self) -> int:
        """R, of all nodes, are verified."""
        return int(self.raw.rows)

    @property
    def shape(self) -> TreeShape:
        """As verified."""
        return self._bound.cut(self.raw.levels, self.raw.nodes)

    @property
    def sizes(self) -> list[int]:
        """[B], nodes of each request below the root that hold a proposal."""
        begin = self._requests * (self._bound.lookup + 1)
        verified = self._room[begin : begin + self._requests]
        sizes: list[int] = (self.tree.log_probs[:, 1:] > -torch.inf).sum(1).minimum(verified).tolist()
        return sizes

    @cached_property
    def tree(self) -> DraftTree:
        """N nodes per request."""
        ids, parents, depths, ancestors = self._whole[3:7]
        columns = ids, parents, depths, ancestors, self._probabilities[2]
        return DraftTree(*(column.view(self._requests, self.raw.nodes) for column in columns))

    @cached_property
    def levels(self) -> list[Tensor]:
        """Per drafted level: [B, C] cumulative log probabilities."""
        scores = self._probabilities[1].view(self._requests, -1)
        return list(scores.split_with_sizes([*self._grown, scores.shape[1] - sum(self._grown)], 1)[:-1])

    @cached_property
    def proposal(self) -> Proposal | None:
        """Prompt lookup's. It is there before the trees are."""
        requests, copies = self._requests, self._requests * self._bound.lookup
        if not copies:
            return None
        proposed, matched = _sections(self._room, [copies, requests])
        (rates,) = _sections(self._room[self._begins[0] :].view(torch.float32), [copies])
        return Proposal(proposed.view(requests, -1), rates.view(requests, -1), matched)

    @cached_property
    def ready(self) -> VerifyRows:
        """The rows of the verify."""
        picked, masks, first = self._whole[7:]
        row_start, tokens, positions = _sections(
            self._room[self._begins[1] :].view(torch.int32), [self._requests + 1, self.rows, self.rows]
        )
        return VerifyRows(row_start, first, picked, tokens, positions, masks)

    @property
    def _grown(self) -> list[int]:
        topk = self._bound.topk
        return [topk if level == 0 else topk**2 for level in range(self.raw.levels)]

    @cached_property
    def _whole(self) -> list[Tensor]:
        """The int64 parts, as in round.h: proposed, matched, counts, the tree's four, picked, masks, first."""
        requests, all_nodes = self._requests, self._requests * self.raw.nodes
        copies = requests * self._bound.lookup
        sizes = [copies, requests, requests, *[all_nodes] * 4, self.rows, self.rows, requests]
        return _sections(self._room, sizes)

    @cached_property
    def _probabilities(self) -> list[Tensor]:
        """The float32 parts: the proposals', the candidates', the tree's."""
        requests, bound = self._requests, self._bound
        sizes = [requests * bound.lookup, requests * bound.candidates, requests * self.raw.nodes]
        return _sections(self._room[self._begins[0] :].view(torch.float32), sizes)


def _sections(buffer: Tensor, sizes: list[int]) -> list[Tensor]:
    """Consecutive parts of a flat tensor."""
    return list(buffer.split_with_sizes([*sizes, len(buffer) - sum(sizes)])[:-1])
