"""Paged tree attention in plain torch, for all requests at once: pad to a rectangle, mask, one call.

                 rows [B, Q]     keys [B, S]
    request 0    r . .           k k k k . .         `.` is padding: a row whose output is dropped,
    request 1    r r r           k k k k k k         a key that the mask hides
    request 2    r r .           k k k . . .

If padding would more than double the work, each request gets its own rectangle (`_Block`). Rectangles, slots and masks
are the same in every layer, so they are built once per forward.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.attention.layout import WHOLE, PagedRows, Window, first_seen, kv_slots, row_indices, row_requests

# The rectangle may be this many times the work (query rows * keys) of separate calls per request, or up to this much
# work in total, below which a call's overhead outweighs the padding.
_MAX_PADDING, _FREE_AREA = 2, 1 << 18
_MOST_SCORES = 1 << 24  # scores in memory at once, for heads with sinks


@dataclass(frozen=True)
class _Block:
    """Some requests side by side: Q rows and S keys each, after padding. A block's rows are contiguous."""

    rows: slice
    padded_row: Tensor | None  # [rows], b * Q + i; None: one request, no padding
    requests: int
    query_rows: int
    slots: Tensor | slice  # [requests * S], or a slice if contiguous
    mask: Tensor | None  # [requests, 1, Q, S] bool; None: all visible, or plain causal
    causal: bool


class PagedAttention:
    """Attention over one batch's rows. Build it once, then call `attend` for every layer with this window."""

    def __init__(self, rows: PagedRows, page_size: int, window: Window = WHOLE) -> None:
        self._page_size = page_size
        request = row_requests(rows)
        index = row_indices(rows, request)
        self._first = first_seen(rows, index, request, window) if window.size else None
        self._sinks = window.sinks
        self.write_slots = kv_slots(rows.page_table, request, index, page_size)  # [R] int64
        starts = rows.row_start.tolist()
        counts = [end - start for start, end in pairwise(starts)]
        begins = (rows.prefix_length + rows.window_offset).tolist()
        lengths = [begin + count if count else 0 for begin, count in zip(begins, counts, strict=True)]
        padded = len(counts) * max(counts, default=0) * max(lengths, default=0)
        needed = sum(count * length for count, length in zip(counts, lengths, strict=True))
        together = padded <= max(_MAX_PADDING * needed, _FREE_AREA)
        groups = [range(len(counts))] if together else [range(b, b + 1) for b in range(len(counts))]
        self._blocks = [
            self._make_block(rows, group, counts, lengths, index)
            for group in groups
            if any(counts[b] for b in group)
        ]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """query [R, heads, D], pool keys and values [slots, kv_heads, D], rows already written -> [R, heads, D].

        `sinks` [heads]: logits that take part in the softmax without a value.
        """
        outputs = [_attend_block(block, query[block.rows], keys, values, sinks) for block in self._blocks]
        return outputs[0] if len(outputs) == 1 else torch.cat([query[:0], *outputs])

    def _make_block(
        self, rows: PagedRows, group: range, counts: list[int], lengths: list[int], index: Tensor
    ) -> _Block:
        first, size = group.start, len(group)
        query_rows, keys = max(counts[b] for b in group), max(lengths[b] for b in group)
        start, end = (int(rows.row_start[b]) for b in (first, group.stop))
        device = index.device
        local = torch.repeat_interleave(
            torch.arange(size, device=device), torch.tensor([counts[b] for b in group], device=device)
        )
        number = torch.arange(end - start, device=device) - (rows.row_start.long()[first + local] - start)
        padded_row = local * query_rows + number
        key = torch.arange(keys, device=device)
        last = torch.tensor([max(lengths[b] - 1, 0) for b in group], device=device)
        slots = kv_slots(
            rows.page_table,
            torch.arange(first, group.stop, device=device).unsqueeze(1).expand(size, keys),
            torch.minimum(key, last.unsqueeze(1)),  # padded keys repeat the last one, masked below
            self._page_size,
        ).flatten()
        span = slice(start, end)
        limited = self._first is not None and bool((self._first[span] > 0).any())
        plain = rows.window_mask is None and not limited
        causal = plain and size == 1 and query_rows == keys
        everything = plain and query_rows == 1 and min(lengths[b] for b in group) == keys
        mask = None
        if not causal and not everything:
            seen = torch.zeros(size * query_rows, keys, dtype=torch.bool, device=device)
            seen[padded_row] = _visible(rows, first + local, index[span], key, span)
            if self._first is not None and limited:
                seen[padded_row] &= (key >= self._first[span].unsqueeze(1)) | (key < self._sinks)
            mask = seen.view(size, 1, query_rows, keys)
        return _Block(
            rows=span,
            padded_row=None if end - start == size * query_rows else padded_row,
            requests=size,
            query_rows=query_rows,
            slots=_as_range(slots) if size == 1 else slots,
            mask=mask,
            causal=causal and query_rows > 1,
        )


