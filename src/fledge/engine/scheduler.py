"""Scheduling of requests for the next step: admitted in order of arrival; prefill, then decode.

    submit -> waiting -> prefilling -> running -> (leaving) -> done
                 ^------- preempted ------'

`running` is in the order of the rows of `RunningBatch`: row b of every carried tensor belongs to `running[b]`. What is
decided here reaches the batch in order, before the next round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

from fledge.engine.batch import RunningBatch
from fledge.engine.options import EngineOptions
from fledge.engine.pool import PagePool
from fledge.engine.prefill import PrefillChunk
from fledge.engine.prefix import Match, PrefixCache
from fledge.engine.request import Request

# A lone prefill is held until max_batch / 16 requests are ready; inactive for max_batch < 32.
_NEWCOMERS_SHARE = 16
_NEARLY_FULL = 0.75  # share of max_batch running from which a lone prefill is held
_SHORT = 0.25  # a prompt of at most this share of a forward's rows doesn't wait for a full forward
_NO_MATTER = 256  # tokens: long prompts are ordered by length in buckets of this size, then by age
_PATIENCE_ROUNDS = 6  # rounds for which a lone prefill is held at most
# Minimum tokens of a shared prefix, being written by another prompt, for which a new request waits: to run them again
# takes a CPU longer than the extra forward that the wait costs.
_WORTH_WAITING = 64

# (tokens of a prompt that the head hasn't seen, tokens to come at most, batch size) -> whether to run them again.
Rereads = Callable[[int, int, int], bool]


class Scheduler:
    """Queues and pages. It never looks at a device value."""

    def __init__(
        self,
        pool: PagePool,
        batch: RunningBatch,
        options: EngineOptions,
        *,
        window: int,
        ahead: int,
        prefix: PrefixCache | None,
        rereads: Rereads,
        forget: Callable[[Sequence[int]], None],
    ) -> None:
        """`forget`: clears pages before they get a new owner."""
        self.pool = pool
        self.batch = batch
        self.prefix = prefix
        self._rereads, self._forget = rereads, forget
        self.options = options
        self.window = window  # KV indices a round may write beyond the committed length
        self.ahead = ahead  # tokens by which that may be ahead of what the host knows
        self.waiting: deque[Request] = deque()
        self.prefilling: list[Request] = []
        self.running: list[Request] = []
        self.leaving: list[Request] = []  # their last tokens are in flight
        self.preemptions = 0
        self.hit_tokens = 0  # tokens that needn't be prefilled because the prefix cache had them
        self._overtaken = False  # the oldest prompt had no rows in the last forward
        self._held = 0  # rounds that a lone prefill has been delayed

    @property
    def busy(self) -> bool:
        """True while some request isn't done."""
        return bool(self.waiting or self.prefilling or self.running or self.leaving)

    def schedule_prefill(self) -> list[PrefillChunk]:
        """Admit what fits, then fill one forward's row budget."""
        if self._hold_newcomers():
            return []
        self._admit_waiting()
        rows = self.options.prefill_rows
        return self._share_rows(min(self.options.busy_prefill_rows, rows) if self.running else rows)

    def _share_rows(self, rows: int) -> list[PrefillChunk]:
        """One forward's chunks of the admitted prompts: the short ones first, then those that fit, then the long ones.

            rows  |########| long   |##| short   |########| long   |##| another short   |########| long ...

        Unless all fit, a forward holds prompts of one of these kinds: the short ones would wait for the others' rows.
        The oldest prompt has rows at least in every other forward, so that younger ones don't keep it waiting longer.
        """
        queue = [request for request in self.prefilling if _left(request)]
        if self.options.fair_prefill and not self._overtaken and sum(map(_left, queue)) > rows:
            queue.sort(key=lambda request: _rank(request, rows))
            first, _ = _rank(queue[0], rows)
            queue = [request for request in queue if _rank(request, rows)[0] == first]
        chunks: list[PrefillChunk] = []
        budget = rows
        for request in queue:
            if budget:
                stop = min(request.prefill_length, request.prefilled + budget)
                chunks.append(PrefillChunk(request, request.prefilled, stop, tuple(request.pages)))
                budget -= stop - request.prefilled
        self._overtaken = bool(chunks) and all(chunk.request is not self.prefilling[0] for chunk in chunks)
        return chunks

    def schedule_decode(self, *, preempt: bool) -> bool:
        """Give each running request room for one window; if the pool is full, the youngest make room.

        Without `preempt` none does: the answer is False if the pool is full. With it nothing may be in flight.
        """
        for request in [r for r in self.running if len(r.pages) * self.pool.page_size < self._needs(r)]:
            while request.row >= 0 and not self._reserve(request):
                if not preempt:
                    return False
                self._preempt(max(self.prefilling + self.running, key=lambda other: other.id))
        return True

    def start_running(self, request: Request) -> None:
        """Move a request whose prompt is done to the running ones; its row is appended when the prompt has run."""
        self.prefilling.remove(request)
        request.row = len(self.running)
        self.running.append(request)

    def retire(self, request: Request) -> None:
        """Take a request whose last token is in flight out of the batch; it keeps its pages until `remove`."""
        if request.row >= 0:
            self._leave_batch(request)
        else:
            self.prefilling.remove(request)
        self.leaving.append(request)

    def offer_prefix(self, chunk: PrefillChunk, *, read: bool) -> None:
        """Let others begin with what a prefilling request has written; `read`: its drafter has read it, too."""
        request = chunk.request
        request.draft.prefill(chunk.start, chunk.stop, read=read, speculate=request.speculate)
        if self.prefix is not None:
            self.prefix.insert(request, chunk.stop)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and free all it holds; the prefix cache keeps what is worth keeping.

        A round in flight may still write the request's window, but no one else's (see `flight.py`).
        """
        joined = request.row >= 0 or request in self.leaving
        if request.row >= 0:
            self._leave_batch(request)
        for queue in (self.leaving, self.prefilling, self.waiting):
            if request in queue:
                queue.remove(request)
        if request.prefilled == request.prefill_length:
            written = max(request.prefilled, request.length - 1)
            before = request.draft.written
            if joined and request.draft.end(written):
                # Pages may have been offered without what the drafter has written since.
                request.shared_pages = min(request.shared_pages, before // self.pool.page_size)
            if self.prefix is not None:
                self.prefix.insert(request, written)
        self.pool.release(request.pages)

    def reset(self) -> None:
        """Forget all requests and free all pages, even where the records of them are wrong."""
        self.waiting.clear()
        self.prefilling.clear()
        self.running.clear()
        self.leaving.clear()
        self.batch.clear()
        self.pool.reset()
        if self.prefix is not None:
            self.prefix.clear()

    def check(self) -> None:
        """Raise EngineError unless every page is accounted for."""
        self.pool.check(request.pages for request in (*self.prefilling, *self.running, *self.leaving))
        if self.prefix is not None:
            self.prefix.check()

    def forget_heads(self) -> None:
        """See `PrefixCache.forget_heads`."""
        if self.prefix is not None:
            self.prefix.forget_heads()

    def _hold_newcomers(self) -> bool:
        """True while a lone prefill is delayed, beside a large, nearly full batch, until more requests are waiting.

        A prefill forward reads all weights, however short the prompt; replacing requests one by one would add such
        a forward to almost every round.
        """
        ready = min(len(self.waiting), self.options.max_batch - len(self.running))
        company = self.options.max_batch // _NEWCOMERS_SHARE
        full = len(self.running) >= _NEARLY_FULL * self.options.max_batch
        if self.prefilling or not full or not 0 < ready < company or self._held == _PATIENCE_ROUNDS:
            self._held = 0
            return False
        self._held += 1
        return True

    def _admit_waiting(self) -> None:
        """Start waiting requests, oldest first, until the batch or the pool is full."""
        later: list[Request] = []
        filling = {key for request in self.prefilling for key in self._to_fill(request)}
        while self.waiting and len(self.prefilling) + len(self.running) + len(later) < self.options.max_batch:
            request = self.waiting[0]
            if filling and self._soon_shared(request, filling) * self.pool.page_size >= _WORTH_WAITING:
                later.append(self.waiting.popleft())
                continue
            if not self._admit(request):
                break
            self.prefilling.append(self.waiting.popleft())
            filling.update(self._to_fill(request))
        self.waiting.extendleft(reversed(later))

    def _admit(self, request: Request) -> bool:
        """Reserve pages for a waiting request's prompt and window, if the running ones keep room to grow.

        Pages the prefix cache has of it are shared instead; prefill starts behind them.
        """
        pool, tokens = self.pool, request.prefill_length + self.window + self.ahead
        found, with_head = self._match(request)
        spare = pool.pages_for(self.window + self.ahead) * (len(self.running) + len(self.prefilling))
        if pool.pages_for(tokens) - len(found) + spare > pool.free_pages - pool.idle(found):
            return False
        pool.share(request.pages, found)
        request.shared_pages = len(found)
        request.prefilled = request.prefix_tokens = len(found) * pool.page_size
        seen = with_head == len(found)
        request.draft.admit(request.prefix_tokens, seen=seen, speculate=request.speculate)
        if not request.preemptions:  # later it finds what it has written itself, too
            request.cached_tokens = request.prefix_tokens
        self.hit_tokens += request.prefix_tokens
        return self._add_pages(request, tokens)

    def _to_fill(self, request: Request) -> list[bytes]:
        """Keys of the pages that a request's prefill has yet to fill, and will then share (see `prefix.py`)."""
        return [] if self.prefix is None else self.prefix.keys(request)[request.shared_pages :]

    def _match(self, request: Request) -> Match:
        """The pages of the prefix cache that a request starts with.

        One that speculates leaves out those without the head's entries, where running them again pays.
        """
        if self.prefix is None or request.params.prompt_logprobs is not None:
            return Match([], 0)
        pages, with_head = self.prefix.match(request)
        unseen = (len(pages) - with_head) * self.pool.page_size
        if unseen and request.speculate:
            company = min(
                len(self.waiting) + len(self.prefilling) + len(self.running), self.options.max_batch
            )
            if self._rereads(unseen, request.longest - request.length, company):
                return Match(pages[:with_head], with_head)
        return Match(pages, with_head)

    def _soon_shared(self, request: Request, filling: set[bytes]) -> int:
        """Number of pages, right after those that a request starts with, that other prefills are `filling` now."""
        if self.prefix is None:
            return 0
        missing = self.prefix.keys(request)[len(self._match(request).pages) :]
        return sum(1 for _ in takewhile(filling.__contains__, missing))

    def _needs(self, request: Request) -> int:
        """KV indices the next round may use, whatever the work in flight emits."""
        return request.length - 1 + request.flying_most + self.window

    def _reserve(self, request: Request) -> bool:
        held = len(request.pages)
        if not self._add_pages(request, self._needs(request)):
            return False
        if len(request.pages) > held:
            self.batch.enter_pages(request.row, held, request.pages[held:])
        return True

    def _add_pages(self, request: Request, tokens: int) -> bool:
        """Allocate pages for `tokens` KV indices; False, and no change, if too few are free."""
        held = len(request.pages)
        if not self.pool.reserve(request.pages, tokens):
            return False
        if len(request.pages) > held:
            self._forget(request.pages[held:])
        return True

    def _leave_batch(self, request: Request) -> None:
        """Take a request out of the batch; the last row takes its place."""
        self.batch.remove(request.row)
        moved = self.running.pop()
        if moved is not request:
            self.running[request.row] = moved
            moved.row = request.row
        request.row = -1

    def _preempt(self, request: Request) -> None:
        """Send a request back to the front of the queue; its tokens stay, its KV is computed again later."""
        self.remove(request)
        request.restart()
        self.preemptions += 1
        self.waiting.appendleft(request)


def _left(request: Request) -> int:
    """Tokens that its prefill has yet to run."""
    return request.prefill_length - request.prefilled


def _rank(request: Request, rows: int) -> tuple[int, int]:
    """Sort key for forwards of `rows` rows: short prompts, then those that fit into one, then by length."""
    tokens = request.prefill_length - request.prefix_tokens
    if tokens <= rows:
        return int(tokens > rows * _SHORT), 0
    return 2, _left(request) // _NO_MATTER
