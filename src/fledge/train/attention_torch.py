"""The unroll's attention on one block in plain torch: the reference, for any dtype and device.

Heads that share a KV head are adjacent: [b, kv_heads, Q, group, D].
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.train.blocks import Block, Gradients, Inputs, Sizes


def attend(block: Block, inputs: Inputs, output: Tensor, log_sum: Tensor) -> None:
    """Fill the block's rows of output [S, heads * D] and log_sum [S, heads]."""
    floats = _Floats.of(block, inputs)
    scores = floats.scores()  # [b, kv, Q, g, L + j]
    weights = scores.softmax(-1)
    mixed = torch.einsum("bkqgl,blkd->bkqgd", weights[..., : block.keys.shape[1]], floats.values)
    for step, value in enumerate(floats.own_values):
        mixed += weights[..., block.keys.shape[1] + step, None] * value
    rows = block.queries.flatten()[block.real_queries]
    output[rows] = _from_block(block, mixed).to(output.dtype)
    log_sum[rows] = _from_block(block, scores.logsumexp(-1, keepdim=True))


def attend_back(block: Block, inputs: Inputs, gradients: Gradients) -> None:
    """Fill the block's rows of all gradients."""
    output, log_sum, d_output, d_query, d_others = gradients
    floats, count, sizes, query = _Floats.of(block, inputs), block.keys.shape[1], inputs.sizes, inputs.query
    real = (block.seen > 0)[:, None, :, None, None]
    slope = _to_block(block, sizes, d_output, sizes.group) * real
    along = (slope * _to_block(block, sizes, output, sizes.group)).sum(-1, keepdim=True)
    # A padded query has the last one's sum, which may be far below its own score, so that a weight would be infinite.
    scores = (floats.scores() - _to_block(block, sizes, log_sum, sizes.group)).masked_fill(~real, -torch.inf)
    weights = scores.exp()  # [b, kv, Q, g, L + j]
    d_weights = [torch.einsum("bkqgd,blkd->bkqgl", slope, floats.values)]
    d_weights += [(slope * value).sum(-1, keepdim=True) for value in floats.own_values]
    d_scores = weights * (torch.cat(d_weights, dim=-1) - along)
    scale = sizes.head_dim**-0.5
    to_query = torch.einsum("bkqgl,blkd->bkqgd", d_scores[..., :count], floats.keys)
    rows, keys = block.queries.flatten()[block.real_queries], block.keys.flatten()[block.real_keys]
    d_keys = torch.einsum("bkqgl,bkqgd->blkd", d_scores[..., :count], floats.query)
    d_values = torch.einsum("bkqgl,bkqgd->blkd", weights[..., :count], slope)
    for target, grad in ((d_others[0], d_keys), (d_others[1], d_values)):
        target[keys] = grad.flatten(0, 1).flatten(1)[block.real_keys].to(target.dtype)
    for step, key in enumerate(floats.own_keys):
        d_score, weight = d_scores[..., count + step, None], weights[..., count + step, None]
        to_query += d_score * key
        d_own_key = (d_score * floats.query).sum(3, keepdim=True)
        d_own_value = (weight * slope).sum(3, keepdim=True)
        d_others[2 + step][rows] = _from_block(block, d_own_key).to(query.dtype)
        d_others[2 + inputs.steps + step][rows] = _from_block(block, d_own_value).to(query.dtype)
    d_query[rows] = _from_block(block, to_query * scale).to(query.dtype)


class _Floats(NamedTuple):
    """The block's inputs in float32."""

    query: Tensor  # [b, kv, Q, g, D], scaled
    keys: Tensor  # [b, L, kv, D]
    values: Tensor
    own_keys: list[Tensor]  # [b, kv, Q, 1, D] each
    own_values: list[Tensor]
    hidden: Tensor  # [b, 1, Q, 1, L] bool, masked keys

    @classmethod
    def of(cls, block: Block, inputs: Inputs) -> _Floats:
        sizes, query, others, steps = inputs.sizes, inputs.query, inputs.others, inputs.steps
        keys, values = (t[block.keys].float().unflatten(2, (sizes.kv_heads, -1)) for t in others[:2])
        own = [_to_block(block, sizes, t, 1) for t in others[2:]]
        index = torch.arange(block.keys.shape[1], device=query.device)
        # A padded query sees one key, so that its softmax stays finite; its output is unused.
        seen = block.seen.clamp_min(1)[:, None, :, None, None]
        scaled = _to_block(block, sizes, query, sizes.group) * sizes.head_dim**-0.5
        hidden = index >= seen
        if sizes.window:
            hidden = hidden | ((index < seen - sizes.window) & (index >= sizes.sinks))
        return cls(scaled, keys, values, own[:steps], own[steps:], hidden)

    def scores(self) -> Tensor:
        """[b, kv, Q, g, L + j]: step-0 keys, then own keys."""
        shared = torch.einsum("bkqgd,blkd->bkqgl", self.query, self.keys)
        own = [(self.query * key).sum(-1, keepdim=True) for key in self.own_keys]
        return torch.cat([shared.masked_fill(self.hidden, float("-inf")), *own], dim=-1)


def _to_block(block: Block, sizes: Sizes, x: Tensor, group: int) -> Tensor:
    """Rows of x [S, kv * group * D] -> [b, kv, Q, group, D] float32; D is 1 for one value per head."""
    picked = x[block.queries].float().unflatten(2, (sizes.kv_heads, group, -1))
    return picked.permute(0, 2, 1, 3, 4)


def _from_block(block: Block, x: Tensor) -> Tensor:
    """[b, kv, Q, g, D] -> the rows that aren't padding, [n, kv * g * D]."""
    return x.permute(0, 2, 1, 3, 4).flatten(0, 1).flatten(1)[block.real_queries]
