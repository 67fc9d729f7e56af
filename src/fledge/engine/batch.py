"""State that running requests carry from round to round: tensors on the device, one row per request.

The running requests are always the first B rows, so that a batch is a view of the tensors; when a request leaves, the
last row takes its place. What a drafter carries for them, and how they choose tokens, moves with the rows (`RowState`).

    row      length L   bonus x[L]   pages             history x[0] .. x[L]
      0         37         912       [ 7, 2, -, - ]    ...
      1        112          44       [ 9, 4, 1, 3 ]    ...

The target's KV holds indices 0 .. L-1. With overlap the host is a round ahead, so of a request only what doesn't change
is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fledge.base.device import HostTable, write
from fledge.target.batch import PADDING_PAGE

_SHORTEST_HISTORY = 256  # minimum tokens that lookup searches, so that there are few shapes


class Member(Protocol):
    """The fields of a request that a batch and its drafter read."""

    prompt_ids: list[int]
    params: Any  # SamplingParams, of which a round reads nothing
    seed: int
    prefill_length: int  # tokens of prompt and answer when its prefill started
    speculate: bool

    @property
    def draft_start(self) -> int:
        """Positions before it are none of the drafter's."""

    def context(self, start: int, stop: int) -> list[int]:
        """Tokens start .. stop - 1 of the request."""


class RowState(Protocol):
    """State that moves with the batch's rows, such as sampling parameters and a drafter's state."""

    def append(self, row: int, request: Any, pages: Sequence[int], bonus: Tensor) -> None:
        """A request gets a row; `bonus` [] int64 is the token that its prefill yielded."""

    def remove(self, row: int, last: int) -> None:
        """Row `row` is free; row `last`, the last one, moves there."""

    def clear(self) -> None:
        """Free all rows."""

    def enter_pages(self, row: int, start: int, pages: Sequence[int]) -> None:
        """A request gets more pages of the KV pool, from number `start` on."""


class BatchSizes(NamedTuple):
    """Sizes of the carried tensors."""

    rows: int  # most requests that run at once
    pages: int  # most pages one request can own
    history: int = 0  # T, tokens of context and window that drafters can see
    page_size: int = 0  # with it histories are looked at as far as pages reach, else all of them


class Carried(NamedTuple):
    """Views of the carried tensors for the B running requests."""

    length: Tensor  # [B] int32, L
    bonus: Tensor  # [B] int64, x[L]
    page_table: Tensor  # [B, P] int32
    history: Tensor  # [B, T] int32, x[0] .. x[L] and then anything; empty unless a drafter reads it


class Speculating(NamedTuple):
    """Speculating subset of the B running requests."""

    some: bool
    mask: Tensor | None  # [B] bool; None: all do, or there are none
    rows: list[int] | None  # their numbers, where there is a mask


class RunningBatch:
    """Rows of carried state, and what the host needs to know of them to launch a round."""

    def __init__(self, sizes: BatchSizes, device: torch.device, states: Sequence[RowState] = ()) -> None:
        rows = sizes.rows
        self.sizes, self.device, self._states = sizes, device, states
        self.size = 0
        self._pages = HostTable(rows, sizes.pages, device, PADDING_PAGE)
        self._state = Carried(
            length=torch.zeros(rows, dtype=torch.int32, device=device),
            bonus=torch.zeros(rows, dtype=torch.int64, device=device),
            page_table=self._pages.tensor,
            history=torch.zeros(rows, sizes.history, dtype=torch.int32, device=device),
        )
        self._views: dict[int, Carried] = {}
        self._owned = [0] * rows  # pages of each
        self._speculates = [False] * rows
        self._speculating: Speculating | None = None
        self._mask = torch.zeros(rows, dtype=torch.bool, device=device)

    def view(self) -> Carried:
        """The carried tensors of the running requests."""
        view = self._views.get(self.size)
        if view is None:
            view = self._views[self.size] = Carried(*(tensor[: self.size] for tensor in self._state))
        return view

    def history(self) -> Tensor:
        """[B, T'] int32, the histories as far as any running request has pages; T' is a power of two, or T."""
        whole, owned = self.view().history, max(self._owned[: self.size], default=0)
        reached = 1 << (owned * self.sizes.page_size - 1).bit_length()
        least = _SHORTEST_HISTORY if self.sizes.page_size else self.sizes.history
        return whole[:, : max(reached, least)]

    def append(self, request: Member, pages: Sequence[int], bonus: Tensor) -> None:
        """A row for a request whose prefill is done; `bonus` [] int64 is the token it yielded."""
        row = self.size
        self.size += 1
        state = self._state
        state.length[row].fill_(request.prefill_length)
        state.bonus[row] = bonus
        self._pages.fill(row, pages)
        self._owned[row] = len(pages)
        if self.sizes.history:
            context = request.context(0, request.prefill_length)
            write(state.history[row, : len(context)], np.array(context, np.int32))
            state.history[row, len(context)] = bonus
        self._speculates[row] = request.speculate
        self._speculating = None
        for one in self._states:
            one.append(row, request, pages, bonus)

    def remove(self, row: int) -> None:
        """Take a row out; the last row moves into its place."""
        self.size -= 1
        last = self.size
        if row != last:
            for tensor in (self._state.length, self._state.bonus, self._state.history):
                tensor[row] = tensor[last]
            self._pages.copy(last, over=row)
            self._owned[row] = self._owned[last]
            self._speculates[row] = self._speculates[last]
        self._speculating = None
        for one in self._states:
            one.remove(row, last)

    def clear(self) -> None:
        """Take all rows out."""
        self.size = 0
        self._speculating = None
        for one in self._states:
            one.clear()

    def enter_pages(self, row: int, start: int, pages: Sequence[int]) -> None:
        """A request's pages from number `start` on into its row."""
        self._pages.write(row, start, pages)
        self._owned[row] = start + len(pages)
        for one in self._states:
            one.enter_pages(row, start, pages)

    def advance(self, emits: Tensor, tokens: Tensor) -> None:
        """Take a round's tokens [B, W], x[L + 1] and so on, and continue after the first `emits` [B] of them."""
        now = self.view()
        if self.sizes.history:  # what wasn't emitted is overwritten later
            place = now.length[:, None] + torch.arange(1, tokens.shape[1] + 1, device=self.device)
            now.history.scatter_(1, place.clamp_(max=self.sizes.history - 1), tokens.to(torch.int32))
        now.length.add_(emits)
        now.bonus.copy_(tokens.gather(1, emits[:, None] - 1)[:, 0])

    def speculating(self) -> Speculating:
        """The running requests that speculate. The mask is stored at the same address for every batch size."""
        if self._speculating is None:
            flags = self._speculates[: self.size]
            mask = rows = None
            if not all(flags):
                mask = self._mask[: self.size]
                write(mask, np.array(flags))
                rows = [row for row, flag in enumerate(flags) if flag]
            self._speculating = Speculating(any(flags), mask, rows)
        return self._speculating
