"""Logit bias, penalties, min_tokens and wanted forms, per node: a node's own ancestors count as generated.

    answer so far:  a b        tree:  b ─┬─ a ─── b         row of the last node: a twice, b twice
                                         └─ c               row of c:             a once, b once, c once

The root is the bonus token, which is part of the answer already. Per request there is one table of counts, updated on
the device by every round; a row's own counts are the table's plus those of its drafted ancestors. Both parts go
through the same elementwise arithmetic, so that a token's logit is the same number in a tree and in plain decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine.structured import Follower, unpacked


class TokenCounts(NamedTuple):
    """Token counts in the prompts and answers of M requests."""

    generated: Tensor  # [M, V] int32, times in the answer so far
    in_prompt: Tensor  # [M, V] bool


class LogitEdits(NamedTuple):
    """Changes to the logits of n requests of a batch before a token is chosen."""

    requests: Tensor  # [n] int64, which of the batch's requests
    counts: TokenCounts | None  # of all the batch's requests, M = B at least; None: no request has a penalty
    repetition: Tensor  # [n, 1] float32
    presence: Tensor  # [n, 1] float32
    frequency: Tensor  # [n, 1] float32
    bias_ids: Tensor  # [n, K] int64; requests with fewer than K are padded with token 0
    bias: Tensor  # [n, K] float32, 0 for padding
    ends: Tensor  # [n, E] int64, tokens that mustn't stand before
    ends_from: Tensor  # [n, 1] int64, this position; 0: they may stand anywhere
    followers: Sequence[Follower | None]  # n, for structured outputs

    @property
    def only_forms(self) -> bool:
        """True if the only edit is that tokens are forbidden."""
        return self.counts is None and self.bias_ids.shape[1] == 0 and self.ends.shape[1] == 0


def edited(
    logits: Tensor,
    position: Tensor,
    edits: LogitEdits,
    tree: DraftTree | None,
    picked: Tensor | None = None,
    *,
    keep: bool,
) -> Tensor:
    """The logits [R, V] with bias, penalties, min_tokens and the masks of structured outputs.

    `position` [R]: where the token chosen from a row is going to stand. `tree`: what the rows are, None: one row per
    request. `picked` [R] int64: which of the tree's B * N nodes; None: all. `keep`: leave `logits` as they are.
    """
    nodes = 1 if tree is None else tree.token_ids.shape[1]
    rows, owner, node = _edited_rows(edits.requests, nodes, picked)
    changed = logits.index_select(0, rows)  # [r, V]
    if edits.bias_ids.shape[1]:
        changed.scatter_add_(1, edits.bias_ids.index_select(0, owner), edits.bias.index_select(0, owner))
    if edits.counts is not None:
        seen = TokenCounts(*(table.index_select(0, edits.requests) for table in edits.counts))  # [n, V]
        raw = changed
        changed = _penalized(raw, *(part.index_select(0, owner) for part in _penalties(seen, edits)))
        if tree is not None:
            _count_ancestors(changed, raw, seen, edits, tree, owner, node)
    if edits.ends.shape[1]:
        early = position.index_select(0, rows)[:, None] < edits.ends_from.index_select(0, owner)  # [r, 1]
        ends = edits.ends.index_select(0, owner)
        changed.scatter_add_(1, ends, torch.where(early, -torch.inf, 0.0).expand(ends.shape))
    for places, bits in _forms(edits, tree, owner, node):
        may = unpacked(bits, logits.shape[1]).to(changed.device)
        changed[places] = changed[places].masked_fill_(~may, -torch.inf)
    return logits.index_copy(0, rows, changed) if keep else logits.index_copy_(0, rows, changed)


def allowed(
    count: int, edits: LogitEdits, tree: DraftTree | None, picked: Tensor | None = None
) -> Tensor | None:
    """Bit masks of the tokens allowed in `count` rows, [count, ceil(V / 32)] int32, if only forms apply; see `edited`.

    None: anything.
    """
    nodes = 1 if tree is None else tree.token_ids.shape[1]
    rows, owner, node = _edited_rows(edits.requests, nodes, picked)
    masks = None
    for places, bits in _forms(edits, tree, owner, node):
        if masks is None:
            masks = bits.new_full((count, bits.shape[1]), -1)
        masks[rows[places]] = bits
    return masks


def _forms(
    edits: LogitEdits, tree: DraftTree | None, owner: Tensor, node: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """For each answer with a form: its places among the edited rows, and the bit masks of their allowed tokens."""
    for number, follower in enumerate(edits.followers):
        if follower is None:
            continue
        places = (owner == number).nonzero()[:, 0]
        tokens, parents = [0], [-1]
        if tree is not None:
            request = int(edits.requests[number])
            tokens, parents = tree.token_ids[request].tolist(), tree.parents[request].tolist()
        yield places, follower.allowed(tokens, parents, node[places].tolist())


def _edited_rows(requests: Tensor, nodes: int, picked: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of these `requests` [n]: their numbers, which of the n each belongs to, and which node; [r] each."""
    if picked is None:
        node = torch.arange(nodes, device=requests.device)
        owner = torch.arange(len(requests), device=requests.device).repeat_interleave(nodes)
        return (requests[:, None] * nodes + node).view(-1), owner, node.repeat(len(requests))
    rows, owner = (picked[:, None] // nodes == requests).nonzero(as_tuple=True)
    return rows, owner, picked.index_select(0, rows) % nodes


def _count_ancestors(
    changed: Tensor,
    raw: Tensor,
    seen: TokenCounts,
    edits: LogitEdits,
    tree: DraftTree,
    owner: Tensor,
    node: Tensor,
) -> None:
    """Penalise the tree's tokens again in `changed` [r, V], from the `raw` logits, each row's ancestors counted, too.

    Rows are node `node` [r] of request `owner` [r]. Each gets a new value for every token of its tree; one that isn't
    its ancestor is counted zero times more.
    """
    request = edits.requests.index_select(0, owner)
    tokens = tree.token_ids.index_select(0, request)  # [r, N]
    tokens = tokens.clamp(min=0)  # an empty node is no ancestor
    mask = tree.window_mask.index_select(0, request).gather(1, node[:, None])
    sees = ((mask >> torch.arange(tokens.shape[1], device=mask.device)) & 1).float()  # [r, N]
    sees[:, 0] = 0  # the root is counted
    same = (tokens[:, :, None] == tokens[:, None]).float()
    above = (sees[:, None] @ same)[:, 0].to(torch.int32)  # how often the row's path holds node j's token
    counted = TokenCounts(
        generated=seen.generated[owner[:, None], tokens] + above,
        in_prompt=seen.in_prompt[owner[:, None], tokens],
    )
    of_rows = edits._replace(
        repetition=edits.repetition.index_select(0, owner),
        presence=edits.presence.index_select(0, owner),
        frequency=edits.frequency.index_select(0, owner),
    )
    changed.scatter_(1, tokens, _penalized(raw.gather(1, tokens), *_penalties(counted, of_rows)))


def _penalties(counts: TokenCounts, edits: LogitEdits) -> tuple[Tensor, Tensor]:
    """Divisor of logits (a factor if they are negative), and the amount subtracted afterwards; shaped like `counts`."""
    generated = counts.generated > 0
    divisor = torch.where(counts.in_prompt | generated, edits.repetition, 1.0)
    return divisor, edits.frequency * counts.generated + edits.presence * generated


def _penalized(logits: Tensor, divisor: Tensor, deduction: Tensor) -> Tensor:
    return torch.where(logits > 0, logits / divisor, logits * divisor).sub_(deduction)
