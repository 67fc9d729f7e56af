"""Where rows are stored in a paged KV pool, and what each of them sees.

A request's KV indices 0, 1, 2, ... are its committed prefix, then this round's window. Example: a prefix of 3 and
a window of 4 tree nodes (node 1 and 2 are children of 0, node 3 of 1), `x` = seen:

                  prefix | window      window_mask
    index         0 1 2  | 3 4 5 6
    node 0        x x x  | x               0b0001
    node 1        x x x  | x x             0b0011
    node 2        x x x  | x   x           0b0101
    node 3        x x x  | x x   x         0b1011
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Window(NamedTuple):
    """The part of a sequence that rows see."""

    size: int = 0  # how many tokens a row sees at most, its own included; 0: all
    sinks: int = 0  # the first tokens of the sequence, which it sees besides
    # A draft head's: a tree's row sees `size` of the prefix, and all of its ancestors.
    of_prefix: bool = False


WHOLE = Window()


class PagedRows(Protocol):
    """The part of a `ForwardBatch` attention needs. R rows of B requests, P pages each."""

    @property
    def row_start(self) -> Tensor:
        """[B + 1], rows of request b are row_start[b] : row_start[b + 1]."""

    @property
    def prefix_length(self) -> Tensor:
        """[B], committed KV indices, visible to every row."""

    @property
    def window_offset(self) -> Tensor:
        """[B], window index of the request's first row."""

    @property
    def page_table(self) -> Tensor:
        """[B, P], the pool's page for each of the request's pages."""

    @property
    def window_mask(self) -> Tensor | None:
        """[R] int64, bit j: window index j is visible; None: causal."""


def kv_slots(page_table: Tensor, request: Tensor, index: Tensor, page_size: int) -> Tensor:
    """Pool slots of KV `index` of `request`, two tensors of the same shape; int64."""
    request, index = request.long(), index.long()
    return page_table[request, index // page_size].long() * page_size + index % page_size


def row_requests(rows: PagedRows) -> Tensor:
    """The request each row belongs to, [R] int64."""
    counts = rows.row_start.diff().long()
    return torch.repeat_interleave(torch.arange(counts.shape[0], device=counts.device), counts)


def row_indices(rows: PagedRows, request: Tensor) -> Tensor:
    """The KV index each row is written at, [R] int64: prefix + window offset + number within the request."""
    number = torch.arange(request.shape[0], device=request.device) - rows.row_start.long()[request]
    return (rows.prefix_length + rows.window_offset).long()[request] + number


def first_seen(rows: PagedRows, index: Tensor, request: Tensor, window: Window) -> Tensor:
    """The first KV index behind the sinks that each row, stored at `index`, sees with this window, [R] int64.

    A tree node's distance from the prefix is its number of ancestors, regardless of where it is stored.
    """
    if rows.window_mask is not None and window.of_prefix:
        index = rows.prefix_length.long()[request] - 1
    elif rows.window_mask is not None:
        bits = rows.window_mask.unsqueeze(1) >> torch.arange(64, device=index.device)
        index = rows.prefix_length.long()[request] + (bits & 1).sum(1) - 1
    return (index + 1 - window.size).clamp(min=0)
