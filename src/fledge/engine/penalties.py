"""Logit bias and penalties, per node: a node's own ancestors count as generated.

    answer so far:  a b        tree:  b ─┬─ a ─── b         row of the last node: a twice, b twice
                                         └─ c               row of c:             a once, b once, c once

The root is the bonus token, which is part of the answer already. Per request there is one table of counts, updated on
the device by every round; a row's own counts are the table's plus those of its drafted ancestors. Both parts go
through the same elementwise arithmetic, so that a token's logit is the same number in a tree and in plain decode.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree


class TokenCounts(NamedTuple):
    """What M requests have seen."""

    generated: Tensor  # [M, V] int32, times in the answer so far
    in_prompt: Tensor  # [M, V] bool


class LogitEdits(NamedTuple):
    """How the logits of n requests of a batch are changed before anything is chosen."""

    requests: Tensor  # [n] int64, which of the batch's requests
    counts: TokenCounts | None  # of all the batch's requests, M = B at least; None: nobody has a penalty
    repetition: Tensor  # [n, 1, 1] float32
    presence: Tensor  # [n, 1, 1] float32
    frequency: Tensor  # [n, 1, 1] float32
    bias_ids: Tensor  # [n, 1, K] int64; requests with fewer than K are padded with token 0
    bias: Tensor  # [n, 1, K] float32, 0 for padding


def edited(logits: Tensor, edits: LogitEdits, tree: DraftTree | None, *, keep: bool) -> Tensor:
    """The logits [B * N, V] with bias and penalties, N rows per request. `tree` None: nothing is drafted, N = 1.

    `keep`: leave the tensor given as it is.
    """
    nodes = 1 if tree is None else tree.token_ids.shape[1]
    rows = logits.view(-1, nodes, logits.shape[-1])  # [B, N, V]
    changed = rows.index_select(0, edits.requests)  # [n, N, V]
    if edits.bias_ids.shape[2]:
        changed.scatter_add_(
            2, edits.bias_ids.expand(-1, nodes, -1), edits.bias.expand(-1, nodes, -1).contiguous()
        )
    if edits.counts is not None:
        counts = TokenCounts(*(table.index_select(0, edits.requests)[:, None] for table in edits.counts))
        changed = _with_drafted(changed, counts, edits, tree)
    if keep:
        return rows.index_copy(0, edits.requests, changed).view_as(logits)
    return rows.index_copy_(0, edits.requests, changed).view_as(logits)


def _with_drafted(logits: Tensor, counts: TokenCounts, edits: LogitEdits, tree: DraftTree | None) -> Tensor:
    """Penalties of the answer so far for all tokens [n, N, V], then again for the tree's tokens, with their ancestors.

    Every node gets a new value for every token of its tree; one that isn't its ancestor is counted zero times more.
    """
    if tree is None:
        return _penalized(logits, counts, edits)
    nodes = tree.token_ids.shape[1]
    tokens = tree.token_ids.index_select(0, edits.requests)  # [n, N]
    mask = tree.window_mask.index_select(0, edits.requests)
    bits = torch.arange(nodes, device=mask.device)
    sees = ((mask[:, :, None] >> bits) & 1).float()  # [n, N, N]: node, its ancestor
    sees[:, :, 0] = 0  # the root is counted
    same = (tokens[:, :, None] == tokens[:, None]).float()
    above = (sees @ same).to(torch.int32)  # [n, N, N]: how often node i's path holds node j's token
    index = tokens[:, None].expand(-1, nodes, -1)
    own = TokenCounts(
        generated=counts.generated.expand(-1, nodes, -1).gather(2, index) + above,
        in_prompt=counts.in_prompt.expand(-1, nodes, -1).gather(2, index),
    )
    drafted = _penalized(logits.gather(2, index), own, edits)
    return _penalized(logits, counts, edits).scatter_(2, index, drafted)


def _penalized(logits: Tensor, counts: TokenCounts, edits: LogitEdits) -> Tensor:
    """Elementwise: the penalties for logits [n, N, X] whose tokens have `counts` [n, N or 1, X]."""
    generated = counts.generated > 0
    divisor = torch.where(counts.in_prompt | generated, edits.repetition, 1.0)
    scaled = torch.where(logits > 0, logits / divisor, logits * divisor)
    return scaled.sub_(edits.frequency * counts.generated + edits.presence * generated)
