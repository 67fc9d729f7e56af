"""The EAGLE-3 head as a drafter (arXiv 2503.01840), with prompt lookup merged into its trees.

The head carries per request, row by row with the batch,

    hidden, first level    its output at position L - 1: the state and the K best candidates for x[L + 1]
    head's KV              positions 0 .. L - 1, in pages that have the numbers of the target's

               draft window                                  after the round
    index      L ..              L + K ..                    L .. L + n
               level 1 (K)       level 2's best K            the n + 1 accepted positions, each with its next token

It doesn't run in plain rounds, nor over prompts where it won't be used at once. What it needs to catch up is kept for
the last C positions: their features and next tokens, position p in column p % C. A head that is further behind starts
anew at a page border, `head_start`, and its KV before that is never read again. That costs acceptance, so C is some
pages. A head's history may also begin behind pages that the prefix cache has without the head's entries.

    position        0 ........ head_start ........ L - pending ....... L - 1
    head's KV       (ignored)  | read ............ | missing, C at most ..|
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fledge.base.device import HostTable, to_device
from fledge.base.errors import EngineError
from fledge.draft.runner import DraftOutput, HeadRunner
from fledge.engine.batch import Member, RunningBatch
from fledge.engine.drafters.drafter import Candidates, Drafter, Prompts
from fledge.engine.drafters.growth import TreeGrowth
from fledge.engine.drafters.guided import guided
from fledge.engine.drafters.lookup import proposal
from fledge.engine.drafters.proposer import Proposers
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.rounds.tree import Accepted
from fledge.engine.sampling import draws
from fledge.engine.selection import SelectionRows
from fledge.native.abi import AHEAD
from fledge.target.batch import PADDING_PAGE, ForwardBatch


class HeadSizes(NamedTuple):
    """Sizes of a head's tensors."""

    rows: int  # most requests that run at once
    pages: int  # most pages one request can own
    pool: int  # pages of the KV pool
    topk: int  # K, first-level candidates kept
    features: int  # 3 * target hidden size
    pending: int  # C, latest positions kept for a head that falls behind
    last_position: int  # the largest position with a rotary embedding


class HeadState(NamedTuple):
    """Views of what is carried for the B running requests."""

    head_start: Tensor  # [B] int32, a multiple of the page size
    head_pages: Tensor  # [B, P] int32, the page table from head_start on
    first_token_ids: Tensor  # [B, K] int64, candidates for x[L + 1], best first
    first_log_probs: Tensor  # [B, K] float32
    hidden: Tensor  # [B, H], the head's hidden state at position L - 1
    recent_tokens: Tensor  # [B, C] int64, by position % C
    recent_features: Tensor  # [B, C, 3 * Ht]


