"""The serving loop: requests of token ids in, tokens out, one step at a time.

    step():  launch a prefill, if prompts wait
             choose a plan and launch a round of the running requests
             take the results of all that is in flight; with overlap, of all but the newest

Results of prefills and rounds come back in order, with overlap one round late (`flight.py`).
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from fledge.base.errors import EngineError
from fledge.draft.runner import HeadRunner
from fledge.engine.build import EngineParts
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.flight import torch_alone
from fledge.engine.params import check_request
from fledge.engine.phases import PhaseSeconds
from fledge.engine.planner import FinishedRound, Kind, RoundPlan
from fledge.engine.prefill import Prefill, PrefillChunk, PrefillResult, record_prompts
from fledge.engine.record import joined
from fledge.engine.request import Emitted, Request, StepResult, TreeTrace, sources_of, traces_of
from fledge.engine.rounds.result import RoundResult
from fledge.engine.shapes import PLAIN
from fledge.engine.stats import Counts, EngineStats
from fledge.native.abi import MOST_NODES


class EngineCore:
    """Everything about serving except text. One thread at a time is inside; others wait."""

    def __init__(self, parts: EngineParts, decode_text: Callable[[Request], str]) -> None:
        self._rounds, self._target, self._batch = parts.rounds, parts.target, parts.batch
        self._proposers, self._sources = parts.proposers, parts.sources
        self._drafter, self._flight, self._clock = parts.drafter, parts.flight, parts.clock
        self._scheduler, self._planner, self._pool = parts.scheduler, parts.planner, parts.pool
        self._own_kernels, self._max_context = parts.own_kernels, parts.max_context
        self._recorder = parts.recorder
        self._decode_text = decode_text
        self._plain = RoundPlan(PLAIN)
        self._requests: dict[int, Request] = {}
        self._ids = itertools.count()
        self._earlier = 0.0, 0.0  # the flight's `exposed` and `hidden` seconds when statistics began
        self._counts = Counts()
        self._results: list[StepResult] = []  # of the present step
        self._stepper = 0  # the thread that is inside a step; 0: none
        self._left: deque[int] = deque()  # requests to drop when the step ends
        self._failure: BaseException | None = None  # what a step failed with
        self._failed_sinks: dict[int, Exception] = {}  # by request, until `tell_failed_sink`
        self._lock = threading.RLock()  # held by a step
        self._queue_lock = threading.RLock()  # held while the queue of waiting requests changes from outside

    @property
    def speculative(self) -> bool:
        """True with a drafter."""
        return self._drafter is not None

    @property
    def busy(self) -> bool:
        """True while a request isn't done, or a sink's failure hasn't been reported."""
        return self._scheduler.busy or bool(self._failed_sinks)

    def submit(self, request: Request) -> int:
        """Queue a request; returns its id. Its sink gets each of its results from within the step that made it."""
        vocabulary = self._target.decoder.config.vocab_size
        check_request(request.prompt_ids, request.params, vocabulary, self._max_context)
        request.speculate = request.speculate and self.speculative
        with self._queue_lock:  # not the step's lock: a request may arrive while a round runs
            request.id = next(self._ids)
            self._requests[request.id] = request
            self._scheduler.waiting.append(request)
        return request.id

    def cancel(self, request_id: int) -> None:
        """Drop a request at once and free all it holds; nothing happens if it is done already."""
        with self._lock, self._queue_lock, self._on_device():
            self._failed_sinks.pop(request_id, None)
            request = self._requests.pop(request_id, None)
            if request is not None and self._failure is None:
                self._scheduler.remove(request)
            if self._failure is not None and not self._requests:
                self.reset()
            if not self._scheduler.busy:  # what is in flight would keep the engine, and its KV, alive
                self._flight.clear()

    def leave(self, request_id: int) -> None:
        """`cancel` for the end of a stream, which Python may bring about anywhere as it collects what was abandoned.

        In the middle of a step that must wait until the step ends.
        """
        if self._stepper == threading.get_ident():
            self._left.append(request_id)
        else:
            self.cancel(request_id)

    def holds(self, request_id: int) -> bool:
        """True while the request is neither done nor dropped. Between steps; waits for one that is running."""
        with self._lock:
            return request_id in self._requests

    def reset(self) -> None:
        """Drop every request, whatever state a failed step left it in; all pages are free again."""
        with self._lock, self._queue_lock, self._on_device():
            self._flight.finish()
            self._requests.clear()
            self._failed_sinks.clear()
            self._scheduler.reset()
            self._failure = None

    def tell_failed_sink(self) -> None:
        """Raise EngineError for a request that was dropped because its sink raised; once for each."""
        with self._lock:
            if self._failed_sinks:
                request_id = next(iter(self._failed_sinks))
                failure = self._failed_sinks.pop(request_id)
                raise EngineError(
                    f"request {request_id} was dropped: its sink raised {failure!r}; mend the sink, and send it again"
                ) from failure

    def step(self, *, unless: Callable[[], bool] | None = None) -> list[StepResult]:
        """Launch one prefill forward if prompts are waiting, then one round; returns what came in for each request.

        `unless` is checked under the lock; if true, the step is skipped.
        """
        if self._recorder is not None and not self._stepper:
            self._recorder.before_step()
        with self._lock, self._on_device(), torch_alone(self._own_kernels):
            if self._stepper:  # its round's other requests would get their next tokens before this round's
                raise EngineError(
                    "a sink can't serve the engine that is serving it; submit the request, and let the step go on"
                )
            if unless is not None and unless():
                return []
            if self._failure is not None:
                raise EngineError(
                    "an earlier step failed, and its requests can't go on; cancel them, or reset the engine"
                ) from self._failure
            self._stepper = threading.get_ident()
            try:
                return self._step()
            except BaseException as failure:
                self._failure = failure
                raise
            finally:
                while self._left:
                    self.cancel(self._left.popleft())
                self._stepper = 0

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Context in which work put on the device runs after earlier work."""
        with torch.inference_mode(), self._flight.on_device():
            yield

    def _step(self) -> list[StepResult]:
        flight = self._flight
        self._results = []
        with flight.step():
            launched = self._prefill()
            launched |= self._decode()
            flight.take(keep=flight.ahead if launched else 0)
        if not self._scheduler.busy:
            flight.clear()  # at most the extra round of requests that are done
            self._scheduler.check()
        elif not flight:
            flight.settle()
        return self._results

    def check(self) -> None:
        """Raise EngineError unless every page of the KV pool is accounted for."""
        with self._lock, self._queue_lock:
            self._scheduler.check()

    def restart_stats(self) -> None:
        """Count from here on, of an idle engine; what it has learnt and cached stays."""
        with self._lock, self._queue_lock:
            self._counts, self._earlier = Counts(), (self._flight.exposed, self._flight.hidden)
            self._scheduler.preemptions = self._scheduler.hit_tokens = self._pool.evictions = 0
            self._clock.restart()

    def change_head(self, runner: HeadRunner) -> None:
        """Draft with another head of the same sizes from the next round on; no request notices."""
        with self._lock, self._queue_lock, self._on_device():
            if not isinstance(self._drafter, Eagle):
                raise EngineError("this engine has no draft head to change; give it one when it is made")
            self._drafter.change_head(runner)
            self._scheduler.forget_heads()
            self._planner.forget_head()

    def stats(self) -> EngineStats:
        """Counters and times since the engine started."""
        pool, scheduler, counts = self._pool, self._scheduler, self._counts
        return EngineStats(
            rounds=counts.rounds,
            request_rounds=counts.request_rounds,
            round_tokens=counts.round_tokens,
            prompt_tokens=counts.prompt_tokens,
            preemptions=scheduler.preemptions,
            hit_tokens=scheduler.hit_tokens,
            evictions=pool.evictions,
            pages=pool.pages - 1,
            pages_in_use=pool.pages - 1 - pool.free_pages,
            pages_cached=pool.idle_pages,
            drafts=counts.drafts,
            draft_tokens=counts.draft_tokens,
            accepted_by_depth=list(counts.accepted_by_depth),
            accepted_by_source=dict(counts.accepted_by_source),
            running=len(scheduler.prefilling) + len(scheduler.running) + len(scheduler.leaving),
            waiting=len(scheduler.waiting),
            kv_usage=1 - pool.free_pages / (pool.pages - 1),
            phases=self._phases(),
            shapes=counts.shapes_used(),
            proposers=self._proposers.stats(self._sources) if self._proposers else {},
        )

    def _phases(self) -> PhaseSeconds:
        exposed, hidden = self._earlier
        flight = self._flight
        return replace(self._clock.read(), host=flight.exposed - exposed, hidden=flight.hidden - hidden)

    def _prefill(self) -> bool:
        """Launch a prefill forward, if prompts are waiting; requests whose prompts are done join the batch."""
        chunks = self._scheduler.schedule_prefill()
        if not chunks:
            return False
        # The drafter reads prompts of requests that speculate. Where all prompts end with these chunks and speculation
        # doesn't pay now, it catches up on the ends later, if it is used at all.
        follow = any(chunk.request.speculate for chunk in chunks)
        finishing = [chunk.request for chunk in chunks if chunk.finishes]
        company = len(self._scheduler.running) + len(finishing)
        behind = follow and len(finishing) == len(chunks) and not self._planner.pays(company)
        head = follow and not behind
        drafter = self._drafter if follow else None
        records = self._recorder is not None
        run = Prefill(self._target, self._batch, drafter, chunks, self._clock, records=records)
        for chunk in chunks:
            self._compose_chunk(chunk, head=head)
        self._flight.launch(run.target, partial(self._first_tokens, chunks))
        pages = self._joining(chunks)
        if head or pages:
            self._flight.launch(partial(run.join, pages, read=head), lambda nothing, seconds: None)
        return True

    def _compose_chunk(self, chunk: PrefillChunk, *, head: bool) -> None:
        request = chunk.request
        if request.phases_at_start is None:
            request.phases_at_start = self._phases()
        request.prefilled = chunk.stop
        self._counts.prompt_tokens += chunk.stop - chunk.start
        self._scheduler.offer_prefix(chunk, read=head)
        if chunk.finishes:
            request.take_off(1, 1)

    def _joining(self, chunks: Sequence[PrefillChunk]) -> dict[int, tuple[int, ...]]:
        """Pages of the requests whose prompts are done and that need rounds, by chunk; they start to run."""
        pages: dict[int, tuple[int, ...]] = {}
        for number, request in [(n, chunk.request) for n, chunk in enumerate(chunks) if chunk.finishes]:
            if request.id not in self._requests:
                continue
            if request.ends_in_flight:
                self._scheduler.retire(request)
                continue
            self._scheduler.start_running(request)
            pages[number] = tuple(request.pages)
        return pages

    def _first_tokens(self, chunks: Sequence[PrefillChunk], first: PrefillResult, seconds: float) -> None:
        """Deliver what a prefill yielded."""
        if first.features is not None:
            record_prompts(chunks, first.features)
        finishing = [chunk.request for chunk in chunks if chunk.finishes]
        tokens = first.chosen.tolist() if first.chosen is not None else []
        logprobs = first.logprobs.read([[token] for token in tokens]) if first.logprobs else {}
        for number, (request, token) in enumerate(zip(finishing, tokens, strict=True)):
            request.land(1, 1)
            if request.id in self._requests:
                self._deliver(request, request.emit([token], [0], logprobs.get(number)))

    def _decode(self) -> bool:
        """Launch a round of the running requests, if there are any."""
        scheduler = self._scheduler
        if not scheduler.schedule_decode(preempt=False):
            # Results in flight may make room, and have to be known before anyone is preempted.
            self._flight.take(0)
            scheduler.schedule_decode(preempt=True)
        for request in [one for one in scheduler.running if one.ends_in_flight]:
            scheduler.retire(request)
        running = list(scheduler.running)
        if not running:
            return False
        plan = self._plain
        if any(request.speculate for request in running):
            with self._flight.planning():
                plan = self._planner.choose(len(running), behind=partial(self._behind, running))
        max_tokens = plan.bound.reach + 1
        for request in running:
            request.take_off(1, max_tokens)
        rows = self._batch.speculating().rows
        self._flight.launch(
            partial(self._rounds.decode, plan), partial(self._round_done, running, plan, rows)
        )
        return True

    def _behind(self, running: Sequence[Request]) -> int:
        """Positions the drafter would have to catch up on, as far as the host knows."""
        limit = self._drafter.remembers if self._drafter is not None else 0
        pending = [request.draft.pending for request in running if request.speculate]
        return sum(pending if limit is None else [min(count, limit) for count in pending])

    def _round_done(
        self,
        running: Sequence[Request],
        plan: RoundPlan,
        speculating: list[int] | None,
        result: RoundResult,
        seconds: float,
    ) -> None:
        """Deliver a round's results, and learn from them. `speculating`: rows of those that do; None: all."""
        rows = result.emitted.tolist()  # per request: how many tokens it emits, then the tokens
        logprobs = result.logprobs.read([row[1:] for row in rows]) if result.logprobs else {}
        drafted, counts, max_tokens = result.drafted, self._counts, plan.bound.reach + 1
        drafts = plan.kind is not Kind.PLAIN
        traced = drafts and any(request.trace for request in running)
        helped = joined(drafted, len(rows)) if any(request.tape for request in running) else []
        traces = traces_of(running, drafted.tree, result.path, rows, self._sources) if traced else {}
        sources = sources_of(result, rows, self._sources)
        sizes = drafted.sizes if drafts else [0] * len(rows)
        depths, proposed = [], 0  # accepted and proposed, of the trees of requests that are still there
        counts.rounds += 1
        for number, (request, (count, *tokens)) in enumerate(zip(running, rows, strict=True)):
            request.land(1, max_tokens)
            if request.id not in self._requests:  # ended in the round before, or cancelled meanwhile
                continue
            request.draft.land(result.pending[number], restarted=result.restarted[number])
            speculated = request.speculate and sizes[number] > 0
            if request.tape is not None and result.states is not None:
                request.tape.decoded(result.states[number, :count])
                if speculated and not helped[number]:
                    request.tape.drafted(count - 1)
            if speculated:
                depths.append(count - 1)
                proposed += sizes[number]
                counts.accepted_by_source.update(sources[number])
            emitted = request.emit(tokens[:count], _ORIGINS[count], logprobs.get(number), sources[number])
            request.count_round(emitted.origins, drafted=speculated)
            counts.request_rounds += 1
            counts.round_tokens += len(emitted.token_ids)
            self._deliver(request, emitted, traces.get(request.id))
        if drafts:
            counts.count_drafts(drafted.shape, depths, proposed)
        accepted = [row[0] - 1 for row, request in zip(rows, running, strict=True) if request.speculate]
        exposed = self._flight.exposed - self._flight.planned
        done = FinishedRound(plan, drafted, speculating, rows, accepted, seconds, result.catch_up, exposed)
        counts.count_shape(drafted.shape, len(running), done.tokens, seconds - result.catch_up)
        if accepted:
            with self._flight.planning():
                self._planner.learn(done)
        if self._proposers is not None and drafted.proposal is not None:
            self._proposers.observe(drafted.proposal, rows)

    def _deliver(self, request: Request, emitted: Emitted, tree: TreeTrace | None = None) -> None:
        completion = None
        if request.finish_reason:
            self._requests.pop(request.id, None)
            watch = request.watch
            text = self._decode_text(request) if watch is None else watch.text
            completion = request.complete(text, self._phases())
        result = StepResult(
            request.id, emitted.token_ids, emitted.origins, completion, emitted.logprobs, emitted.text, tree,
            emitted.sources,
        )  # fmt: skip
        self._results.append(result)
        if request.finish_reason:
            if request.tape is not None and self._recorder is not None:
                self._recorder.finished(request.tape, request.context(0, request.length))
            self._scheduler.remove(request)
        if request.sink is not None:
            try:
                request.sink(result)
            except Exception as failure:
                self.cancel(request.id)
                self._failed_sinks[request.id] = failure


# By how many tokens a request emits in a round: their origins, accepted drafts by depth, then the bonus token.
_ORIGINS = [[*range(1, count), 0] for count in range(MOST_NODES + 1)]
