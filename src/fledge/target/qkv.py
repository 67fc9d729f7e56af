"""From a layer's product with W_qkv to its attention: norms, RoPE, and the KV pool."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.base.device import runs_triton
from fledge.target.rope import apply_rope


def rotate_and_store(
    qkv: Tensor,  # [R, heads + 2 * kv_heads, D]
    keys: Tensor,  # [slots, kv_heads, D], the pool's
    values: Tensor,
    slots: Tensor,  # [R] int64, where each row's key and value go
    rope: tuple[Tensor, Tensor] | None,  # cosines and sines [R, D // 2] float32; None: not rotated
    norms: tuple[Tensor, Tensor]
    | None = None,  # weights [D] of the queries' and the keys' RMS norm; None: not normed
    eps: float = 0.0,
) -> Tensor:  # [R, heads, D]
    """The queries, normed and rotated; keys, likewise, and values are written to the pool."""
    if runs_triton(qkv):
        from fledge.target import qkv_triton  # only a GPU machine needs it

        return qkv_triton.rotate_and_store(qkv, keys, values, slots, rope, norms, eps)
    kv_heads = keys.shape[1]
    heads = qkv.shape[1] - 2 * kv_heads
    query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
    turned = qkv[:, : heads + kv_heads]
    if norms is not None:
        turned = torch.cat((rms_norm(query, norms[0], eps), rms_norm(key, norms[1], eps)), dim=1)
    if rope is not None:
        turned = apply_rope(turned, *rope)
    keys.index_copy_(0, slots, turned[:, heads:])
    values.index_copy_(0, slots, value)
    return turned[:, :heads]


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [..., N] over its root mean square times weight [N], in x's dtype; x itself where there is no weight."""
    if weight is None:
        return x
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)
