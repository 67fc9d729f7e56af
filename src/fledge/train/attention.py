"""Attention of the TTT unroll: causal over the keys of step 0, plus one key of its own per later step, one softmax.

    query (p, j)     step-0 keys          own keys of steps 1 .. j
                     0  1 .. p  p+1 ..    (p, 1)  (p, 2) .. (p, j)
    p = 1, j = 2     x  x                   x       x

Queries are the S supervised rows, step-0 keys all T rows. Conversations of like length form a block, padded to a
rectangle; a block's scores fit the cache. Scores are float32, computed again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from fledge.train.workspace import Workspace

_BLOCK_SCORES = 1 << 18  # query rows * keys of a block, per head


@dataclass(frozen=True)
class Block:
    """b conversations, Q query rows and L keys each after padding."""

    queries: Tensor  # [b, Q] rows among the S; padding repeats the last one
    keys: Tensor  # [b, L] rows among the T
    mask: Tensor  # [b, 1, Q, 1, L] float32, 0 where the key is seen, else -inf
    no_padding: Tensor  # [b, 1, Q, 1, 1] float32, 0 for padded queries
    real_queries: Tensor  # [n] places in the flat [b * Q] that are no padding
    real_keys: Tensor  # [n]


class Sizes(NamedTuple):
    """Heads of the layer."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


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
    hidden = key[:, None] > positions[:, :, None]  # [b, Q, L]
    mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
    first_key = torch.tensor([key_start[i] for i in group])[:, None]
    first_query = torch.tensor([query_start[i] for i in group])[:, None]
    return Block(
        queries=first_query + torch.minimum(query, query_counts[:, None] - 1),
        keys=first_key + torch.minimum(key, key_counts[:, None] - 1),
        mask=mask[:, None, :, None],
        no_padding=(query < query_counts[:, None]).float()[:, None, :, None, None],
        real_queries=(query < query_counts[:, None]).flatten().nonzero().flatten(),
        real_keys=(key < key_counts[:, None]).flatten().nonzero().flatten(),
    )


def _pad(values: Tensor, size: int) -> Tensor:
    return torch.cat((values, values[-1:].expand(size - len(values))))


class UnrollAttention(Function):
    """query [S, heads * D], keys and values [T, kv_heads * D], then j own keys and j own values [S, kv_heads * D].

    All are turned by RoPE already. Returns [S, heads * D].
    """

    @staticmethod
    def forward(
        ctx: Any, blocks: list[Block], sizes: Sizes, workspace: Workspace, query: Tensor, *others: Tensor
    ) -> Tensor:
        output = torch.empty_like(query)
        log_sum = torch.empty(query.shape[0], sizes.heads, dtype=torch.float32, device=query.device)
        for block in blocks:
            part = _BlockTensors(block, sizes, workspace, query, others)
            mixed, total = part.attend()
            rows = block.queries.flatten()[block.real_queries]
            output[rows] = part.leave(mixed).to(output.dtype)
            log_sum[rows] = part.leave(total.unsqueeze(-1))
        ctx.save_for_backward(query, output, log_sum, *others)
        ctx.blocks, ctx.sizes, ctx.workspace = blocks, sizes, workspace
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        query, output, log_sum, *others = ctx.saved_tensors
        d_query, *d_others = (torch.empty_like(t) for t in (query, *others))
        for block in ctx.blocks:
            part = _BlockTensors(block, ctx.sizes, ctx.workspace, query, others)
            grads = part.attend_back(d_output, output, log_sum)
            rows = block.queries.flatten()[block.real_queries]
            keys = block.keys.flatten()[block.real_keys]
            d_query[rows] = part.leave(grads.query).to(query.dtype)
            for target, grad in zip(d_others[:2], grads.shared, strict=True):
                target[keys] = part.leave_keys(grad).to(query.dtype)
            for target, grad in zip(d_others[2:], grads.own, strict=True):
                target[rows] = part.leave(grad).to(query.dtype)
        return None, None, None, d_query, *d_others


class _BlockGradients(NamedTuple):
    query: Tensor
    shared: list[Tensor]  # step-0 keys, values
    own: list[Tensor]  # own keys, then own values


