"""Blocks of the unroll's attention: conversations of similar length side by side, padded to a rectangle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.train.workspace import Workspace

_BLOCK_SCORES = 1 << 18  # query rows * keys of a block, per head: fits the cache


class Sizes(NamedTuple):
    """Heads of the layer, and its window as `HeadConfig` has it."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    sinks: int = 0

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Block:
    """b conversations, Q query rows and L keys each after padding."""

    queries: Tensor  # [b, Q] rows among the S; padding repeats the last one
    keys: Tensor  # [b, L] rows among the T; padding repeats the last one
    seen: Tensor  # [b, Q] int32, keys a query sees; 0 for padding
    real_queries: Tensor  # [n] indices into the flat [b * Q] that aren't padding
    real_keys: Tensor  # [n] indices into the flat [b * L]


class Inputs(NamedTuple):
    """Inputs of the unroll's attention, for all blocks."""

    sizes: Sizes
    query: Tensor  # [S, heads * D]
    # Keys and values [T, kv_heads * D], then j own keys and j own values [S, kv_heads * D].
    others: Sequence[Tensor]
    workspace: Workspace

    @property
    def steps(self) -> int:
        """j, the steps after the first."""
        return len(self.others) // 2 - 1


class Gradients(NamedTuple):
    """Tensors that the backward pass of the unroll's attention reads, and fills by blocks."""

    output: Tensor  # [S, heads * D], of the forward pass
    log_sum: Tensor  # [S, heads], of the forward pass
    d_output: Tensor  # [S, heads * D]
    d_query: Tensor  # to fill, as those of the others
    d_others: Sequence[Tensor]


def make_blocks(lengths: Sequence[int], supervised: Sequence[Tensor]) -> list[Block]:
    """Blocks for conversations laid end to end: their lengths, and each one's supervised positions (not empty)."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], len(supervised[i])))
    key_start = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    query_start = [0, *torch.tensor([len(s) for s in supervised]).cumsum(0).tolist()]
    groups: list[list[int]] = []
    for i in order:
        if groups:
            members = [*groups[-1], i]
            widest = max(len(supervised[m]) for m in members)
            if len(members) * widest * lengths[i] <= _BLOCK_SCORES:
                groups[-1].append(i)
                continue
        groups.append([i])
    return [_make_block(group, lengths, supervised, key_start, query_start) for group in groups]


def _make_block(
    group: list[int],
    lengths: Sequence[int],
    supervised: Sequence[Tensor],
    key_start: list[int],
    query_start: list[int],
) -> Block:
    key_counts = torch.tensor([lengths[i] for i in group])
    query_counts = torch.tensor([len(supervised[i]) for i in group])
    key = torch.arange(int(key_counts.max())).expand(len(group), -1)  # [b, L]
    query = torch.arange(int(query_counts.max())).expand(len(group), -1)  # [b, Q]
    positions = torch.stack([_pad(supervised[i], query.shape[1]) for i in group])  # [b, Q]
    real = query < query_counts[:, None]
    first_key = torch.tensor([key_start[i] for i in group])[:, None]
    first_query = torch.tensor([query_start[i] for i in group])[:, None]
    return Block(
        queries=first_query + torch.minimum(query, query_counts[:, None] - 1),
        keys=first_key + torch.minimum(key, key_counts[:, None] - 1),
        seen=torch.where(real, positions + 1, 0).int(),
        real_queries=real.flatten().nonzero().flatten(),
        real_keys=(key < key_counts[:, None]).flatten().nonzero().flatten(),
    )


def _pad(values: Tensor, size: int) -> Tensor:
    return torch.cat((values, values[-1:].expand(size - len(values))))
