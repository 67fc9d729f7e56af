"""A batch of draft trees in fixed shape: what a round proposes and the target verifies.

             root (bonus token)
            /    \\
          n1      n2              node      0    1    2    3
           |                      parent   -1    0    0    1
          n3                      depth     0    1    1    2
                                  mask   0001 0011 0101 1011      bit j: node j is an ancestor, or the node itself
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class DraftTree(NamedTuple):
    """B trees of N nodes each, parents before children; node 0 is the root, the bonus token."""

    token_ids: Tensor  # [B, N] int64
    parents: Tensor  # [B, N] int64, -1 for the root
    depths: Tensor  # [B, N] int64, 0 for the root
    window_mask: Tensor  # [B, N] int64, bit j: the node sees node j
    log_probs: Tensor  # [B, N] float32, cumulative from the root
    sources: Tensor  # [B, N] int64, who proposed the node: the engine's `Source`, 0 at the root
