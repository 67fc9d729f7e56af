"""Tree attention over a paged KV pool: a reference, and fast paths tested against it.

The CPU path with compiled kernels is `native/attention.h`, part of whole-layer forwards.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from fledge.attention.batched import PagedAttention
from fledge.attention.layout import WHOLE, PagedRows, Window
from fledge.attention.reference import reference_attention
from fledge.base.device import runs_triton


class Attention(Protocol):
    """Attention over one batch's rows; built once per forward."""

    write_slots: Tensor  # [R] int64, the pool slot each row's key and value go to

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> Tensor:
        """query [R, heads, D], pool keys and values [slots, kv_heads, D], rows already written -> [R, heads, D].

        `sinks` [heads]: logits that take part in the softmax without a value; None: no sinks.
        """


def paged_attention(rows: PagedRows, page_size: int, window: Window = WHOLE) -> Attention:
    """The Triton kernel on a GPU where Triton is installed (`pip install "fledge[gpu]"`), otherwise plain torch.

    A window that isn't `of_prefix` has at least 64 tokens.
    """
    if runs_triton(rows.page_table):
        from fledge.attention.triton import TritonAttention  # only a GPU machine needs it

        return TritonAttention(rows, page_size, window)
    return PagedAttention(rows, page_size, window)


__all__ = [
    "Attention",
    "PagedAttention",
    "PagedRows",
    "Window",
    "paged_attention",
    "reference_attention",
]
