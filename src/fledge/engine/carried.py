"""What running requests carry from round to round: tensors on the device, one row per request.

The running requests are always the first B rows, so that a batch is a view of the tensors; when a request leaves, the
last row takes its place.

    row   length L   bonus x[L]   first-level top-k and hidden       (the head's output at position L - 1)
      0        37         912     [K] ids, [K] log probs, [H]
      1       112          44     ...

The target's KV holds indices 0 .. L-1. The head's may hold fewer: it doesn't run in rounds without it, nor over prompts
where it won't be used at once. What it needs to catch up is kept for the last C positions: their features and next
tokens, position p in column p % C. A head that is further behind than that starts anew at a page border, `head_start`,
and its KV before that is never read again. That costs acceptance, so C is some pages. A head's history may also begin
behind pages that the prefix cache has without the head's entries.

    position        0 ........ head_start ........ L - pending ....... L - 1
    head's KV       (ignored)  | read ............ | missing, C at most ..|
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.engine import native_tree
from fledge.engine.native_tree import Passed, RowCopier
from fledge.engine.pool import PADDING_PAGE
from fledge.engine.request import Request
from fledge.engine.selection import SelectionRows


class CarriedSizes(NamedTuple):
    """How large the carried tensors are."""

    rows: int  # most requests that run at once
    pages: int  # most pages one request can own
    topk: int  # K, first-level candidates kept; 0 without a head
    hidden: int  # H, the head's hidden size
    features: int  # 3 * target hidden size
    vocabulary: int  # V, the target's
    dtype: torch.dtype  # of hidden and features
    pending: int  # C, latest positions kept for a head that falls behind
    history: int = 0  # T, tokens of context and window that prompt lookup can see


class Carried(NamedTuple):
    """Views of the carried tensors for the B running requests."""

    length: Tensor  # [B] int32, L
    bonus: Tensor  # [B] int64, x[L]
    page_table: Tensor  # [B, P] int32
    head_start: Tensor  # [B] int32, a multiple of the page size
    head_pages: Tensor  # [B, P] int32, the page table from head_start on
    first_token_ids: Tensor  # [B, K] int64, candidates for x[L + 1], best first
    first_log_probs: Tensor  # [B, K] float32
    hidden: Tensor  # [B, H], the head's hidden state at position L - 1
    recent_tokens: Tensor  # [B, C] int64, by position % C
    recent_features: Tensor  # [B, C, 3 * Ht]
    history: Tensor  # [B, T] int32, x[0] .. x[L] and then anything; empty unless prompt lookup wants it
    # The last three fields are large and never gathered as a whole.


class Behind(NamedTuple):
    """The M requests whose head has fallen behind, and the R positions it has to catch up on, end to end."""

    numbers: list[int]  # [M], their rows
    carried: Carried  # what is carried for them
    row_start: Tensor  # [M + 1] int32, where each request's positions begin
    start: Tensor  # [M] int32, the first position of each
    positions: Tensor  # [R] int32
    tokens: Tensor  # [R] int64, each position's next token
    features: Tensor  # [R, 3 * Ht]


class Speculating(NamedTuple):
    """Which of the B running requests speculate."""

    some: bool
    mask: Tensor | None  # [B] bool; None: all do, or there are none
    rows: Tensor | None  # int64, their numbers, where there is a mask


class RunningBatch:
    """Rows of carried state, and what the host needs to know of them to launch a round.

    It belongs to the lane: all of it runs in the order of the lane's tasks (see `lane.py`). The host may be a round
    ahead, so of a request only what doesn't change is read here.
    """

    def __init__(self, sizes: CarriedSizes, page_size: int, device: torch.device) -> None:
        rows = sizes.rows
        self.sizes = sizes
        self._page_size = page_size
        self.device = device
        self.size = 0
        self._state = Carried(
            length=torch.zeros(rows, dtype=torch.int32, device=device),
            bonus=torch.zeros(rows, dtype=torch.int64, device=device),
            page_table=torch.full((rows, sizes.pages), PADDING_PAGE, dtype=torch.int32, device=device),
            head_start=torch.zeros(rows, dtype=torch.int32, device=device),
            head_pages=torch.full((rows, sizes.pages), PADDING_PAGE, dtype=torch.int32, device=device),
            first_token_ids=torch.zeros(rows, sizes.topk, dtype=torch.int64, device=device),
            first_log_probs=torch.zeros(rows, sizes.topk, dtype=torch.float32, device=device),
            hidden=torch.zeros(rows, sizes.hidden, dtype=sizes.dtype, device=device),
            recent_tokens=torch.zeros(rows, sizes.pending, dtype=torch.int64, device=device),
            recent_features=torch.zeros(
                rows, sizes.pending, sizes.features, dtype=sizes.dtype, device=device
            ),
            history=torch.zeros(rows, sizes.history, dtype=torch.int32, device=device),
        )
        self._views: dict[int, Carried] = {}
        self._rows = RowCopier((*self._state[:-3], self._state.history))
        self._recent = RowCopier((self._state.recent_tokens, self._state.recent_features))
        # Lists: after a forward numpy's code is out of the caches, and a sum of two numbers takes 60 us.
        self.pending = [0] * rows  # positions each row's head is behind, however many
        self.restarted = [False] * rows  # rows whose head's KV has a gap before its head_start
        self._speculates = [False] * rows
        self.selection = SelectionRows(rows, sizes.vocabulary, device)
        self._speculating: Speculating | None = None
        self._mask = torch.zeros(rows, dtype=torch.bool, device=device)

    def view(self) -> Carried:
        """The carried tensors of the running requests."""
        found = self._views.get(self.size)
        if found is None:
            found = self._views[self.size] = Carried(*(tensor[: self.size] for tensor in self._state))
        return found

    def append(self, request: Request, pages: Sequence[int], bonus: Tensor) -> None:
        """A row for a request whose prefill is done; `bonus` [] int64 is the token it yielded."""
        row = self.size
        self.size += 1
        self._state.length[row] = request.prefill_length
        self._state.bonus[row] = bonus
        self._state.page_table[row] = PADDING_PAGE
        self._state.head_pages[row] = PADDING_PAGE
        self._state.head_start[row] = 0
        self.page_entry(row, 0, pages)()
        self.restarted[row] = False
        if request.head_start:
            self._restart(row, request.head_start)
        if self.sizes.history:
            known = request.context(0, request.prefill_length)
            self._state.history[row, : len(known)] = torch.tensor(
                known, dtype=torch.int32, device=self.device
            )
            self._state.history[row, len(known)] = bonus
        self.pending[row] = 0
        self._speculates[row] = request.speculate
        self.selection.append(request, bonus)
        self._changed()

    def remove(self, row: int) -> None:
        """Take a row out; the last row moves into its place."""
        self.size -= 1
        last = self.size
        if row != last:
            self._rows.copy(last, row)
            if self.pending[last]:  # a megabyte that is rarely needed
                self._recent.copy(last, row)
            self.pending[row] = self.pending[last]
            self.restarted[row] = self.restarted[last]
            self._speculates[row] = self._speculates[last]
        self.selection.remove(row)
        self._changed()

    def clear(self) -> None:
        """Take all rows out."""
        self.size = 0
        self.pending = [0] * len(self.pending)
        self.selection.clear()
        self._changed()

    def page_entry(self, row: int, start: int, pages: Sequence[int]) -> Callable[[], None]:
        """A call that enters a request's pages from number `start` on into its page table, to be made on the lane.

        The host prepares it, which has the time: on a CPU all that runs right after a forward is slow.
        """
        state = self._state
        if native_tree.runs_here(state.length):
            tables = state.page_table, state.head_pages, state.head_start
            return native_tree.page_entry(pages[start:], tables, row, start, self._page_size)
        return partial(self._enter_pages, row, start, tuple(pages[start:]))

    def _enter_pages(self, row: int, start: int, pages: Sequence[int]) -> None:
        entries = torch.tensor(pages, dtype=torch.int32, device=self.device)
        self._state.page_table[row, start : start + len(pages)] = entries
        column = torch.arange(start, start + len(pages), device=self.device)
        column -= self._state.head_start[row] // self._page_size
        self._state.head_pages[row, column] = entries

    def set_first(
        self, rows: Sequence[int] | None, token_ids: Tensor, log_probs: Tensor, hidden: Tensor
    ) -> None:
        """Carry the head's newest output for `rows` (None: all running ones), which have nothing pending now."""
        now = self.view()
        if rows is None:
            now.first_token_ids.copy_(token_ids)
            now.first_log_probs.copy_(log_probs)
            now.hidden.copy_(hidden)
            self.pending[: self.size] = [0] * self.size
        else:
            index = torch.tensor(rows, device=self.device)
            now.first_token_ids[index] = token_ids
            now.first_log_probs[index] = log_probs
            now.hidden[index] = hidden.to(now.hidden.dtype)
            for row in rows:
                self.pending[row] = 0

    def one_behind(self) -> None:
        """A plain round passed: one more position of each is pending."""
        for number in range(self.size):
            self.pending[number] += 1

    def some_behind(self, counts: Sequence[int]) -> None:
        """A round without the head passed: so many more positions of each are pending."""
        for number, count in enumerate(counts):
            self.pending[number] += count

    def fall_behind(self, passed: Passed) -> None:
        """Keep what the head needs to catch up on the positions that a round passed without it."""
        now, size = self.view(), self.size
        if passed.source is None:
            self.one_behind()
        else:  # several each: on a CPU
            self.some_behind(passed.row_start.diff().tolist())
        if native_tree.runs_here(passed.tokens):
            native_tree.keep(passed, now.recent_tokens, now.recent_features)
            return
        row, features = torch.arange(size, device=self.device), passed.features
        if passed.source is not None:
            row = row.repeat_interleave(passed.row_start.diff())
            features = features.index_select(0, passed.source)
        column = passed.positions % self.sizes.pending
        now.recent_tokens[row, column] = passed.tokens
        now.recent_features[row, column] = features

    def advance(self, emits: Tensor, tokens: Tensor) -> None:
        """Take a round's tokens [B, W], x[L + 1] and so on, and go on behind the first `emits` [B] of them."""
        now = self.view()
        if native_tree.runs_here(tokens):
            native_tree.advance(emits, tokens, now.length, now.bonus, now.history)
            return
        if self.sizes.history:  # what wasn't emitted is overwritten later
            place = now.length[:, None] + torch.arange(1, tokens.shape[1] + 1, device=self.device)
            now.history.scatter_(1, place.clamp_(max=self.sizes.history - 1), tokens.to(torch.int32))
        now.length.add_(emits)
        now.bonus.copy_(tokens.gather(1, emits[:, None] - 1)[:, 0])

    def start_behind(self, row: int, token_ids: Tensor, features: Tensor) -> None:
        """Keep the next tokens [R] and features of a prompt's last R positions, which the head didn't run over."""
        count = len(token_ids)
        kept = min(count, self.sizes.pending)
        column = torch.arange(-kept, 0, device=self.device) + self._state.length[row]
        column %= self.sizes.pending
        self._state.recent_tokens[row, column] = token_ids[-kept:]
        self._state.recent_features[row, column] = features[-kept:]
        self.pending[row] = count

    def behind(self) -> Behind | None:
        """What heads need to catch up; None if nothing is pending. Heads too far behind start anew here."""
        if not any(self.pending[: self.size]):
            return None
        pending = np.array(self.pending[: self.size])
        numbers = pending.nonzero()[0]
        length = self.view().length.numpy(force=True)[numbers].astype(np.int64)
        kept, size = self.sizes.pending, self._page_size
        too_far = pending[numbers] > kept
        first = np.where(too_far, -(-(length - kept) // size) * size, length - pending[numbers])
        for row, start in zip(numbers[too_far].tolist(), first[too_far].tolist(), strict=True):
            self._restart(row, start)
        counts = length - first
        begins = np.concatenate(([0], counts.cumsum()))
        position = np.arange(begins[-1]) + np.repeat(first - begins[:-1], counts)
        rows = torch.from_numpy(numbers).to(self.device)
        source = torch.from_numpy(np.repeat(numbers, counts)).to(self.device)
        column = torch.from_numpy(position % kept).to(self.device)
        now = self.view()
        return Behind(
            numbers=numbers.tolist(),
            carried=Carried._make((*(tensor.index_select(0, rows) for tensor in now[:-3]), *now[-3:])),
            row_start=torch.from_numpy(begins.astype(np.int32)).to(self.device),
            start=torch.from_numpy(first.astype(np.int32)).to(self.device),
            positions=torch.from_numpy(position.astype(np.int32)).to(self.device),
            tokens=now.recent_tokens[source, column],
            features=now.recent_features[source, column],
        )

    def _restart(self, row: int, start: int) -> None:
        """Let the head of a row begin anew at this position, a page border."""
        now, page = self.view(), start // self._page_size
        self.restarted[row] = True
        now.head_start[row] = start
        now.head_pages[row] = PADDING_PAGE
        now.head_pages[row, : self.sizes.pages - page] = now.page_table[row, page:]

    def speculating(self) -> Speculating:
        """Which running requests speculate. The mask of a batch size lies where that of the last one did."""
        if self._speculating is None:
            flags = self._speculates[: self.size]
            mask = rows = None
            if not all(flags):
                mask = self._mask[: self.size].copy_(torch.tensor(flags))
                numbers = [row for row, flag in enumerate(flags) if flag]
                rows = torch.tensor(numbers, dtype=torch.int64, device=self.device)
            self._speculating = Speculating(any(flags), mask, rows)
        return self._speculating

    def _changed(self) -> None:
        self._speculating = None
