"""A native round's draft trees. Most of it is for the planner, which takes it apart later."""

from __future__ import annotations

from ctypes import byref, c_int64
from functools import cache, cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.drafters.proposal import Proposal
from fledge.engine.shapes import TreeShape
from fledge.native import abi
from fledge.native.build import library


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

    A call writes everything into one buffer and says where each array lies; each is cut out when it is first used.
    """

    def __init__(self, requests: int, bound: TreeShape) -> None:
        """Room for trees within `bound`."""
        self._requests, self._bound = requests, bound
        self._room = torch.empty(_room(requests, bound), dtype=torch.uint8)
        self.raw = abi.Drafts(self._room.data_ptr())

    @property
    def rows(self) -> int:
        """R, of all nodes, are verified."""
        return int(self.raw.rows)

    @property
    def shape(self) -> TreeShape:
        """Shape of the trees as verified."""
        return self._bound.cut(self.raw.levels, self.raw.nodes)

    @property
    def sizes(self) -> list[int]:
        """[B], nodes of each request below the root that hold a proposal."""
        return self._ids("counts", self._requests).tolist()

    @property
    def sources(self) -> Tensor:
        """[B, N], who proposed each node; less to cut out than the tree."""
        return self._ids("node_sources", self._requests, int(self.raw.nodes))

    @cached_property
    def tree(self) -> DraftTree:
        """N nodes per request."""
        shape = self._requests, int(self.raw.nodes)
        return DraftTree(
            self._ids("token_ids", *shape),
            self._ids("parents", *shape),
            self._ids("depths", *shape),
            self._ids("masks", *shape),
            self._floats("log_probs", *shape),
            self._ids("node_sources", *shape),
        )

    @cached_property
    def levels(self) -> list[Tensor]:
        """Per drafted level: [B, C] cumulative log probabilities."""
        topk, candidates = self._bound.topk, self._bound.candidates
        grown = [topk if level == 0 else topk**2 for level in range(self.raw.levels)]
        scores = self._floats("scores", self._requests, candidates)
        return list(scores.split_with_sizes([*grown, candidates - sum(grown)], 1)[:-1])

    @cached_property
    def proposal(self) -> Proposal | None:
        """Prompt lookup's. It is there before the trees are."""
        shape = self._requests, self._bound.lookup
        if not self._bound.lookup:
            return None
        return Proposal(
            self._ids("proposed", *shape),
            self._floats("rates", *shape),
            self._ids("matched", self._requests),
            self._ids("sources", *shape),
        )

    @cached_property
    def ready(self) -> VerifyRows:
        """The rows of the verify."""
        requests, rows = self._requests, self.rows
        return VerifyRows(
            self._small("row_start", requests + 1),
            self._ids("first", requests),
            self._ids("picked", rows),
            self._small("tokens", rows),
            self._small("positions", rows),
            self._ids("row_masks", rows),
        )

    def _ids(self, name: str, *shape: int) -> Tensor:
        return self._cut(name, torch.int64, shape)

    def _floats(self, name: str, *shape: int) -> Tensor:
        return self._cut(name, torch.float32, shape)

    def _small(self, name: str, *shape: int) -> Tensor:
        return self._cut(name, torch.int32, shape)

    def _cut(self, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
        begin = getattr(self.raw.at, name)
        size = torch.Size(shape).numel() * dtype.itemsize
        return self._room[begin : begin + size].view(dtype).view(shape)


@cache
def _room(requests: int, bound: TreeShape) -> int:
    """Bytes that trees within `bound` need at most."""
    measure = library().fledge_draft_room
    measure.restype = c_int64
    terms = abi.DraftTerms(bound.depth, bound.topk, bound.nodes, bound.lookup)
    return int(measure(c_int64(requests), byref(terms)))