class Eagle(Drafter):
    """A draft head over the engine's pool of pages."""

    name = "head"
    features = recordable = True

    def __init__(
        self,
        runner: HeadRunner,
        sizes: HeadSizes,
        selection: SelectionRows,
        dtype: torch.dtype,
        device: torch.device,
        proposers: Proposers | None = None,
    ) -> None:
        """`dtype` is the target's, of hidden states and features; `proposers`: what proposes beside the head."""
        self.proposers = proposers
        rows, kept = sizes.rows, sizes.pending
        self.runner, self.sizes, self.selection, self.device = runner, sizes, selection, device
        self.vocabulary, self.remembers = runner.config.draft_vocab_size, kept
        self.kv = runner.allocate_kv(sizes.pool)
        self._pages = HostTable(rows, sizes.pages, device, PADDING_PAGE)
        self._state = HeadState(
            head_start=torch.zeros(rows, dtype=torch.int32, device=device),
            head_pages=self._pages.tensor,
            first_token_ids=torch.zeros(rows, sizes.topk, dtype=torch.int64, device=device),
            first_log_probs=torch.zeros(rows, sizes.topk, dtype=torch.float32, device=device),
            hidden=torch.zeros(rows, runner.config.hidden_size, dtype=dtype, device=device),
            recent_tokens=torch.zeros(rows, kept, dtype=torch.int64, device=device),
            recent_features=torch.zeros(rows, kept, sizes.features, dtype=dtype, device=device),
        )
        self._views: dict[int, HeadState] = {}
        self._starts = [0] * rows
        # Lists: after a forward numpy's code is out of the caches, and a sum of two numbers takes 60 us.
        self.pending = [0] * rows  # however many
        self.restarted = [False] * rows  # rows whose head's KV has a gap before its head_start

    def view(self, size: int) -> HeadState:
        """State carried for the first `size` rows."""
        view = self._views.get(size)
        if view is None:
            view = self._views[size] = HeadState(*(tensor[:size] for tensor in self._state))
        return view

    def change_head(self, runner: HeadRunner) -> None:
        """Draft with another head of the same sizes.

        What the former head wrote of a running request stays: its next drafts are a mixture of the two, never wrong.
        """
        if runner.config != self.runner.config:
            raise EngineError(
                "the new head has other sizes than the one the engine was made with; start the engine with it instead"
            )
        self.runner = runner

    # A round

    def propose(self, batch: RunningBatch, plan: RoundPlan) -> Candidates:
        """Grow trees from the carried first level, level by level, with what prompt lookup proposes."""
        now, bound, state = batch.view(), plan.bound, self.view(batch.size)
        copied = None
        if bound.lookup:
            copied = proposal(batch, self.selection, plan, bound.lookup, self.proposers)
        growth = TreeGrowth(now.bonus[:, None], copied)
        if not bound.depth:
            return growth.candidates()
        topk, selection = bound.topk, self.selection.selection(bound.topk)
        guide = guided(self.selection.followers())
        if guide is not None:
            first = guide.first(state.first_token_ids, state.first_log_probs, topk)
        else:  # a copy: before the round is over, the next one's first level is written in its place
            first = state.first_token_ids[:, :topk].clone(), state.first_log_probs[:, :topk].clone()
        frontier = growth.begin(*first)
        hidden = state.hidden[:, None].expand(-1, topk, -1).reshape(-1, state.hidden.shape[1])  # [B * K, H]
        for level in range(bound.depth - 1):
            position = (now.length + level).clamp_(max=self.sizes.last_position).repeat_interleave(topk)
            rows = self._rows(batch, frontier.token_ids.reshape(-1), position, topk)
            rows = rows._replace(
                window_offset=torch.full_like(now.length, level * topk), window_mask=frontier.mask.reshape(-1)
            )
            drawn = None if selection is None else draws(selection.sampling, position + AHEAD)
            out = self.runner.forward(rows, self.kv, features=None, hidden=hidden, k=topk, draws=drawn)
            log_probs = out.log_probs if guide is None else guide.kept(out.token_ids, out.log_probs)
            frontier = growth.expand(frontier, out.token_ids, log_probs)
            if level + 2 < bound.depth:
                if guide is not None:
                    guide.descend(frontier.above, frontier.token_ids)
                hidden = out.hidden.index_select(0, frontier.above)
        return growth.candidates()

    def follow(self, batch: RunningBatch, accepted: Accepted, features: Tensor | None) -> None:
        """Run over the accepted paths: position p takes feature g[p] and token x[p + 1], which the node chose."""
        now, width = batch.view(), accepted.path.shape[1]
        positions = (now.length[:, None] + torch.arange(width, device=self.device)).view(-1)
        last = torch.arange(batch.size, device=self.device) * width + accepted.emits - 1  # [B]
        rows = self._rows(batch, accepted.emitted.clamp(min=0).reshape(-1), positions, width)
        rows = rows._replace(logit_rows=last.to(torch.int32))
        selection = self.selection.selection(1)
        drawn = (
            None if selection is None else draws(selection.sampling, positions.index_select(0, last) + AHEAD)
        )
        out = self.runner.forward(
            rows, self.kv, features=features, hidden=None, k=self.sizes.topk, draws=drawn
        )
        state = self.view(batch.size)
        state.first_token_ids.copy_(out.token_ids)
        state.first_log_probs.copy_(out.log_probs)
        state.hidden.copy_(out.hidden)

    def rest(self, batch: RunningBatch, tokens: Tensor, features: Tensor | None) -> None:
        """Keep what a round passed, to catch up on it."""
        if features is None or not self.sizes.pending:
            return
        state, row = self.view(batch.size), torch.arange(batch.size, device=self.device)
        column = batch.view().length % self.sizes.pending
        state.recent_tokens[row, column] = tokens
        state.recent_features[row, column] = features

    def fell_behind(self, counts: Sequence[int]) -> None:
        """So many more positions of each request are pending."""
        for row, count in enumerate(counts):
            self.pending[row] += count

    def behind(self, size: int) -> tuple[list[int], list[bool]]:
        """See `Drafter`."""
        return self.pending[:size], self.restarted[:size]

    def catch_up(self, batch: RunningBatch) -> None:
        """Run over the positions that were left out. A head too far behind restarts here."""
        size = batch.size
        if not any(self.pending[:size]):
            return
        pending = np.array(self.pending[:size])
        numbers = pending.nonzero()[0]
        now, state, kept = batch.view(), self.view(size), self.sizes.pending
        counts = pending[numbers]
        too_far = counts > kept
        if too_far.any():
            counts = self._start_anew(now.length, numbers, counts, too_far)
        begins = np.concatenate(([0], counts.cumsum()))
        # Of each row, how far before the end of its request it is: the host may not know where that is.
        before = (np.repeat(begins[1:], counts) - np.arange(begins[-1])).astype(np.int32)
        index, source, back, all_back, row_start = to_device(
            self.device,
            numbers,
            np.repeat(numbers, counts),
            before,
            counts.astype(np.int32),
            begins.astype(np.int32),
        )
        position = now.length.index_select(0, source) - back
        column = (position % kept).long()
        start = now.length.index_select(0, index) - all_back
        rows = ForwardBatch(
            token_ids=state.recent_tokens[source, column].to(torch.int32),
            positions=position.clamp(max=self.sizes.last_position),
            row_start=row_start,
            prefix_length=start - state.head_start.index_select(0, index),
            window_offset=torch.zeros_like(start),
            page_table=state.head_pages.index_select(0, index),
            logit_rows=row_start[1:] - 1,
        )
        features = state.recent_features[source, column]
        out = self.runner.forward(rows, self.kv, features=features, hidden=None, k=self.sizes.topk)
        self._carry(numbers.tolist(), out)

    def _start_anew(
        self, length: Tensor, numbers: np.ndarray, counts: np.ndarray, too_far: np.ndarray
    ) -> np.ndarray:
        """Restart the heads of those rows `numbers` that are too far behind; return the positions each reads now.

        A beginning at a page border depends on the length, which is read here: the only time that a round waits for the
        device, at most once for as many plain rounds as positions are kept.
        """
        kept, page = self.sizes.pending, self.runner.page_size
        counts, lengths = counts.copy(), length.tolist()
        for place in too_far.nonzero()[0]:
            row = int(numbers[place])
            start = -(-(lengths[row] - kept) // page) * page
            self._restart(row, start, self._pages.read(row))
            counts[place] = lengths[row] - start
        return counts

    # Prompts

    def prefill(self, prompts: Prompts) -> DraftOutput:
        """The head over the same positions, each with the token that follows it; one proposal row per chunk."""
        rows = prompts.rows
        if any(prompts.starts):  # page borders, at which some heads' KV begins
            (before,) = to_device(self.device, np.array(prompts.starts, np.int32))
            column = torch.arange(rows.page_table.shape[1], device=self.device)
            column = column + before[:, None] // self.runner.page_size
            rows = rows._replace(
                prefix_length=rows.prefix_length - before,
                page_table=rows.page_table.gather(1, column.clamp_(max=rows.page_table.shape[1] - 1)),
            )
        rows = rows._replace(token_ids=prompts.following.to(torch.int32), logit_rows=rows.row_start[1:] - 1)
        return self.runner.forward(rows, self.kv, features=prompts.features, hidden=None, k=self.sizes.topk)

    def join(self, prompts: Prompts, chunks: Sequence[int], first: int, read: object) -> None:
        """Carry what the head made of the prompts' ends, or keep these to catch up on."""
        if isinstance(read, DraftOutput):
            (picked,) = to_device(self.device, np.array(chunks))
            out = DraftOutput(*(part.index_select(0, picked) for part in read))
            self._carry(range(first, first + len(chunks)), out)
        elif prompts.features is not None:
            ends = np.cumsum([0, *prompts.sizes])
            for row, chunk in enumerate(chunks, start=first):
                own = slice(ends[chunk], ends[chunk + 1])
                self._start_behind(row, prompts.stops[chunk], prompts.following[own], prompts.features[own])

    def _start_behind(self, row: int, length: int, token_ids: Tensor, features: Tensor) -> None:
        """Keep the next tokens [R] and features of a prompt's last R positions, which the head didn't run over."""
        kept = min(len(token_ids), self.sizes.pending)
        column = torch.arange(length - kept, length, device=self.device) % max(self.sizes.pending, 1)
        self._state.recent_tokens[row, column] = token_ids[len(token_ids) - kept :]
        self._state.recent_features[row, column] = features[len(token_ids) - kept :]
        self.pending[row] = len(token_ids)

    # Rows

    def append(self, row: int, request: Member, pages: Sequence[int], bonus: Tensor) -> None:
        """A request gets a row; its head's KV may begin after the first page."""
        self.pending[row] = self._starts[row] = 0
        self._restart(row, request.draft_start, pages)
        self.restarted[row] = request.draft_start > 0

    def remove(self, row: int, last: int) -> None:
        """Row `last` moves to row `row`."""
        if row == last:
            return
        # What is kept to catch up on is a megabyte, and rarely needed.
        for tensor in self._state[: None if self.pending[last] else -2]:
            if tensor is not self._state.head_pages:
                tensor[row] = tensor[last]
        self._pages.copy(last, over=row)
        self.pending[row], self.restarted[row] = self.pending[last], self.restarted[last]
        self._starts[row] = self._starts[last]

    def clear(self) -> None:
        """Free all rows."""
        self.pending[:] = [0] * len(self.pending)

    def enter_pages(self, row: int, start: int, pages: Sequence[int]) -> None:
        """Store more pages of a request."""
        self._pages.write(row, start - self._starts[row] // self.runner.page_size, pages)

    def settle(self, requests: int, rows: int) -> None:
        """Padding has no pages of its own."""
        if rows > requests:
            self._state.head_start[requests:rows].zero_()
            self._state.head_pages[requests:rows].fill_(PADDING_PAGE)

    def _restart(self, row: int, start: int, pages: Sequence[int]) -> None:
        """Restart the head of a row at this position, a page border; `pages` begin at the former one."""
        skipped = start // self.runner.page_size
        self._pages.fill(row, pages[skipped - self._starts[row] // self.runner.page_size :])
        self._starts[row], self.restarted[row] = start, True
        self._state.head_start[row].fill_(start)

    def _carry(self, rows: Sequence[int], out: DraftOutput) -> None:
        """The head's newest output for these rows, which have nothing pending now."""
        (index,) = to_device(self.device, np.array(rows))
        self._state.first_token_ids[index] = out.token_ids
        self._state.first_log_probs[index] = out.log_probs
        self._state.hidden[index] = out.hidden.to(self._state.hidden.dtype)
        for row in rows:
            self.pending[row] = 0

    def _rows(self, batch: RunningBatch, token_ids: Tensor, positions: Tensor, width: int) -> ForwardBatch:
        """`width` rows for each request, in its window."""
        now, state = batch.view(), self.view(batch.size)
        starts = torch.arange(batch.size + 1, dtype=torch.int32, device=self.device) * width
        return ForwardBatch(
            token_ids=token_ids.to(torch.int32),
            positions=positions.clamp(max=self.sizes.last_position),
            row_start=starts,
            prefix_length=now.length - state.head_start,
            window_offset=torch.zeros_like(now.length),
            page_table=state.head_pages,
        )
