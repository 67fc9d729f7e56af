"""The unroll's attention by torch's flex attention, for CUDA: no padding, no scores in memory.

    step-0 keys    flex attention over all rows, a mask of conversations and positions     -> mixed0, lse0
    own keys       one score each                                                          -> s1 .. sj
    together       one softmax: shares exp(lse0 - lse) of mixed0 and exp(si - lse) of value i, lse = log sum of all

Autograd derives the backward pass, which torch's flex attention has on CUDA only. The tests check the forward pass
uncompiled on a CPU, and the backward pass with dense attention in place of flex attention. Not run on CUDA yet.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention

from fledge.train.blocks import Sizes


def conversation_mask(positions: Tensor, rows: Tensor, sizes: Sizes) -> BlockMask:
    """The step-0 keys that each query sees: those of its own conversation, up to its own position, within the window.

    positions: [T] within conversations laid end to end; rows: [S] the supervised ones, which are the queries.
    """
    owner = (positions == 0).cumsum(0)
    query_owner, query_position = owner[rows], positions[rows]

    def sees(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (query_owner[q] == owner[k]) & (positions[k] <= query_position[q])
        if sizes.window:
            near = positions[k] > query_position[q] - sizes.window
            seen = seen & (near | (positions[k] < sizes.sinks))
        return seen

    return create_block_mask(sees, None, None, len(rows), len(positions), device=positions.device)


def unroll_attention(mask: BlockMask, sizes: Sizes, query: Tensor, *others: Tensor) -> Tensor:
    """Arguments and result as for `UnrollAttention`; `mask` from `conversation_mask`."""
    steps = len(others) // 2 - 1
    q = _heads(query, sizes.heads)  # [1, heads, S, D]
    keys, values = (_heads(t, sizes.kv_heads) for t in others[:2])  # [1, kv_heads, T, D]
    mixed, aux = _flex(query.device.type)(
        q, keys, values, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True)
    )
    if not steps:
        return _rows(mixed)
    own = [_heads(t, sizes.kv_heads).repeat_interleave(sizes.group, dim=1) for t in others[2:]]
    scores = [(q.float() * key.float()).sum(-1) * sizes.head_dim**-0.5 for key in own[:steps]]
    shares = torch.stack((aux.lse.float(), *scores), dim=-1).softmax(-1)  # [1, heads, S, 1 + j]
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
    attention: Callable[..., Any] = flex_attention
    return torch.compile(attention, dynamic=True) if device == "cuda" else attention
