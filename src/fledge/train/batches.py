"""The trainer's batches: conversations laid end to end, which positions are supervised, and the order.

In a conversation of n tokens, positions p = 0 .. n-2 are fed (embed(x[p+1]) and g[p]) and predict x[p+2].

    p                 0   1   2   3   4   5            x[3] .. x[6] generated, x[3] the answer's first token
    token fed         x1  x2  x3  x4  x5  x6
    predicts          x2  x3  x4  x5  x6  -
    supervised            x   x   x   x                p = 1 predicts x[3]; p = 2, the first that is ever drafted, x[4]
    row r                 0   1   2   3
    valid at step 2       x   x                        all of x[p+2] .. x[p+4] must be generated
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TypeVar

import torch
from torch import Tensor

from fledge.data import conversations
from fledge.features import FeatureSample, FeatureStore, SampleInfo
from fledge.features.extract import by_tokens
from fledge.train.blocks import Block, make_blocks

T = TypeVar("T")
_tokens = attrgetter("tokens")
_SHARD_WINDOW = 16  # shards shuffled together; keeps reads from a remote store local
_SORT_BATCHES = 16  # batches of conversations sorted by length together


@dataclass(frozen=True)
class TrainBatch:
    """T fed positions of several conversations; S of them, the rows, are supervised."""

    token_ids: Tensor  # [T] int64, x[p+1]
    positions: Tensor  # [T] int64, p
    features: Tensor  # [T, 3 * Ht], g[p]
    rows: Tensor  # [S] int64, supervised positions among the T
    teacher_hidden: Tensor  # [S, Ht], the lm_head's input at p+1
    labels: Tensor  # [S] int64, x[p+2]
    argmax: Tensor  # [S] int64, the target's most probable x[p+2]
    rows_left: Tensor  # [S] int64, rows left in this answer, including this one
    answers: list[tuple[int, int]]  # per answer: its first row, its conversation's index
    blocks: list[Block]
    tokens: int  # of the conversations

    def valid(self, step: int) -> Tensor:
        """Rows whose whole drafted path up to this step was generated, [S - step] bool; empty from step S on."""
        return self.rows_left[: max(0, len(self.rows_left) - step)] > step

    def to(self, device: torch.device) -> TrainBatch:
        """The same batch on another device."""
        if device.type == "cpu":
            return self
        return _moved(replace(self, blocks=[_moved(block, device) for block in self.blocks]), device)


def make_batch(samples: Sequence[FeatureSample], dtype: torch.dtype) -> TrainBatch:
    """Lay conversations end to end. Each must have a supervised position; see `is_trainable`."""
    lengths = [len(s.token_ids) - 1 for s in samples]
    supervised = [s.loss_mask[2:].bool().nonzero().flatten() for s in samples]  # positions p with m[p+2]
    offsets = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    rows_left = torch.cat([_rows_left(positions) for positions in supervised])
    owner = torch.cat([torch.full_like(p, i) for i, p in enumerate(supervised)])
    starts = torch.cat((torch.ones(1, dtype=torch.bool), rows_left[:-1] == 1)).nonzero().flatten()

    def at_rows(name: str, ahead: int) -> Tensor:
        return torch.cat([getattr(s, name)[p + ahead] for s, p in zip(samples, supervised, strict=True)])

    return TrainBatch(
        token_ids=torch.cat([s.token_ids[1:] for s in samples]).long(),
        positions=torch.cat([torch.arange(n) for n in lengths]),
        features=torch.cat([s.features[:-1] for s in samples]).to(dtype),
        rows=torch.cat([p + start for p, start in zip(supervised, offsets[:-1], strict=True)]),
        teacher_hidden=at_rows("hidden", 1).to(dtype),
        labels=at_rows("token_ids", 2).long(),
        argmax=at_rows("argmax", 1).long(),
        rows_left=rows_left,
        answers=list(zip(starts.tolist(), owner[starts].tolist(), strict=True)),
        blocks=make_blocks(lengths, supervised),
        tokens=sum(len(s.token_ids) for s in samples),
    )


def _moved(value: T, device: torch.device) -> T:
    """A dataclass with all its tensors on `device`."""
    named = {f.name: getattr(value, f.name) for f in fields(value)}  # type: ignore[arg-type]
    tensors = {name: t.to(device) for name, t in named.items() if isinstance(t, Tensor)}
    return replace(value, **tensors)  # type: ignore[type-var]


def is_trainable(info: SampleInfo) -> bool:
    """True if a conversation has at least three tokens and a supervised position."""
    return conversations.is_trainable(info.tokens, info.supervised)


def _rows_left(positions: Tensor) -> Tensor:
    """For supervised positions [n] of one conversation: the length of the consecutive run from each, [n] int64."""
    last = torch.cat((positions.diff() != 1, torch.ones(1, dtype=torch.bool)))
    ends = last.nonzero().flatten()
    index = torch.arange(len(positions))
    return ends[torch.searchsorted(ends, index)] - index + 1


def random_subset(infos: Sequence[SampleInfo], response_tokens: int | None, seed: int) -> list[SampleInfo]:
    """A random subset with at most `response_tokens` response tokens, in stored order; None: all."""
    if response_tokens is None:
        return list(infos)
    budget, chosen = response_tokens, set()
    for i in torch.randperm(len(infos), generator=torch.Generator().manual_seed(seed)).tolist():
        budget -= infos[i].supervised
        if budget < 0:
            break
        chosen.add(i)
    return [info for i, info in enumerate(infos) if i in chosen]


def epoch_batches(
    infos: Sequence[SampleInfo], batch_tokens: int, seed: int, epoch: int
) -> list[list[SampleInfo]]:
    """The batches of one epoch, in order; the same for the same arguments.

    Conversations are shuffled, then sorted by length a few batches at a time, so that a batch holds similar lengths.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    usable = [info for info in infos if is_trainable(info)]
    shards = sorted({info.shard for info in usable})
    shards = [shards[i] for i in torch.randperm(len(shards), generator=generator).tolist()]
    batches: list[list[SampleInfo]] = []
    for first in range(0, len(shards), _SHARD_WINDOW):
        window = set(shards[first : first + _SHARD_WINDOW])
        members = [info for info in usable if info.shard in window]
        members = [members[i] for i in torch.randperm(len(members), generator=generator).tolist()]
        groups: list[list[SampleInfo]] = []
        for stretch in by_tokens(members, batch_tokens * _SORT_BATCHES, _tokens):
            groups += by_tokens(sorted(stretch, key=_tokens), batch_tokens, _tokens)
        batches += [groups[i] for i in torch.randperm(len(groups), generator=generator).tolist()]
    return batches


def even_subset(infos: Sequence[SampleInfo], max_tokens: int) -> list[SampleInfo]:
    """Evenly spaced conversations with about `max_tokens` in total at most."""
    total = sum(info.tokens for info in infos)
    keep = len(infos) if total <= max_tokens else int(len(infos) * max_tokens / total)
    return [infos[i * len(infos) // keep] for i in range(keep)]


def heldout_batches(store: FeatureStore, batch_tokens: int, max_tokens: int) -> list[list[SampleInfo]]:
    """Evenly spaced held-out conversations up to `max_tokens` (at least one), in batches of similar length."""
    usable = [info for info in store.split("heldout") if is_trainable(info)]
    picked = even_subset(usable, max_tokens) or usable[:1]
    return list(by_tokens(sorted(picked, key=_tokens), batch_tokens, _tokens))
