"""The constant index tensors that rounds need: what depends only on the number of requests and the tree's shape.

They are built once and reused, so that rounds allocate no index tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.engine.shapes import TreeShape
from fledge.native.abi import MOST_NODES


class RowLayout(NamedTuple):
    """B requests with W rows each."""

    row_start: Tensor  # [B + 1] int32: 0, W, 2 W, ...
    first_row: Tensor  # [B] int64: 0, W, ...
    first_row_column: Tensor  # [B, 1] int64, the same
    no_offset: Tensor  # [B] int32 zeros
    steps: Tensor  # [W] int32: 0 .. W - 1
    ones: Tensor  # [B] int64 ones


class TreeLayout(NamedTuple):
    """What growing B trees of one shape needs. K topk, C candidates of the head, M of lookup."""

    draft_rows: RowLayout  # K rows per request
    draft_offset: list[Tensor]  # per expanded level: [B] int32, window index of its first row
    draft_bit: list[Tensor]  # per level: [B, K] int64, each row's own bit
    candidate_depth: list[Tensor]  # by levels drafted: [1 + C + M] int64; the root's, the head's, lookup's
    lookup_number: Tensor  # [M] int64: 0 .. M - 1
    node_bit: Tensor  # [64] int64, 1 << node
    root: Tensor  # [B, 1] int64 zeros
    first_level: Tensor  # [B, K] int64: 1 .. K, the first level's candidate numbers
    no_scores: Tensor  # [B, 1] float32 zeros, the root's log probability


class VerifyLayout(NamedTuple):
    """What verify, accept and extend of B trees need. N nodes, D the deepest level there can be."""

    node_rows: RowLayout  # N rows per request
    path_rows: RowLayout  # D + 1 rows per request
    node_bit: Tensor  # [64] int64, 1 << node
    nodes: Tensor  # [B, N] int64, 0 .. N - 1
    no_path: (
        Tensor  # [B, D + 2] int64: 0 .. D, where accept starts from, and a column to write what is cut off
    )


class Layouts:
    """Index tensors by (B, W) and by (B, shape)."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._rows: dict[tuple[int, int], RowLayout] = {}
        one = torch.ones(MOST_NODES, dtype=torch.int64)
        self._bits = torch.bitwise_left_shift(one, torch.arange(MOST_NODES)).to(device)
        self._trees: dict[tuple[int, TreeShape], TreeLayout] = {}
        self._verifies: dict[tuple[int, int, int], VerifyLayout] = {}

    def rows(self, requests: int, width: int) -> RowLayout:
        """The layout of `requests` with `width` rows each."""
        found = self._rows.get((requests, width))
        if found is None:
            first_row = torch.arange(requests, device=self.device) * width
            found = self._rows[requests, width] = RowLayout(
                row_start=torch.arange(requests + 1, dtype=torch.int32, device=self.device) * width,
                first_row=first_row,
                first_row_column=first_row[:, None],
                no_offset=torch.zeros(requests, dtype=torch.int32, device=self.device),
                steps=torch.arange(width, dtype=torch.int32, device=self.device),
                ones=torch.ones(requests, dtype=torch.int64, device=self.device),
            )
        return found

    def tree(self, requests: int, shape: TreeShape) -> TreeLayout:
        """The layout of `requests` trees of `shape`."""
        found = self._trees.get((requests, shape))
        if found is None:
            found = self._trees[requests, shape] = self._build_tree(requests, shape)
        return found

    def verify(self, requests: int, nodes: int, reach: int) -> VerifyLayout:
        """The layout of `requests` drafted trees of so many nodes."""
        found = self._verifies.get((requests, nodes, reach))
        if found is None:
            numbers = torch.arange(max(nodes, reach + 2), device=self.device).repeat(requests, 1)
            found = self._verifies[requests, nodes, reach] = VerifyLayout(
                node_rows=self.rows(requests, nodes),
                path_rows=self.rows(requests, reach + 1),
                node_bit=self._bits,
                nodes=numbers[:, :nodes],
                no_path=numbers[:, : reach + 2],
            )
        return found

    def _build_tree(self, requests: int, shape: TreeShape) -> TreeLayout:
        depth, topk, device, bits = shape.depth, shape.topk, self.device, self._bits
        level = [1] * topk + [d for d in range(2, depth + 1) for _ in range(topk * topk)]
        copied = list(range(1, shape.lookup + 1))
        numbers = torch.arange(MOST_NODES + 1, device=device).repeat(requests, 1)  # [B, 65]
        levels = range(max(depth - 1, 0))
        return TreeLayout(
            draft_rows=self.rows(requests, topk),
            draft_offset=[
                torch.full((requests,), s * topk, dtype=torch.int32, device=device) for s in levels
            ],
            draft_bit=[bits[s * topk : (s + 1) * topk].repeat(requests, 1) for s in range(max(depth - 1, 1))],
            candidate_depth=[
                torch.tensor([0, *(d for d in level if d <= drafted), *copied], device=device)
                for drafted in range(depth + 1)
            ],
            lookup_number=numbers[0, : shape.lookup].contiguous(),
            node_bit=bits,
            root=torch.zeros(requests, 1, dtype=torch.int64, device=device),
            first_level=numbers[:, 1 : topk + 1].contiguous(),
            no_scores=torch.zeros(requests, 1, dtype=torch.float32, device=device),
        )