def _visible(rows: PagedRows, request: Tensor, index: Tensor, key: Tensor, span: slice) -> Tensor:
    """Visibility of the keys [S] to each row of `span`, [rows, S] bool."""
    if rows.window_mask is None:
        return key <= index.unsqueeze(1)
    window = key - rows.prefix_length.long()[request].unsqueeze(1)  # [rows, S]
    bits = rows.window_mask[span].unsqueeze(1) >> window.clamp(0, 63)
    return (window < 0) | ((bits & 1).bool() & (window < 64))


def _as_range(slots: Tensor) -> Tensor | slice:
    """Contiguous slots as a slice, which is read in place instead of copied."""
    first, count = int(slots[0]), slots.shape[0]
    if torch.equal(slots, torch.arange(first, first + count, device=slots.device)):
        return slice(first, first + count)
    return slots


def _read(pool: Tensor, slots: Tensor | slice) -> Tensor:
    # index_select is three times as fast as pool[slots].
    return pool[slots] if isinstance(slots, slice) else pool.index_select(0, slots)


def _attend_block(block: _Block, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None) -> Tensor:
    heads, kv_heads, size = query.shape[1], keys.shape[1], query.shape[2]
    batch, count, group = block.requests, block.query_rows, heads // kv_heads
    if block.padded_row is not None:
        padded = query.new_zeros(batch * count, heads, size)
        query = padded.index_copy_(0, block.padded_row, query)
    key = _read(keys, block.slots).view(batch, -1, kv_heads, size).transpose(1, 2)  # [b, kv_heads, S, D]
    value = _read(values, block.slots).view(batch, -1, kv_heads, size).transpose(1, 2)
    if sinks is not None:
        output = _attend_with_sinks(block, query.view(batch, count, heads, size), key, value, sinks)
    elif block.causal:  # one long run of rows: the kernel skips everything above the diagonal
        query = query.view(batch, count, heads, size).transpose(1, 2)  # [b, heads, Q, D]
        output = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=group > 1)
        output = output.transpose(1, 2)
    else:  # heads sharing a KV head become extra rows, so keys are read once
        query = query.view(batch, count, kv_heads, group, size).permute(0, 2, 3, 1, 4)
        query = query.reshape(batch, kv_heads, group * count, size)
        mask = None if block.mask is None else block.mask.repeat(1, 1, group, 1)  # [b, 1, group * Q, S]
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        output = output.view(batch, kv_heads, group, count, size).permute(0, 3, 1, 2, 4)
    output = output.reshape(batch * count, heads, size)
    return output if block.padded_row is None else output[block.padded_row]


def _attend_with_sinks(block: _Block, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor) -> Tensor:
    """query [b, Q, heads, D], key and value [b, kv_heads, S, D], sinks [heads] -> [b, Q, heads, D].

    torch's attention has no sinks. This one materialises scores, so it processes some rows at a time.
    """
    (batch, count, heads, size), (kv_heads, keys) = query.shape, key.shape[1:3]
    group = heads // kv_heads
    seen = block.mask
    if block.causal:
        seen = torch.ones(1, 1, count, keys, dtype=torch.bool, device=query.device).tril()
    query = query.view(batch, count, kv_heads, group, size).permute(0, 2, 3, 1, 4).float() * size**-0.5
    key = key.float().mT  # [b, kv_heads, D, S]
    outputs = []
    at_once = max(_MOST_SCORES // (batch * heads * keys), 1)
    for first in range(0, count, at_once):
        rows = query[:, :, :, first : first + at_once].flatten(2, 3)
        scores = (rows @ key).unflatten(2, (group, -1))  # [b, kv_heads, group, rows, S]
        if seen is not None:
            scores = scores.where(seen[:, :, None, first : first + at_once], -torch.inf)
        sink = sinks.float().view(kv_heads, group, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :keys]
        mixed = weights.to(value.dtype).flatten(2, 3) @ value
        outputs.append(
            mixed.unflatten(2, (group, -1)).permute(0, 3, 1, 2, 4)
        )  # [b, rows, kv_heads, group, D]
    return torch.cat(outputs, dim=1)
