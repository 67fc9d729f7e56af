"""The definition of paged tree attention, row by row. Every fast path is tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.attention.layout import WHOLE, PagedRows, Window, kv_slots


def seen_indices(rows: PagedRows, request: int, row: int, window: Window = WHOLE) -> list[int]:
    """KV indices seen by row `row` of the batch, which belongs to `request`: the prefix, then its window entries.

    Only the last `window` of these and its sinks.
    """
    prefix = int(rows.prefix_length[request])
    if rows.window_mask is None:
        index = prefix + int(rows.window_offset[request]) + row - int(rows.row_start[request])
        return _limited(list(range(index + 1)), window)
    mask = int(rows.window_mask[row])  # negative when bit 63 is set; >> keeps the sign, so & 1 stays right
    entries = [prefix + j for j in range(64) if (mask >> j) & 1]
    if window.of_prefix:
        return _limited(list(range(prefix)), window) + entries
    return _limited([*range(prefix), *entries], window)


def _limited(seen: list[int], window: Window) -> list[int]:
    last = seen[-window.size :]
    return [i for i in seen[: window.sinks] if i < last[0]] + last if last else []


def reference_attention(
    query: Tensor,  # [R, heads, D]
    keys: Tensor,  # [slots, kv_heads, D], this batch's rows already written
    values: Tensor,  # [slots, kv_heads, D]
    rows: PagedRows,
    page_size: int,
    window: Window = WHOLE,
    sinks: Tensor | None = None,  # [heads], logits that take part in the softmax without a value
) -> Tensor:  # [R, heads, D], query's dtype, computed in float32
    """Softmax attention, scaled by D ** -0.5; query head h reads KV head h // (heads // kv_heads)."""
    group = query.shape[1] // keys.shape[1]
    output = torch.empty_like(query)
    for request in range(rows.prefix_length.shape[0]):
        for row in range(int(rows.row_start[request]), int(rows.row_start[request + 1])):
            index = torch.tensor(seen_indices(rows, request, row, window), device=query.device)
            slots = kv_slots(rows.page_table, torch.full_like(index, request), index, page_size)
            key = keys[slots].float().repeat_interleave(group, dim=1)  # [seen, heads, D]
            value = values[slots].float().repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,shd->hs", query[row].float(), key) * query.shape[2] ** -0.5
            if sinks is not None:
                scores = torch.cat((scores, sinks.float().unsqueeze(1)), dim=1)
            weights = scores.softmax(dim=-1)[:, : len(index)]
            output[row] = torch.einsum("hs,shd->hd", weights, value).to(query.dtype)
    return output
