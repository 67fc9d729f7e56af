"""The target's verdict on a tree, and the accepted path."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree


class Verified(NamedTuple):
    """The target's outputs for R rows."""

    chosen: Tensor  # [R] int64, the token after each row
    features: Tensor | None  # [R, 3 * Ht]
    logits: Tensor | None = None  # [R, V] float32, unprocessed; kept if some request wants log probabilities
    hidden: Tensor | None = None  # [R, Ht], the lm_head's inputs


class Accepted(NamedTuple):
    """The accepted path of each request; D: the deepest level. Entries at and beyond `emits` mean nothing."""

    emits: Tensor  # [B] int64, nodes on the path, the root included: 1 .. D + 1
    path: Tensor  # [B, D + 1] int64, the node at each depth
    emitted: Tensor  # [B, D + 1] int64, what each node of the path chose: the accepted drafts, then the bonus token


def accept(tree: DraftTree, chosen: Tensor, reach: int, speculates: Tensor | None = None) -> Accepted:
    """The path of nodes that are what their parents chose, by what every node chose [B, N].

    `reach`: D. `speculates` [B]: which requests take drafts; None: all.
    A node matches if it is the token its parent chose; it is on the path if all of its ancestors match, too. Siblings
    are different tokens, so at most one node per depth is on the path: scattering node numbers by depth yields it.
    """
    nodes = torch.arange(chosen.shape[1], device=chosen.device)
    matched = tree.token_ids == chosen.gather(1, tree.parents.clamp(min=0))  # [B, N]
    if speculates is not None:
        matched = matched & speculates[:, None]
    matched[:, 0].fill_(True)
    missing = (~matched * (1 << nodes)).sum(1, keepdim=True)  # [B, 1], bits of the nodes that didn't match
    rejected = (tree.window_mask & missing) != 0  # [B, N]
    deepest = tree.depths.masked_fill(rejected, -1).amax(1)  # [B]
    column = tree.depths.masked_fill(rejected, reach + 1)  # one more, to write what is cut off
    none = torch.arange(reach + 2, device=chosen.device).repeat(len(chosen), 1)
    path = none.scatter(1, column, nodes.expand_as(column))[:, : reach + 1]
    return Accepted(emits=deepest + 1, path=path, emitted=chosen.gather(1, path))
