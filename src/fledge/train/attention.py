"""Attention of the TTT unroll: causal over the keys of step 0, plus one key of its own per later step, one softmax.

    query (p, j)     step-0 keys          own keys of steps 1 .. j
                     0  1 .. p  p+1 ..    (p, 1)  (p, 2) .. (p, j)
    p = 1, j = 2     x  x                   x       x

A head's window leaves the last step-0 keys and the first ones. Queries are the S supervised rows, step-0 keys all
T rows. Conversations of like length form a block, padded to a rectangle; a block's scores fit the cache. They are
recomputed in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from fledge.train.blocks import Block, Gradients, Inputs, Sizes
from fledge.train.kernels import Kernels
from fledge.train.workspace import Workspace


class UnrollAttention(Function):
    """query [S, heads * D], keys and values [T, kv_heads * D], then j own keys and j own values [S, kv_heads * D].

    Queries and keys already have RoPE applied. Returns [S, heads * D].
    """

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Kernels,
        blocks: list[Block],
        sizes: Sizes,
        workspace: Workspace,
        query: Tensor,
        *others: Tensor,
    ) -> Tensor:
        output = query.new_empty(query.shape)
        log_sum = torch.empty(query.shape[0], sizes.heads, dtype=torch.float32, device=query.device)
        inputs = Inputs(sizes, query, others, workspace)
        for block in blocks:
            kernels.attend(block, inputs, output, log_sum)
        ctx.save_for_backward(query, output, log_sum, *others)
        ctx.kernels, ctx.blocks, ctx.sizes, ctx.workspace = kernels, blocks, sizes, workspace
        return output

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[Tensor | None, ...]:
        query, output, log_sum, *others = ctx.saved_tensors
        d_query, *d_others = (t.new_empty(t.shape) for t in (query, *others))
        d_output = d_output.contiguous()
        inputs = Inputs(ctx.sizes, query, others, ctx.workspace)
        gradients = Gradients(output, log_sum, d_output, d_query, d_others)
        for block in ctx.blocks:
            ctx.kernels.attend_back(block, inputs, gradients)
        return None, None, None, None, d_query, *d_others
