"""The engine's own thread: everything that touches the engine happens there, between or within its steps.

event loop      submit(jobs) --> fair queue --.         cancel(job) --> list --.
                                               |                                |
engine thread   loop:  process cancels;  fill the engine up to its batch;  step;  post the results
                                                                                        |
event loop      job.receive(result)  <------------ one call for a whole step -----------'
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import NamedTuple

from fledge.base.errors import EngineError
from fledge.engine import Engine, StepResult
from fledge.server import errors
from fledge.server.errors import ApiError
from fledge.server.fair_queue import FairQueue
from fledge.server.job import Job
from fledge.server.metrics import Metrics

logger = logging.getLogger("fledge.server")

_UNHEALTHY_FAULTS = 3  # faults in a row, without a successful step in between
_STUCK_STEP_S = 300.0  # seconds after which a step counts as stuck and the server as unhealthy
_DRAIN_AT_ONCE_S = 1e-3
_RETRY_AFTER_S = (1, 60)


class _Event(NamedTuple):
    job: Job
    what: StepResult | ApiError


class EngineWorker:
    """Runs an engine in a thread. All methods are for the event loop's thread."""

    def __init__(self, engine: Engine, *, max_queue: int, model: str) -> None:
        """`model`: its name in the metrics."""
        self.engine = engine
        self.metrics = Metrics(engine, model, lambda: self.waiting)
        self.draining = False
        self._max_queue = max_queue
        self._ahead = max(2, engine.max_batch // 8)  # requests held in the engine beyond a full batch
        self._lock = threading.Condition()  # guards the next four fields; the thread waits on it
        self._queue: FairQueue[Job] = FairQueue()
        self._cancelled: list[Job] = []
        self._flushes: list[Future[bool]] = []
        self._closing = False
        self._live: set[Job] = set()  # submitted, and neither finished nor cancelled; event loop only
        self._active: dict[int, Job] = {}  # by the engine's id; engine thread only
        self._faults = 0  # in a row
        self._step_started: float | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="fledge-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start serving; call it on the event loop that will submit."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def most_answers(self) -> int:
        """Limit of unfinished jobs: a full batch and a full queue."""
        return self.engine.max_batch + self._max_queue

    @property
    def waiting(self) -> int:
        """Number of jobs not yet in the engine."""
        return len(self._queue)

    @property
    def unfinished(self) -> int:
        """Number of jobs submitted and not finished."""
        return len(self._live)

    @property
    def problem(self) -> str | None:
        """Why this process should be replaced; None if healthy."""
        started = self._step_started
        if not self._thread.is_alive():
            return "the engine's thread has ended"
        if self._faults >= _UNHEALTHY_FAULTS:
            return f"the last {self._faults} steps of the engine failed"
        if started is not None and time.monotonic() - started > _STUCK_STEP_S:
            return f"a step of the engine has taken more than {_STUCK_STEP_S:g} s"
        return None

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all jobs or none; raises an ApiError if they are rejected."""
        if self.draining or not self._thread.is_alive():
            self.metrics.rejected.labels("draining").inc()
            raise errors.draining(_RETRY_AFTER_S[0])
        with self._lock:
            waiting = len(self._queue)
            if len(self._live) + len(jobs) > self.most_answers:
                self.metrics.rejected.labels("overloaded").inc()
                raise errors.overloaded(waiting, self._retry_after(waiting))
            for job in jobs:
                self._queue.push(job.client, job)
            self._lock.notify()
        self._live.update(jobs)
        self._idle.clear()

    def cancel(self, job: Job) -> None:
        """Drop a job in any state; no effect if it is done."""
        if job.done:
            return
        job.fail(ApiError(499, "the client disconnected", code="cancelled"))
        self._ended(job)
        with self._lock:
            if not self._queue.remove(job.client, job):
                self._cancelled.append(job)
                self._lock.notify()

    async def flush(self) -> bool:
        """Forget what the prefix cache holds; False, and no change, while answers are in progress."""
        if self._live or self.draining:
            return False
        flushed: Future[bool] = Future()
        with self._lock:
            self._flushes.append(flushed)
            self._lock.notify()
        return await asyncio.wrap_future(flushed)

    async def drain(self, seconds: float) -> int:
        """Accept no more jobs, wait for the others, fail what is left after `seconds`; returns how many failed."""
        self.draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        unfinished = list(self._live)
        with self._lock:
            self._queue.clear()
            self._cancelled += unfinished
            self._lock.notify()
        for job in unfinished:
            job.fail(errors.draining(_RETRY_AFTER_S[0]))
            self.metrics.ended("abort")
            self._ended(job)
        return len(unfinished)

    async def close(self) -> None:
        """Stop the thread; unfinished jobs fail."""
        await self.drain(_DRAIN_AT_ONCE_S)
        with self._lock:
            self._closing = True
            self._lock.notify()
        await asyncio.to_thread(self._thread.join)

    def _retry_after(self, waiting: int) -> int:
        """Seconds until the queue may have room, estimated from recent answers."""
        low, high = _RETRY_AFTER_S
        seconds = self.metrics.recent_e2e * waiting / max(self.engine.max_batch, 1) / 2
        return int(min(max(seconds, low), high))

    def _ended(self, job: Job) -> None:
        self._live.discard(job)
        if not self._live:
            self._idle.set()

    # The methods below run in the engine's thread.

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._closing or self._cancelled or self._queue or self._active or self._flushes):
                    self._lock.wait()
                cancelled, self._cancelled = self._cancelled, []
                flushes, self._flushes = self._flushes, []
                room = self.engine.max_batch + self._ahead - len(self._active)
                arrived = self._queue.take(max(room, 0))
                if self._closing and not (self._active or cancelled or flushes):
                    return
            try:
                self._drop(cancelled)
                self._flush(flushes)
                self._post([event for job in arrived if (event := self._enter(job)) is not None])
                if self._active:
                    self._step()
            except Exception:
                self._recover()

    def _enter(self, job: Job) -> _Event | None:
        """Submit a job to the engine; an event if it is rejected."""
        if job.done:
            return None
        try:
            job.request_id = self.engine.submit(
                job.prompt_ids, job.params, speculate=job.speculate, trace=job.trace, record=job.record
            )
        except EngineError as error:
            return _Event(job, errors.invalid(str(error)))
        except Exception:
            logger.exception("the engine couldn't take a request")
            return _Event(job, errors.engine_failed())
        job.entered = time.perf_counter()
        self._active[job.request_id] = job
        return None

    def _flush(self, requests: Sequence[Future[bool]]) -> None:
        if requests and not self._active:
            self.engine.reset()
        for request in requests:
            if request.set_running_or_notify_cancel():  # unless its client has disconnected
                request.set_result(not self._active)

    def _drop(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if job.request_id is not None and self._active.pop(job.request_id, None) is not None:
                self.engine.cancel(job.request_id)

    def _step(self) -> None:
        self._step_started = time.monotonic()
        try:
            results = self.engine.step()
            if self._active and not results and not self.engine.busy:
                raise EngineError("requests are lost: the engine is idle, but they aren't done")
        finally:
            self._step_started = None
        self._faults = 0
        events = []
        for result in results:
            job = self._active.get(result.request_id)
            if job is None:
                continue
            if result.completion is not None:
                del self._active[result.request_id]
            events.append(_Event(job, result))
        self._post(events)

    def _recover(self) -> None:
        """Recover from a failed step: fail its requests; the engine starts from scratch with the next ones."""
        self._faults += 1
        self.metrics.faults.inc()
        logger.exception("a step of the engine failed; its %d requests fail with it", len(self._active))
        failed, self._active = list(self._active.values()), {}
        try:
            self.engine.reset()
        except Exception:  # as after a GPU error: further steps fail, too, until /health reports it
            logger.exception("the engine couldn't be reset")
        self._post([_Event(job, errors.engine_failed()) for job in failed])

    def _post(self, events: list[_Event]) -> None:
        if events and self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed, so no one waits for the results
                self._loop.call_soon_threadsafe(self._deliver, events)

    # And this runs on the event loop again.

    def _deliver(self, events: list[_Event]) -> None:
        for job, what in events:
            if job not in self._live:
                continue
            if isinstance(what, ApiError):
                job.fail(what)
                self.metrics.ended("error")
            elif what.completion is not None and what.completion.finish_reason == "error":
                job.fail(errors.too_complex())
                self.metrics.ended("error")
            else:
                job.receive(what)
                self.metrics.progress(job, what)
            if job.done:
                self._ended(job)
