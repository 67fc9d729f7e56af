"""A decoder's interface: the rows of a forward, what it returns, and the paged KV pool between forwards.

Rows of several requests are laid end to end. Each request owns KV *indices* 0, 1, 2, ...; its page table maps
an index to a slot of the pool: ``slot = page_table[index // page_size] * page_size + index % page_size``.

    index   0 ............ L-1 | L  L+1  L+2 ...          L = prefix_length
            committed prefix   | window (this round's nodes)

Row i of a request is written at index ``prefix_length + window_offset + i``. It sees the whole prefix and those
window entries whose bit is set in its ``window_mask`` (bit j = index ``prefix_length + j``, its own bit included).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from fledge.target.config import DecoderConfig

PADDING_PAGE = 0  # belongs to no request: unused page-table entries and padding rows point at it
LogitsMode = Literal["none", "logits", "argmax"]


class ForwardBatch(NamedTuple):
    """One forward's rows. All tensors live on the decoder's device; R rows, B requests, P pages."""

    token_ids: Tensor  # [R] int32
    positions: Tensor  # [R] int32, RoPE positions
    row_start: Tensor  # [B + 1] int32, rows of request b are row_start[b] : row_start[b + 1]
    prefix_length: Tensor  # [B] int32
    window_offset: Tensor  # [B] int32, window index of the request's first row
    page_table: Tensor  # [B, P] int32
    window_mask: Tensor | None = None  # [R] int64; None: causal within the window
    logit_rows: Tensor | None = None  # [M] int32, rows whose logits are wanted; None: all


def one_sequence(token_ids: Sequence[int], page_size: int, device: torch.device) -> ForwardBatch:
    """One request from its start, causal, in the pages 0, 1, 2, ..."""
    rows = len(token_ids)

    def integers(values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=device)

    return ForwardBatch(
        token_ids=integers(token_ids),
        positions=integers(range(rows)),
        row_start=integers([0, rows]),
        prefix_length=integers([0]),
        window_offset=integers([0]),
        page_table=integers(range(-(-rows // page_size)))[None],
    )


class ForwardOutput(NamedTuple):
    """Outputs of a decoder forward; fields that were not requested are None. M = rows requested."""

    logits: Tensor | None  # [M, V] float32
    argmax: Tensor | None  # [M] int64, lowest id among equals
    features: Tensor | None  # [R, 3 * H], low, middle, high
    hidden: Tensor | None  # [R, H], the final norm's output (the lm_head's input)


class Decoder(Protocol):
    """A target's forward pass over a paged KV pool."""

    config: DecoderConfig
    page_size: int
    dtype: torch.dtype
    device: torch.device
    backend: str  # "native" or "torch"

    def allocate_kv(self, pages: int) -> Tensor:
        """A zeroed KV pool for `pages` pages; its layout is the decoder's own business."""
        ...

    def kv_bytes_per_token(self) -> int:
        """Bytes one token takes in the pool."""
        ...

    def forward(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        *,
        logits: LogitsMode,
        features: bool = False,
        hidden: bool = False,
    ) -> ForwardOutput:
        """Run all layers over the rows, writing their keys and values into `kv`."""
        ...

    def move_kv(self, kv: Tensor, source: Tensor, destination: Tensor) -> None:
        """Copy entries between slots ([M] int64 each), as if all sources were read before any write."""
        ...