class _BlockTensors:
    """One block's rectangle. Heads that share a KV head are rows of it: [b, kv_heads, Q, group, D]."""

    def __init__(
        self, block: Block, sizes: Sizes, workspace: Workspace, query: Tensor, others: Sequence[Tensor]
    ) -> None:
        self._block, self._sizes, self._workspace = block, sizes, workspace
        self._dtype = query.dtype
        self._scale = sizes.head_dim**-0.5
        steps = len(others) // 2 - 1
        group = sizes.group
        self._query = self._enter(query, "query", group).mul_(self._scale)  # [b, kv, Q, g, D]
        self._keys = self._enter_keys(others[0], "keys")  # [b * kv, L, D]
        self._values = self._enter_keys(others[1], "values")
        self._own_keys = [self._enter(t, f"own_key{i}", 1) for i, t in enumerate(others[2 : 2 + steps])]
        self._own_values = [self._enter(t, f"own_value{i}", 1) for i, t in enumerate(others[2 + steps :])]

    def attend(self) -> tuple[Tensor, Tensor]:
        """Output [b, kv, Q, g, D] and log-sum-exp [b, kv, Q, g], float32."""
        scores = self._scores()  # [b, kv, Q, g, L]
        own = [(self._query * key).sum(-1) for key in self._own_keys]  # [b, kv, Q, g] each
        highest = scores.amax(-1)
        for score in own:
            highest = torch.maximum(highest, score)
        weights = scores.sub_(highest.unsqueeze(-1)).exp_()
        total = weights.sum(-1)
        mixed = torch.bmm(self._rows(self._low("weights", weights)), self._low("values", self._values))
        mixed = mixed.float().view(self._query.shape)
        for score, value in zip(own, self._own_values, strict=True):
            weight = score.sub_(highest).exp_()
            total += weight
            mixed.addcmul_(weight.unsqueeze(-1), value)
        return mixed.div_(total.unsqueeze(-1)), highest.add_(total.log())

    def attend_back(self, d_output: Tensor, output: Tensor, log_sum: Tensor) -> _BlockGradients:
        """Gradients of everything that went in, float32 or the compute type."""
        group = self._sizes.group
        slope = self._enter(d_output, "slope", group).mul_(self._block.no_padding)  # [b, kv, Q, g, D]
        along = (slope * self._enter(output, "output", group)).sum(-1)  # [b, kv, Q, g]
        log_sum = self._enter(log_sum, "log_sum", group).squeeze(-1)
        weights = self._scores().sub_(log_sum.unsqueeze(-1)).exp_()  # [b, kv, Q, g, L]
        d_weights = self._workspace.take("d_scores", tuple(weights.shape), torch.float32, weights.device)
        torch.bmm(self._rows(slope), self._values.transpose(1, 2), out=self._rows(d_weights))
        d_scores = d_weights.sub_(along.unsqueeze(-1)).mul_(weights)
        low_weights, low_d_scores = self._low("weights", weights), self._low("d_scores", d_scores)
        low_slope, low_query = self._low("slope", slope), self._low("query", self._query)
        d_query = torch.bmm(self._rows(low_d_scores), self._low("keys", self._keys))
        d_query = d_query.float().view(self._query.shape)
        shared = [
            torch.bmm(self._rows(low_d_scores).transpose(1, 2), self._rows(low_query)),
            torch.bmm(self._rows(low_weights).transpose(1, 2), self._rows(low_slope)),
        ]
        own_keys, own_values = [], []
        for key, value in zip(self._own_keys, self._own_values, strict=True):
            weight = (self._query * key).sum(-1).sub_(log_sum).exp_()
            d_score = (slope * value).sum(-1).sub_(along).mul_(weight).unsqueeze(-1)
            d_query.addcmul_(d_score, key)
            own_keys.append((d_score * self._query).sum(3, keepdim=True))
            own_values.append((weight.unsqueeze(-1) * slope).sum(3, keepdim=True))
        return _BlockGradients(d_query.mul_(self._scale), shared, own_keys + own_values)

    def leave(self, x: Tensor) -> Tensor:
        """[b, kv, Q, g, D] -> the rows that are no padding, [n, kv * g * D]."""
        b, kv, q, g, d = x.shape
        return x.permute(0, 2, 1, 3, 4).reshape(b * q, kv * g * d).index_select(0, self._block.real_queries)

    def leave_keys(self, x: Tensor) -> Tensor:
        """[b * kv, L, D] -> [n, kv * D]."""
        b, kv = self._block.keys.shape[0], self._sizes.kv_heads
        rows = x.view(b, kv, -1, x.shape[-1]).transpose(1, 2).reshape(b * x.shape[1], -1)
        return rows.index_select(0, self._block.real_keys)

    def _scores(self) -> Tensor:
        b, q = self._block.queries.shape
        shape = (b, self._sizes.kv_heads, q, self._sizes.group, self._block.keys.shape[1])
        scores = self._workspace.take("scores", shape, torch.float32, self._query.device)
        torch.bmm(self._rows(self._query), self._keys.transpose(1, 2), out=self._rows(scores))
        return scores.add_(self._block.mask)

    def _enter(self, x: Tensor, name: str, group: int) -> Tensor:
        """Rows among the S [S, kv * group * D] -> [b, kv, Q, group, D] float32; D is 1 for a number per head."""
        b, q = self._block.queries.shape
        kv = self._sizes.kv_heads
        picked = x.index_select(0, self._block.queries.flatten()).view(b, q, kv, group, -1)
        shape = (b, kv, q, group, picked.shape[-1])
        out = self._workspace.take(name, shape, torch.float32, x.device)
        return out.copy_(picked.permute(0, 2, 1, 3, 4))

    def _enter_keys(self, x: Tensor, name: str) -> Tensor:
        """Rows among the T -> [b * kv, L, D] float32."""
        (b, length), kv, width = self._block.keys.shape, self._sizes.kv_heads, self._sizes.head_dim
        picked = x.index_select(0, self._block.keys.flatten()).view(b, length, kv, width)
        out = self._workspace.take(name, (b, kv, length, width), torch.float32, x.device)
        return out.copy_(picked.transpose(1, 2)).view(b * kv, length, width)

    def _rows(self, x: Tensor) -> Tensor:
        """[b, kv, Q, g, X] -> [b * kv, Q * g, X]."""
        b, kv, q, g, width = x.shape
        return x.view(b * kv, q * g, width)

    def _low(self, name: str, x: Tensor) -> Tensor:
        """A copy in the compute type; x itself if it has it already."""
        if x.dtype == self._dtype:
            return x
        return self._workspace.take(f"low_{name}", tuple(x.shape), self._dtype, x.device).copy_(x)
