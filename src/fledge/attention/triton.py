"""Paged tree attention in Triton, for GPUs (flash decoding, https://pytorch.org/blog/flash-decoding).

    grid    tiles of rows  x  KV heads  x  splits of the KV indices

                    split 0        split 1        split 2
    row tile 0   [ prefix ..... | prefix ..... | prefix, window ]   each: max, sum, values; merged by log-sum-exp

The query heads that share a KV head are packed into one tile with their rows, so keys and values are read once for all.
A tile's rows belong to one request, which the kernel finds by bisection, so nothing is read on the host. The window is
masked by each row's 64 ancestor bits; without masks (plain decode, chains, prefill) by one comparison. Keys that all of
a tile's rows see, which are most, need no mask and take half the instructions. If heads have sinks, the first split
starts with them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs

from fledge.attention.layout import WHOLE, PagedRows, Window, first_seen, kv_slots

_SPLIT = 512  # minimum KV indices per program; a power of two
_MAX_SUMS = 1 << 26  # limit on numbers that the splits leave to be merged: 256 MiB
_LOG2_E = tl.constexpr(1.4426950408889634)  # 2 ** x is one instruction, e ** x is two
_INTERPRETED = (
    knobs.runtime.interpret
)  # the interpreter has no bf16 products; widened operands give the same sums


class _Tile(NamedTuple):
    """Sizes of the block that one program holds at once."""

    lanes: int  # rows times query heads per KV head, about
    keys: int  # KV indices per step
    warps: int


class TritonAttention:
    """Attention over one batch's rows, like `PagedAttention`. Build it once, then call `attend` for every layer."""

    def __init__(self, rows: PagedRows, page_size: int, window: Window = WHOLE) -> None:
        self._rows = rows
        self._page_size = page_size
        requests, pages = rows.page_table.shape
        count = _row_count(rows)
        number = torch.arange(count, device=rows.page_table.device)
        request = torch.searchsorted(rows.row_start[1:].long(), number, right=True)
        begin = (rows.prefix_length + rows.window_offset - rows.row_start[:-1]).long()
        self._index = number + begin[request]  # [R] int64, the KV index each row is written at
        self.write_slots = kv_slots(rows.page_table, request, self._index, page_size)  # [R] int64
        self._first = first_seen(rows, self._index, request, window) if window.size else None
        self._kept = window.sinks
        self._count, self._requests, self._indices = count, requests, pages * page_size

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """query [R, heads, D], pool keys and values [slots, kv_heads, D], rows already written -> [R, heads, D].

        bf16, fp16 or fp32; D up to 256; scaled by D ** -0.5. Sums are float32. `sinks` [heads]: logits that take part
        in the softmax without a value.
        """
        rows, size = self._rows, query.shape[2]
        heads, kv_heads = query.shape[1], keys.shape[1]
        group = heads // kv_heads
        tile = _tile(size, query.element_size())
        rows_per_tile = max(tile.lanes // triton.next_power_of_2(group), 1)
        query, output = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
        split = _split_length(self._indices, self._count * heads * (size + 2))
        splits = triton.cdiv(self._indices, split)
        partial = query.new_empty(
            self._count if splits > 1 else 0, heads, splits, size + 2, dtype=torch.float32
        )
        tiles = self._count // rows_per_tile + self._requests  # each request starts a new tile
        with torch.cuda.device_of(query):  # Triton launches on the current device
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
                size**-0.5 * _LOG2_E.value,
                self._requests,
                rows.page_table.shape[1],
                split,
                splits,
                keys.stride(0),
                keys.stride(1),
                GROUP=group,
                KV_HEADS=kv_heads,
                D=size,
                D_PADDED=triton.next_power_of_2(size),
                TILE=rows_per_tile,
                LANES=max(rows_per_tile * triton.next_power_of_2(group), 16),
                PAGE=self._page_size,
                KEYS=tile.keys,
                TREE=rows.window_mask is not None,
                WINDOWED=self._first is not None,
                KEPT=self._kept,
                SINKS=sinks is not None,
                WIDEN=_INTERPRETED,
                num_warps=tile.warps,
            )
            if splits > 1:
                _merge[(self._count, heads)](
                    partial,
                    output,
                    self._index,
                    split,
                    splits,
                    D=size,
                    D_PADDED=triton.next_power_of_2(size),
                )
        return output


