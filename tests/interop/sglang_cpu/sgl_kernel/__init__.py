"""SGLang's CPU kernels that its speculation calls, in plain torch: attention and index bookkeeping, no model code.

Its own build of them has no wheel. Signatures and meaning are those that their callers in sglang 0.5.23 expect, and its
Triton kernels of the same functions. Tree building and verification are SGLang's own Triton kernels, interpreted.
It runs in SGLang's environment and imports nothing of fledge.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor


def decode_attention_cpu(
    query: Tensor,  # [B, heads, D]
    k_buffer: Tensor,  # [slots, kv_heads, D]
    v_buffer: Tensor,
    k_scale: object,
    v_scale: object,
    output: Tensor,
    key: Tensor | None,  # written into the buffer at `slots` first
    value: Tensor | None,
    slots: Tensor,
    scratch: object,
    req_to_token: Tensor,  # [requests, positions]: slots
    rows: Tensor,
    lengths: Tensor,
    scale: float,
    logit_cap: float,
    cross: bool,
    window: int,
    encoder: object,
    sinks: object,
) -> None:
    """One query of each sequence sees all its keys."""
    _plain(logit_cap, cross, window, sinks)
    if key is not None and value is not None:
        k_buffer[slots] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[slots] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for i in range(len(query)):
        seen = req_to_token[rows[i], : lengths[i]].long()
        output[i] = _attend(query[i : i + 1], k_buffer[seen], v_buffer[seen], scale, None)[0]


def extend_attention_cpu(
    query: Tensor,  # [R, heads, D]: the new rows of all sequences
    key: Tensor,
    value: Tensor,
    output: Tensor,
    k_buffer: Tensor,  # holds the new rows already
    v_buffer: Tensor,
    k_scale: object,
    v_scale: object,
    req_to_token: Tensor,
    rows: Tensor,
    lengths: Tensor,  # new rows included
    new: Tensor,
    starts: Tensor,
    longest: int,
    scale: float,
    logit_cap: float,
    cross: bool,
    window: int,
    encoder: object,
    sinks: object,
    tree_mask: Tensor | None,  # [B * N * N]: which of a tree's N nodes each of them sees
    causal: bool,
) -> None:
    """New rows see what came before them, and of themselves the earlier ones or their ancestors in a tree."""
    _plain(logit_cap, cross, window, sinks)
    if not causal:
        raise NotImplementedError("attention that isn't causal has no stand-in")
    for i in range(len(lengths)):
        length, count, start = int(lengths[i]), int(new[i]), int(starts[i])
        seen = req_to_token[rows[i], :length].long()
        mask = torch.ones(count, length, dtype=torch.bool)
        own = torch.ones(count, count, dtype=torch.bool).tril()
        mask[:, length - count :] = own if tree_mask is None else tree_mask.view(-1, count, count)[i]
        part = slice(start, start + count)
        output[part] = _attend(query[part], k_buffer[seen], v_buffer[seen], scale, mask)


def _plain(logit_cap: float, cross: bool, window: int, sinks: object) -> None:
    if logit_cap or cross or window > 0 or sinks is not None:
        raise NotImplementedError("capped, cross, windowed and sink attention have no stand-ins")


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> Tensor:
    """[Q, heads, D] from query [Q, heads, D], key and value [K, kv_heads, D] and mask [Q, K]."""
    q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query, key, value))
    grouped = q.shape[1] != k.shape[1]
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
    return mixed[0].transpose(0, 1)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, rows: Tensor, lengths: Tensor, topk: int, steps: int, width: int
) -> Tensor:
    """[B * topk, width]: the slots of each branch, first the sequence's, then its own `steps`."""
    table = req_to_token.new_zeros(len(rows) * topk, width)
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for branch in range(topk):
            begin = length + branch * steps
            table[i * topk + branch, :length] = req_to_token[row, :length]
            table[i * topk + branch, length : length + steps] = req_to_token[row, begin : begin + steps]
    return table


def assign_req_to_token_pool_cpu(
    rows: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, width: int
) -> None:
    """Enter each sequence's new slots, which follow each other in `slots`."""
    done = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        req_to_token[row, start:end] = slots[done : done + end - start].to(req_to_token.dtype)
        done += end - start


def assign_extend_cache_locs_cpu(
    rows: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, out: Tensor, width: int
) -> None:
    """Read them back."""
    done = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        out[done : done + end - start] = req_to_token[row, start:end].to(out.dtype)
        done += end - start


def assign_draft_cache_locs_contiguous_cpu(
    rows: Tensor, req_to_token: Tensor, lengths: Tensor, out: Tensor, width: int, topk: int, steps: int
) -> None:
    """The slots of each sequence's drafts."""
    count = topk * steps
    for i, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        out[i * count : (i + 1) * count] = req_to_token[row, length : length + count].to(out.dtype)


def fill_bonus_tokens_cpu(token_ids: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """The last accepted token of each sequence."""
    bonus.copy_(token_ids.flatten()[torch.arange(len(lengths)) * stride + lengths.long() - 1])


def fill_accept_out_cache_loc_cpu(index: Tensor, slots: Tensor, out: Tensor) -> None:
    """The slots of accepted nodes; the index is -1 for others."""
    accepted = index.flatten()
    accepted = accepted[accepted > -1].long()
    out[: len(accepted)] = slots[accepted]


def copy_all_layer_kv_cache_cpu(pointers: Tensor, strides: Tensor, to: Tensor, origin: Tensor) -> None:
    """Move slots in each layer's buffers, of which only the address and a slot's bytes are given."""
    for pointer, size in zip(pointers.tolist(), strides.tolist(), strict=True):
        moved = [ctypes.string_at(pointer + slot * size, size) for slot in origin.tolist()]
        for slot, content in zip(to.tolist(), moved, strict=True):
            ctypes.memmove(pointer + slot * size, content, size)


def build_tree_kernel_efficient_cpu(*arguments: Any) -> Any:
    """SGLang's Triton kernel."""
    from sglang.kernels.ops.speculative.spec_tree import sgl_build_tree_kernel_triton

    return sgl_build_tree_kernel_triton(*arguments)


def verify_tree_greedy_cpu(
    *, retrive_index: Tensor, retrive_next_token: Tensor, retrive_next_sibling: Tensor, **named: Any
) -> Any:
    """SGLang's Triton kernel, which spells three of its arguments properly."""
    from sglang.kernels.ops.speculative.spec_tree import verify_tree_greedy_triton

    return verify_tree_greedy_triton(
        retrieve_index=retrive_index,
        retrieve_next_token=retrive_next_token,
        retrieve_next_sibling=retrive_next_sibling,
        **named,
    )


for _kernel in (decode_attention_cpu, extend_attention_cpu):
    setattr(torch.ops.sgl_kernel, _kernel.__name__, _kernel)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Kernels that SGLang imports and doesn't call here."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*arguments: object, **named: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return missing
