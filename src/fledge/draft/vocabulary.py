"""The draft vocabulary: the part of the target's vocabulary that a head can propose.

draft id     0    1    2    3
target id    2   17   18   40          ascending
d2t          2   16   16   37          offsets: target id = draft id + d2t, as the engines expect
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fledge.base.errors import DataError, HeadError


@dataclass(frozen=True)
class DraftVocabulary:
    """Vd target ids, ascending, and the share of the data they cover."""

    token_ids: Tensor  # [Vd] int64
    vocab_size: int  # the target's
    coverage: float  # share of the counted tokens in the vocabulary

    def __len__(self) -> int:
        return self.token_ids.shape[0]

    @property
    def d2t(self) -> Tensor:
        """Offsets [Vd] int64: target id = draft id + d2t[draft id]."""
        return self.token_ids - torch.arange(len(self))

    @property
    def t2d(self) -> Tensor:
        """Membership mask [V] bool."""
        mask = torch.zeros(self.vocab_size, dtype=torch.bool)
        mask[self.token_ids] = True
        return mask

    @property
    def draft_ids(self) -> Tensor:
        """The draft id of every target id, -1 outside, [V] int64."""
        ids = torch.full((self.vocab_size,), -1, dtype=torch.int64)
        ids[self.token_ids] = torch.arange(len(self))
        return ids

    @classmethod
    def from_counts(cls, counts: Tensor, size: int, always: Iterable[int] = ()) -> DraftVocabulary:
        """The `size` most frequent tokens, including those in `always`.

        Args:
            counts: [V], how often the target generated each token.
            size: Vd; at most V is used.
            always: ids to include regardless of their count, such as the ends of turns.
        """
        vocab_size = counts.shape[0]
        keep = sorted(set(always))
        size = min(size, vocab_size)
        if size < max(1, len(keep)) or any(not 0 <= i < vocab_size for i in keep):
            raise HeadError(
                f"a draft vocabulary of {size} can't hold the {len(keep)} tokens it always needs: "
                f"use at least {max(1, len(keep))}, with ids below {vocab_size}"
            )
        rank = counts.to(torch.float64).clone()
        rank[keep] = float("inf")
        # A stable sort prefers low ids on ties: in a BPE vocabulary those are more common.
        chosen = rank.argsort(descending=True, stable=True)[:size].sort().values
        total = float(counts.sum())
        coverage = float(counts[chosen].sum()) / total if total else 0.0
        return cls(chosen, vocab_size, coverage)

    @classmethod
    def from_offsets(cls, d2t: Tensor, vocab_size: int) -> DraftVocabulary:
        """The vocabulary of an existing head; its coverage is unknown (0.0)."""
        return cls(d2t.long() + torch.arange(d2t.shape[0]), vocab_size, 0.0)


def count_generated(samples: Iterable[tuple[Tensor, Tensor]], vocab_size: int) -> Tensor:
    """Number of times each token was generated, [V] int64, from pairs of token ids [n] and loss mask [n]."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for token_ids, loss_mask in samples:
        tally = torch.bincount(token_ids[loss_mask.bool()].long(), minlength=vocab_size)
        if len(tally) > vocab_size:
            raise DataError(
                f"token {len(tally) - 1} was generated, but the target's vocabulary is {vocab_size}: the training data "
                "was made with another target; use that one, or generate the data again with this one"
            )
        counts += tally
    return counts
