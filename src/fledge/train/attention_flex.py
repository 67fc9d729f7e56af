"""The unroll's attention by torch's flex attention, for CUDA: no padding, no scores in memory.

    step-0 keys    flex attention over all rows, a mask of conversations and positions     -> mixed0, lse0
    own keys       one score each                                                          -> s1 .. sj
    together       one softmax: shares exp(lse0 - lse) of mixed0 and exp(si - lse) of value i, lse = log sum of all

Autograd derives the backward pass, which torch's flex attention has on CUDA only. The tests compare the forward pass
uncompiled on a CPU, and the backward pass with a dense attention in flex attention's place. Not run on CUDA yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from fledge.train.blocks import Block, Sizes


class Places(NamedTuple):
    """Which conversation a row belongs to, and where in it."""

    query_owner: Tensor  # [S] int32
    seen: Tensor  # [S] int32, step-0 keys a query sees
    key_owner: Tensor  # [T] int32
    key_place: Tensor  # [T] int32

    @classmethod
    def of(cls, blocks: Sequence[Block], rows: int, keys: int) -> Places:
        """From the blocks of a batch with S rows and T keys."""
        device = blocks[0].queries.device
        query_owner, seen = (torch.zeros(rows, dtype=torch.int32, device=device) for _ in range(2))
        key_owner, key_place = (torch.zeros(keys, dtype=torch.int32, device=device) for _ in range(2))
        first = 0
        for block in blocks:
            count = block.queries.shape[0]
            owner = torch.arange(first, first + count, dtype=torch.int32, device=device)[:, None]
            place = torch.arange(block.keys.shape[1], dtype=torch.int32, device=device)
            queries = block.queries.flatten()[block.real_queries]
            query_owner[queries] = owner.expand_as(block.queries).flatten()[block.real_queries]
            seen[queries] = block.seen.flatten()[block.real_queries]
            held = block.keys.flatten()[block.real_keys]
            key_owner[held] = owner.expand_as(block.keys).flatten()[block.real_keys]
            key_place[held] = place.expand_as(block.keys).flatten()[block.real_keys]
            first += count
        return cls(query_owner, seen, key_owner, key_place)

    def mask(self) -> BlockMask:
        """The keys of step 0 that each query sees."""
        query_owner, seen, key_owner, key_place = self

        def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (query_owner[q] == key_owner[k]) & (key_place[k] < seen[q])

        return create_block_mask(sees, None, None, len(seen), len(key_place), device=seen.device)


def unroll_attention(mask: BlockMask, sizes: Sizes, query: Tensor, *others: Tensor) -> Tensor:
    """Arguments and result as of `UnrollAttention`; `mask` from `Places`."""
    steps = len(others) // 2 - 1
    q = _heads(query, sizes.heads)  # [1, heads, S, D]
    keys, values = (_heads(t, sizes.kv_heads) for t in others[:2])  # [1, kv_heads, T, D]
    mixed, found = _flex(query.device.type)(
        q, keys, values, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    if not steps:
        return _rows(mixed)
    own = [_heads(t, sizes.kv_heads).repeat_interleave(sizes.group, dim=1) for t in others[2:]]
    scores = [(q.float() * key.float()).sum(-1) * sizes.head_dim**-0.5 for key in own[:steps]]
    shares = torch.stack((found.lse.float(), *scores), dim=-1).softmax(-1)  # [1, heads, S, 1 + j]
    total = mixed.float() * shares[..., :1]
    for step, value in enumerate(own[steps:]):
        total = total + shares[..., step + 1, None] * value.float()
    return _rows(total.to(query.dtype))


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(1, (heads, -1)).transpose(0, 1)[None]


def _rows(x: Tensor) -> Tensor:
    return x[0].transpose(0, 1).flatten(1)


@functools.cache
def _flex(device: str) -> Callable[..., Any]:
    found: Callable[..., Any] = flex_attention
    return torch.compile(found, dynamic=True) if device == "cuda" else found
