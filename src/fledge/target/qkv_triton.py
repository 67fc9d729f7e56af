"""Norms, RoPE and the KV pool in one Triton kernel, of which each program takes one head of one row.

`qkv.rotate_and_store` defines it; in torch it is a dozen launches in every layer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def rotate_and_store(
    qkv: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    rope: tuple[Tensor, Tensor] | None,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
) -> Tensor:
    """See `qkv.rotate_and_store`; the pool's [kv_heads, D] are contiguous."""
    qkv = qkv.contiguous()
    rows, kv_heads, size = len(qkv), keys.shape[1], keys.shape[2]
    heads = qkv.shape[1] - 2 * kv_heads
    query = qkv.new_empty(rows, heads, size)
    cos, sin = (qkv, qkv) if rope is None else (rope[0].contiguous(), rope[1].contiguous())
    query_norm, key_norm = (qkv, qkv) if norms is None else norms
    with torch.cuda.device_of(qkv):
        _rotate_and_store[(rows, heads + 2 * kv_heads)](
            qkv,
            query,
            keys,
            values,
            slots,
            cos,
            sin,
            query_norm,
            key_norm,
            eps,
            keys.stride(0),
            HEADS=heads,
            KV_HEADS=kv_heads,
            HALF=size // 2,
            HALF_PADDED=triton.next_power_of_2(size // 2),
            ROPE=rope is not None,
            NORMS=norms is not None,
            num_warps=1,
        )
    return query


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _rotate_and_store(
    qkv,
    query,
    keys,
    values,
    slots,
    cos,
    sin,
    query_norm,
    key_norm,
    eps,
    slot_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    ROPE: tl.constexpr,
    NORMS: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, HALF_PADDED)
    inside = column < HALF
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * (2 * HALF) + column
    first, second = tl.load(source, mask=inside, other=0.0), tl.load(source + HALF, mask=inside, other=0.0)
    if head < HEADS + KV_HEADS:  # no value
        if NORMS:
            a, b = first.to(tl.float32), second.to(tl.float32)
            weight = (query_norm if head < HEADS else key_norm) + column
            scale = tl.rsqrt(tl.sum(a * a + b * b, 0) / (2 * HALF) + eps)
            first = (a * scale * tl.load(weight, mask=inside)).to(first.dtype)
            second = (b * scale * tl.load(weight + HALF, mask=inside)).to(first.dtype)
        if ROPE:
            a, b = first.to(tl.float32), second.to(tl.float32)
            c = tl.load(cos + row * HALF + column, mask=inside)
            s = tl.load(sin + row * HALF + column, mask=inside)
            first, second = (a * c - b * s).to(first.dtype), (b * c + a * s).to(first.dtype)
    slot = tl.load(slots + row) * slot_stride
    if head < HEADS:
        target = query + (row * HEADS + head) * (2 * HALF)
    elif head < HEADS + KV_HEADS:
        target = keys + slot + (head - HEADS) * (2 * HALF)
    else:
        target = values + slot + (head - HEADS - KV_HEADS) * (2 * HALF)
    tl.store(target + column, first, mask=inside)
    tl.store(target + HALF + column, second, mask=inside)
