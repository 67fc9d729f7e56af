"""Which request does what in the next step: first come, first served; prefill, then decode.

    submit -> waiting -> prefilling -> running -> done
                 ^------- preempted ------'

`running` is in the order of the rows of `RunningBatch`: row b of every carried tensor belongs to `running[b]`.
"""

from __future__ import annotations

from collections import deque

from fledge.engine.carried import RunningBatch
from fledge.engine.pool import PagePool
from fledge.engine.prefill import PrefillChunk
from fledge.engine.request import Request

_NEWCOMERS_SHARE = 16  # this fraction of max_batch is company enough; below 32 nobody ever waits
_NEARLY_FULL = 0.75
_PATIENCE_ROUNDS = 6


class Scheduler:
    """Queues and pages. It never looks at a device value."""

    def __init__(
        self, pool: PagePool, batch: RunningBatch, *, max_batch: int, window: int, prefill_rows: int
    ) -> None:
        self.pool = pool
        self.batch = batch
        self.max_batch = max_batch
        self.window = window  # KV indices a round may write beyond the committed length
        self.prefill_rows = prefill_rows
        self.waiting: deque[Request] = deque()
        self.prefilling: list[Request] = []
        self.running: list[Request] = []
        self.preemptions = 0
        self._held = 0  # rounds newcomers have been waiting for company

    @property
    def busy(self) -> bool:
        """True while some request isn't done."""
        return bool(self.waiting or self.prefilling or self.running)

    def schedule_prefill(self) -> list[PrefillChunk]:
        """Admit what fits, then fill one forward's row budget with the oldest admitted prompts."""
        if self._hold_newcomers():
            return []
        while self.waiting and len(self.prefilling) + len(self.running) < self.max_batch:
            if not self._admit(self.waiting[0]):
                break
            self.prefilling.append(self.waiting.popleft())
        chunks = []
        budget = self.prefill_rows
        for request in self.prefilling:
            stop = min(request.prefill_length, request.prefilled + budget)
            if stop > request.prefilled:
                chunks.append(PrefillChunk(request, request.prefilled, stop))
                budget -= stop - request.prefilled
        return chunks

    def schedule_decode(self) -> list[Request]:
        """The running requests, each with room for one window; if the pool is full, the youngest make room."""
        short = [r for r in self.running if len(r.pages) * self.pool.page_size < r.length - 1 + self.window]
        for request in short:
            while request.row >= 0 and not self._reserve(request):
                self._preempt(max(self.prefilling + self.running, key=lambda other: other.id))
        return self.running

    def start_running(self, request: Request) -> None:
        """Move a request whose prompt is done to the running ones."""
        self.prefilling.remove(request)
        request.row = self.batch.append(request)
        self.running.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out, wherever it is, and free all it holds."""
        if request.row >= 0:
            moved = self.running.pop()
            self.batch.remove(request.row)
            if moved is not request:
                self.running[request.row] = moved
                moved.row = request.row
            request.row = -1
        elif request in self.prefilling:
            self.prefilling.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.pool.release(request.pages)

    def reset(self) -> None:
        """Forget all requests and free all pages, without trusting what is recorded of either."""
        self.waiting.clear()
        self.prefilling.clear()
        self.running.clear()
        self.batch.clear()
        self.pool.reset()

    def check(self) -> None:
        """Raise EngineError unless every page is accounted for."""
        self.pool.check(request.pages for request in (*self.prefilling, *self.running))

    def _hold_newcomers(self) -> bool:
        """True while a large, nearly full batch lets single newcomers wait for company.

        A prefill forward reads all weights, however short the prompt; replacing requests one by one would add such
        a forward to almost every round.
        """
        ready = min(len(self.waiting), self.max_batch - len(self.running))
        company = self.max_batch // _NEWCOMERS_SHARE
        full = len(self.running) >= _NEARLY_FULL * self.max_batch
        if self.prefilling or not full or not 0 < ready < company or self._held == _PATIENCE_ROUNDS:
            self._held = 0
            return False
        self._held += 1
        return True

    def _admit(self, request: Request) -> bool:
        """Reserve pages for a waiting request's prompt and window, if the running ones keep room to grow."""
        tokens = request.prefill_length + self.window
        spare = self.pool.pages_for(self.window) * (len(self.running) + len(self.prefilling))
        if self.pool.pages_for(tokens) + spare > self.pool.free_pages:
            return False
        return self.pool.reserve(request.pages, tokens)

    def _reserve(self, request: Request) -> bool:
        held = len(request.pages)
        if not self.pool.reserve(request.pages, request.length - 1 + self.window):
            return False
        self.batch.set_pages(request.row, held, request.pages)
        return True

    def _preempt(self, request: Request) -> None:
        """Send a request back to the front of the queue; its tokens stay, its KV is computed again later."""
        self.remove(request)
        request.restart()
        self.preemptions += 1
        self.waiting.appendleft(request)
