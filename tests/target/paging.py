"""Batches over scattered pages, written the way the engine writes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fledge.target import ForwardBatch, TorchDecoder


def scattered_pages(requests: int, pages: int, seed: int = 0) -> Tensor:
    """Page tables [requests, pages] that share nothing and are in no order."""
    order = torch.randperm(requests * pages, generator=torch.Generator().manual_seed(seed))
    return order.view(requests, pages).int()


def make_batch(
    token_ids: Sequence[Sequence[int]],
    page_table: Tensor,
    *,
    prefix: Sequence[int] | None = None,
    offset: Sequence[int] | None = None,
    positions: Sequence[Sequence[int]] | None = None,
    masks: Sequence[Sequence[int]] | None = None,
    logit_rows: Sequence[int] | None = None,
) -> ForwardBatch:
    """One list of ids per request; positions default to those of plain text."""
    prefix = list(prefix or [0] * len(token_ids))
    offset = list(offset or [0] * len(token_ids))
    if positions is None:
        starts = [p + o for p, o in zip(prefix, offset, strict=True)]
        positions = [range(s, s + len(ids)) for s, ids in zip(starts, token_ids, strict=True)]
    row_start = [0]
    for ids in token_ids:
        row_start.append(row_start[-1] + len(ids))
    return ForwardBatch(
        token_ids=_int32([i for ids in token_ids for i in ids]),
        positions=_int32([p for each in positions for p in each]),
        row_start=_int32(row_start),
        prefix_length=_int32(prefix),
        window_offset=_int32(offset),
        page_table=page_table,
        window_mask=None
        if masks is None
        else torch.tensor([m for each in masks for m in each], dtype=torch.int64),
        logit_rows=None if logit_rows is None else _int32(list(logit_rows)),
    )


def logits_of(decoder: TorchDecoder, batch: ForwardBatch, kv: Tensor) -> Tensor:
    """The batch's logits [M, V]."""
    logits = decoder.forward(batch, kv, logits="logits").logits
    assert logits is not None
    return logits


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