def _tile(size: int, element_size: int) -> _Tile:
    """Tile sizes that fit the registers of an H100 and the shared memory of an L4, for heads of this size."""
    if element_size > 2:  # multiplied without tensor cores
        return _Tile(lanes=16, keys=16, warps=4)
    return _Tile(lanes=64, keys=64, warps=4) if size <= 128 else _Tile(lanes=64, keys=32, warps=8)


def _split_length(indices: int, sums: int) -> int:
    """KV indices per program, for a table with room for `indices`; each split leaves `sums` numbers to be merged.

    Many rows keep a GPU busy without many splits, whose sums would take gigabytes for long contexts.
    """
    limit = max(_MAX_SUMS // sums, 1)
    return max(int(triton.next_power_of_2(triton.cdiv(indices, limit))), _SPLIT)


def _row_count(rows: PagedRows) -> int:
    tokens = getattr(rows, "token_ids", None)
    return int(rows.row_start[-1]) if tokens is None else int(tokens.shape[0])


# A kernel is compiled again for each combination of types, constants and properties of its arguments (is it 1, is it a
# multiple of 16?). What changes from round to round is therefore neither a constant nor looked at.
@triton.jit(
    do_not_specialize=["requests", "pages", "split_length", "splits"],
    do_not_specialize_on_alignment=[
        "row_start",
        "prefix_length",
        "window_offset",
        "page_table",
        "window_mask",
        "first_seen",
        "sinks",
    ],
)
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
    scale,  # of scores in powers of two
    requests,
    pages,
    split_length,
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
    TREE: tl.constexpr,
    WINDOWED: tl.constexpr,
    KEPT: tl.constexpr,  # the first tokens, which windowed rows see, too
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
    start, stop = split * split_length, tl.minimum(split * split_length + split_length, base + end)
    if start >= stop:  # the table has room for more than is used
        return

    lane = tl.arange(0, LANES)
    row = begin + lane // GROUP
    head = kv_head * GROUP + lane % GROUP
    live = (row < end) & (lane < TILE * GROUP)
    column = tl.arange(0, D_PADDED)
    item = row.to(tl.int64) * (KV_HEADS * GROUP) + head
    query_at = item[:, None] * D + column[None, :]
    q = tl.load(query + query_at, mask=live[:, None] & (column[None, :] < D), other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    mask, earliest = row, row  # where there are none
    if TREE:
        mask = tl.load(window_mask + row, mask=live, other=0)
    # The blocks of KEYS indices from `opened` to `closed` are seen by all of the tile's rows.
    closed = tl.maximum(start, tl.minimum(stop, (prefix if TREE else base + begin + 1) // KEYS * KEYS))
    opened = start
    if WINDOWED:  # nothing before the tile's first visible index is read
        earliest = tl.load(first_seen + row, mask=live, other=stop).to(tl.int32)
        start = tl.maximum(start, tl.min(earliest, 0) // KEYS * KEYS)
        latest = tl.max(tl.where(live, earliest, 0), 0)
        closed = tl.maximum(start, closed)
        opened = tl.minimum(tl.maximum(start, tl.cdiv(latest, KEYS) * KEYS), closed)

    high_score = tl.full([LANES], float("-inf"), tl.float32)  # of scores in powers of two
    total = tl.zeros([LANES], tl.float32)
    mixed = tl.zeros([LANES, D_PADDED], tl.float32)
    if SINKS:  # every row has a first split, even if its window begins after it
        sink = tl.load(sinks + head, mask=live, other=0.0).to(tl.float32) * _LOG2_E
        high_score = tl.where(split == 0, sink, high_score)
        total = tl.where(split == 0, 1.0, total)
    table = page_table + low * pages
    keys += kv_head * head_stride
    values += kv_head * head_stride
    for key in range(opened, closed, KEYS):
        high_score, total, mixed = _step(
            q, keys, values, table, slot_stride, scale, key, stop, prefix, base + row, mask, earliest,
            high_score, total, mixed, D, D_PADDED, PAGE, KEYS, False, TREE, WINDOWED, KEPT, WIDEN,
        )  # fmt: skip
    before = (opened - start) // KEYS
    last = tl.maximum(tl.cdiv(stop - closed, KEYS), 0)
    apart = ((split == 0) & (start > 0)).to(tl.int32) if KEPT else 0  # the block with the first tokens
    for block in range(-apart, before + last):
        key = tl.where(block < before, start, closed - before * KEYS) + block * KEYS
        if KEPT:
            key = tl.where(block < 0, 0, key)
        high_score, total, mixed = _step(
            q, keys, values, table, slot_stride, scale, key, stop, prefix, base + row, mask, earliest,
            high_score, total, mixed, D, D_PADDED, PAGE, KEYS, True, TREE, WINDOWED, KEPT, WIDEN,
        )  # fmt: skip

    stored = live[:, None] & (column[None, :] < D)
    if splits == 1:
        result = mixed / tl.maximum(total, 1e-30)[:, None]
        tl.store(output + query_at, result.to(output.dtype.element_ty), mask=stored)
    else:
        part = (item * splits + split) * (D + 2)
        tl.store(partial + part, high_score, mask=live)
        tl.store(partial + (part + 1), total, mask=live)
        tl.store(partial + (part[:, None] + 2 + column[None, :]), mixed, mask=stored)


@triton.jit
def _step(
    q,
    keys,
    values,
    table,
    slot_stride,
    scale,
    key,
    stop,
    prefix,
    own,
    mask,
    earliest,
    high_score,
    total,
    mixed,
    D: tl.constexpr,
    D_PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    TREE: tl.constexpr,
    WINDOWED: tl.constexpr,
    KEPT: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """The sums with KV indices key .. key + KEYS - 1. `own`: the index each row is stored at."""
    index = key + tl.arange(0, KEYS)
    read = tl.minimum(index, stop - 1) if MASKED else index  # the mask hides what is read again
    read = read.to(tl.uint32)  # divided by a shift
    slot = tl.load(table + read // PAGE) * PAGE + read % PAGE
    column = tl.arange(0, D_PADDED)
    at = (slot.to(tl.int64) * slot_stride)[:, None] + column[None, :]
    if D == D_PADDED:
        k, v = tl.load(keys + at), tl.load(values + at)
    else:
        k = tl.load(keys + at, mask=column[None, :] < D, other=0.0)
        v = tl.load(values + at, mask=column[None, :] < D, other=0.0)
    if WIDEN:
        k = k.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # [LANES, KEYS]
    if MASKED:
        if TREE:
            entry = index - prefix
            bit = (mask[:, None] >> tl.minimum(tl.maximum(entry, 0), 63)[None, :].to(tl.int64)) & 1
            seen = (entry[None, :] < 0) | ((bit != 0) & (entry[None, :] < 64))
        else:
            seen = index[None, :] <= own[:, None]
        if WINDOWED:
            seen = seen & ((index[None, :] >= earliest[:, None]) | (index[None, :] < KEPT))
        scores = tl.where(seen & (index < stop)[None, :], scores, float("-inf"))
    new_max = tl.maximum(high_score, tl.max(scores, 1) * scale)
    safe = tl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
    weights = tl.exp2(tl.fma(scores, scale, -safe[:, None]))
    shrink = tl.exp2(high_score - safe)
    total = total * shrink + tl.sum(weights, 1)
    rounded = weights.to(v.dtype)
    if WIDEN:
        rounded, v = rounded.to(tl.float32), v.to(tl.float32)
    mixed = mixed * shrink[:, None] + tl.dot(rounded, v, input_precision="ieee")
    return new_max, total, mixed


@triton.jit(do_not_specialize=["split_length", "splits"], do_not_specialize_on_alignment=["row_index"])
def _merge(partial, output, row_index, split_length, splits, D: tl.constexpr, D_PADDED: tl.constexpr):
    """out = sum_s 2^(m_s - m) o_s / sum_s 2^(m_s - m) l_s, for one row and head; s up to the row's own split."""
    used = tl.load(row_index + tl.program_id(0)) // split_length + 1
    item = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
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
        shrink, weight = tl.exp2(high_score - safe), tl.exp2(score - safe)
        total = total * shrink + tl.load(part + 1) * weight
        mixed = mixed * shrink + tl.load(part + 2 + column, mask=column < D, other=0.0) * weight
        high_score = new_max
    result = mixed / tl.maximum(total, 1e-30)
    tl.store(output + item * D + column, result.to(output.dtype.element_ty), mask=column < D)
