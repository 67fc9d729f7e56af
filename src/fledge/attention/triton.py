"""Paged tree attention in Triton, for GPUs (flash decoding, https://pytorch.org/blog/flash-decoding).

    grid    tiles of rows  x  KV heads  x  splits of the KV indices

                    split 0        split 1        split 2
    row tile 0   [ prefix ..... | prefix ..... | prefix, window ]   each: max, sum, values; merged by log-sum-exp

The query heads that share a KV head are packed into one tile with their rows, so keys and values are read once for all.
A tile's rows belong to one request, which the kernel finds by bisection, so nothing is read on the host. The window is
masked by each row's 64 ancestor bits; without masks (plain decode, chains, prefill) by one comparison. If heads have
sinks, the first split starts with them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from fledge.attention.layout import PagedRows, first_seen, kv_slots

_SPLIT = 512  # minimum KV indices per program; a power of two
_MAX_SUMS = 1 << 26  # limit on numbers that the splits leave to be merged: 256 MiB
_TILE_ROWS = 64  # rows times query heads per KV head, about
_KEYS = 64  # KV indices per step
_INTERPRETED = (
    knobs.runtime.interpret
)  # the interpreter has no bf16 products; widened operands give the same sums


class TritonAttention:
    """Attention over one batch's rows, like `PagedAttention`. Build it once, then call `attend` for every layer."""

    def __init__(self, rows: PagedRows, page_size: int, window: int = 0) -> None:
        self._rows = rows
        self._page_size = page_size
        requests, pages = rows.page_table.shape
        count = _row_count(rows)
        number = torch.arange(count, device=rows.page_table.device)
        request = torch.searchsorted(rows.row_start[1:].long(), number, right=True)
        begin = (rows.prefix_length + rows.window_offset - rows.row_start[:-1]).long()
        self._index = number + begin[request]  # [R] int64, the KV index each row is written at
        self.write_slots = kv_slots(rows.page_table, request, self._index, page_size)  # [R] int64
        self._first = first_seen(rows, self._index, request, window) if window else None
        self._count, self._requests, self._indices = count, requests, pages * page_size

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """query [R, heads, D], pool keys and values [slots, kv_heads, D], rows already written -> [R, heads, D].

        bf16, fp16 or fp32; D up to 256; scaled by D ** -0.5. Sums are float32. `sinks` [heads]: logits that take part
        in the softmax without a value.
        """
        rows, size = self._rows, query.shape[2]
        heads, kv_heads = query.shape[1], keys.shape[1]
        group = heads // kv_heads
        tile = max(_TILE_ROWS // triton.next_power_of_2(group), 1)  # rows per program
        query, output = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
        split = _split_length(self._indices, self._count * heads * (size + 2))
        splits = triton.cdiv(self._indices, split)
        partial = query.new_empty(self._count, heads, splits, size + 2, dtype=torch.float32)
        tiles = self._count // tile + self._requests  # each request starts a new tile
        _attend[(tiles, kv_heads, splits)](
            query,
            keys,
            values,
            partial,
            output,
            rows.row_start,
            rows.prefix_length,
            rows.window_offset,
            rows.page_table,
            rows.page_table if rows.window_mask is None else rows.window_mask,
            self._index if self._first is None else self._first,
            query if sinks is None else sinks,
            size**-0.5,
            self._requests,
            rows.page_table.shape[1],
            splits,
            keys.stride(0),
            keys.stride(1),
            GROUP=group,
            KV_HEADS=kv_heads,
            D=size,
            D_PADDED=triton.next_power_of_2(size),
            TILE=tile,
            LANES=max(tile * triton.next_power_of_2(group), 16),
            PAGE=self._page_size,
            KEYS=_KEYS
            * 2
            // max(query.element_size(), 2),  # float32's would be more than an L4's shared memory
            SPLIT=split,
            TREE=rows.window_mask is not None,
            WINDOWED=self._first is not None,
            SINKS=sinks is not None,
            WIDEN=_INTERPRETED,
        )
        if splits > 1:
            _merge[(self._count, heads)](
                partial,
                output,
                self._index,
                splits,
                D=size,
                D_PADDED=triton.next_power_of_2(size),
                SPLIT=split,
            )
        return output


def _split_length(indices: int, sums: int) -> int:
    """KV indices per program, for a table with room for `indices`; each split leaves `sums` numbers to be merged.

    Many rows keep a GPU busy without many splits, whose sums would take gigabytes for long contexts.
    """
    limit = max(_MAX_SUMS // sums, 1)
    return max(int(triton.next_power_of_2(triton.cdiv(indices, limit))), _SPLIT)


def _row_count(rows: PagedRows) -> int:
    tokens = getattr(rows, "token_ids", None)
    return int(rows.row_start[-1]) if tokens is None else int(tokens.shape[0])


@triton.jit
def _attend(
    query,
    keys,
    values,
    partial,
    output,
    row_start,
    prefix_length,
    window_offset,
    page_table,
    window_mask,
    first_seen,
    sinks,
    scale,
    requests,
    pages,
    splits,
    slot_stride,
    head_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    TILE: tl.constexpr,
    LANES: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    TREE: tl.constexpr,
    WINDOWED: tl.constexpr,
    SINKS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One tile of rows, one KV head, one split."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # Request r's tiles begin at row_start[r] // TILE + r: the last r for which that is <= tile.
    low, high = 0, requests
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(row_start + middle) // TILE + middle <= tile:
            low = middle
        else:
            high = middle
    first = tl.load(row_start + low)
    begin = first + (tile - first // TILE - low) * TILE  # the tile's first row
    end = tl.minimum(tl.load(row_start + low + 1), begin + TILE)
    if begin >= end:
        return
    prefix = tl.load(prefix_length + low)
    base = prefix + tl.load(window_offset + low) - first  # KV index of row r: base + r
    start, stop = split * SPLIT, tl.minimum(split * SPLIT + SPLIT, base + end)
    if start >= stop:  # the table has room for more than is used
        return

    lane = tl.arange(0, LANES)
    row = begin + lane // GROUP
    head = kv_head * GROUP + lane % GROUP
    live = (row < end) & (lane < TILE * GROUP)
    column = tl.arange(0, D_PADDED)
    query_at = (row[:, None] * (KV_HEADS * GROUP) + head[:, None]) * D + column[None, :]
    q = tl.load(query + query_at, mask=live[:, None] & (column[None, :] < D), other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    if TREE:
        mask = tl.load(window_mask + row, mask=live, other=0)
    if WINDOWED:  # nothing before the tile's first visible index is read
        earliest = tl.load(first_seen + row, mask=live, other=stop)
        start = tl.maximum(start, (tl.min(earliest, 0) // KEYS * KEYS).to(tl.int32))

    high_score = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    mixed = tl.zeros([LANES, D_PADDED], tl.float32)
    if SINKS:  # every row has a first split, even if its window begins after it
        sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32)
        high_score = tl.where(split == 0, sink, high_score)
        total = tl.where(split == 0, 1.0, total)
    for key in range(start, stop, KEYS):
        index = key + tl.arange(0, KEYS)
        inside = index < stop
        page = tl.load(page_table + low * pages + index // PAGE, mask=inside, other=0).to(tl.int64)
        at = (page * PAGE + index % PAGE) * slot_stride + kv_head * head_stride
        filled = inside[:, None] & (column[None, :] < D)
        k = tl.load(keys + at[:, None] + column[None, :], mask=filled, other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale  # [LANES, KEYS]
        if TREE:
            entry = index - prefix
            bit = (mask[:, None] >> tl.minimum(tl.maximum(entry, 0), 63)[None, :].to(tl.int64)) & 1
            seen = (entry[None, :] < 0) | ((bit != 0) & (entry[None, :] < 64))
        else:
            seen = index[None, :] <= (base + row)[:, None]
        if WINDOWED:
            seen = seen & (index[None, :] >= earliest[:, None])
        seen = seen & inside[None, :] & live[:, None]
        scores = tl.where(seen, scores, float("-inf"))
        new_max = tl.maximum(high_score, tl.max(scores, 1))
        safe = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp(scores - safe[:, None])
        shrink = tl.exp(high_score - safe)
        total = total * shrink + tl.sum(weights, 1)
        v = tl.load(values + at[:, None] + column[None, :], mask=filled, other=0.0)
        rounded = weights.to(v.dtype)
        if WIDEN:
            rounded, v = rounded.to(tl.float32), v.to(tl.float32)
        mixed = mixed * shrink[:, None] + tl.dot(rounded, v, input_precision="ieee")
        high_score = new_max

    stored = live[:, None] & (column[None, :] < D)
    if splits == 1:
        result = mixed / tl.maximum(total, 1e-30)[:, None]
        tl.store(output + query_at, result.to(output.dtype.element_ty), mask=stored)
    else:
        part = ((row * (KV_HEADS * GROUP) + head) * splits + split) * (D + 2)
        tl.store(partial + part, high_score, mask=live)
        tl.store(partial + part + 1, total, mask=live)
        tl.store(partial + part[:, None] + 2 + column[None, :], mixed, mask=stored)


@triton.jit
def _merge(partial, output, row_index, splits, D: tl.constexpr, D_PADDED: tl.constexpr, SPLIT: tl.constexpr):
    """out = sum_s e^(m_s - m) o_s / sum_s e^(m_s - m) l_s, for one row and head; s up to the row's own split."""
    used = tl.load(row_index + tl.program_id(0)) // SPLIT + 1
    item = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    column = tl.arange(0, D_PADDED)
    base = partial + item * splits * (D + 2)
    high_score = float("-inf")
    total = 0.0
    mixed = tl.zeros([D_PADDED], tl.float32)
    for split in range(used):
        part = base + split * (D + 2)
        score = tl.load(part)
        new_max = tl.maximum(high_score, score)
        safe = tl.where(new_max == float("-inf"), 0.0, new_max)
        shrink, weight = tl.exp(high_score - safe), tl.exp(score - safe)
        total = total * shrink + tl.load(part + 1) * weight
        mixed = mixed * shrink + tl.load(part + 2 + column, mask=column < D, other=0.0) * weight
        high_score = new_max
    result = mixed / tl.maximum(total, 1e-30)
    tl.store(output + item * D + column, result.to(output.dtype.element_ty), mask=column < D)
