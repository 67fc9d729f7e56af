"""Lanes and the future map: forwards run in order beside the host, and their results come back one round late.

What a round needs of the one before lives on the device, by row (`carried.py`). So the host can compose round t + 1
without knowing what round t brings; it reads round t's result while round t + 1 runs:

    host   compose t+1 | wait | t's result: stops, text, queues | compose t+2 | wait | t+1's result ...
    lane   ....... round t ...| round t+1 ...................................... | round t+2 ...........

A lane runs tasks, such as a prefill's forward or a round, one after the other. No locks are needed beyond that order:
the round in flight may still write to a row or page that the host has just taken from a request, but whoever gets the
row or page next uses it in a later task.

    InlineLane    at once                                   CPU: nothing overlaps, it never paid there
    StreamLane    launched at once on a stream of its own   CUDA: results come by pinned memory; an event says when

The `FutureMap` holds the tasks in flight, each with the function that takes its result. A request that ends in round t
is part of round t + 1 already; what that round brings for it is discarded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from fledge.base.errors import EngineError

T = TypeVar("T")


class Ran(NamedTuple, Generic[T]):
    """What a task returned."""

    value: T
    seconds: float  # that it took on the lane


class Entry(Generic[T]):
    """A task's result on its way to the host: produced once, taken once."""

    def __init__(self, wait: Callable[[], Ran[T]]) -> None:
        """`wait` returns when the task is done, with what it returned, or raises the task's exception."""
        self._wait: Callable[[], Ran[T]] | None = wait

    def take(self) -> Ran[T]:
        """Wait until the task is done; returns what it returned, or raises its exception."""
        if self._wait is None:
            raise EngineError("a round's result was taken twice; report this as a bug of the engine")
        wait, self._wait = self._wait, None
        return wait()


class Lane:
    """Runs tasks in the order they are put. After one has failed, those behind it are refused until `drain`."""

    def __init__(self) -> None:
        self.exposed = 0.0  # seconds the lane had nothing to do because the host was busy
        self._mark = time.perf_counter()  # when the lane last had something to do
        self._deferred: list[Callable[[], object]] = []
        self._failure: BaseException | None = None

    def defer(self, operation: Callable[[], object]) -> None:
        """Run a short operation without a result before the next task."""
        self._deferred.append(operation)

    def put(self, work: Callable[[], T]) -> Entry[T]:
        """Run `work` behind everything that was put before."""
        operations, self._deferred = self._deferred, []

        def guarded() -> Ran[T]:
            if self._failure is not None:
                raise EngineError(
                    "an earlier part of this step failed; see its error, then reset the engine"
                ) from self._failure
            try:
                return self._timed(operations, work)
            except BaseException as failure:
                self._failure = failure
                raise

        return self._start(guarded)

    def drain(self) -> None:
        """Wait for the task that is running, refuse those behind it, and start over."""
        self._failure = self._failure or EngineError("the engine was reset")
        self._deferred.clear()
        self._finish()
        self._failure = None

    def rest(self) -> None:
        """The engine was idle: the time up to now doesn't count as `exposed`."""
        self._mark = time.perf_counter()

    def settle(self) -> None:
        """Nothing is in flight: the time up to now counts as `exposed`."""
        now = time.perf_counter()
        self.exposed += max(now - self._mark, 0.0)
        self._mark = now

    def _timed(self, operations: list[Callable[[], object]], work: Callable[[], T]) -> Ran[T]:
        for operation in operations:
            operation()
        begin = time.perf_counter()
        self.exposed += max(begin - self._mark, 0.0)
        value = work()
        self._mark = time.perf_counter()
        return Ran(value, self._mark - begin)

    def _start(self, run: Callable[[], Ran[T]]) -> Entry[T]:
        raise NotImplementedError

    def _finish(self) -> None:
        """Return when nothing runs any more."""


class InlineLane(Lane):
    """Runs each task at once, in the caller's thread."""

    def _start(self, run: Callable[[], Ran[T]]) -> Entry[T]:
        return Entry(_done(run))


class StreamLane(Lane):
    """Launches tasks on a CUDA stream of its own; what they return is copied to pinned memory behind them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))  # models and pools were made there
        self._last: torch.cuda.Event | None = None  # the end of the task before

    def rest(self) -> None:
        """As `Lane.rest`."""
        super().rest()
        self._last = None

    def settle(self) -> None:
        """As `Lane.settle`."""
        super().settle()
        self._last = None

    def _timed(self, operations: list[Callable[[], object]], work: Callable[[], T]) -> Ran[T]:
        for operation in operations:
            operation()
        return Ran(work(), 0.0)

    def _start(self, run: Callable[[], Ran[T]]) -> Entry[T]:
        before, begin, end = self._last, *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        if before is None:  # the device has been idle since
            self.settle()
        with torch.cuda.stream(self._stream):
            begin.record()
            done = _done(lambda: to_host(run()))
            end.record()
        self._last = end

        def arrive() -> Ran[T]:
            ran = done()
            end.synchronize()
            self._mark = time.perf_counter()
            if before is not None:
                self.exposed += before.elapsed_time(begin) / 1e3
            return Ran(ran.value, begin.elapsed_time(end) / 1e3)

        return Entry(arrive)

    def _finish(self) -> None:
        self._stream.synchronize()


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """What work takes on an idle device: by the host's clock on a CPU, by the device's own on a GPU."""
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return time.perf_counter() - begun
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def make_lane(device: torch.device) -> Lane:
    """The lane of a device. A GPU's work is timed by events on a stream, so it has one without overlap, too."""
    return StreamLane(device) if device.type == "cuda" else InlineLane()


class FutureMap:
    """The tasks in flight, oldest first, each with the function that takes its result."""

    def __init__(self, lane: Lane, ahead: int) -> None:
        """`ahead`: tasks that may stay in flight when a step ends; 0: results are taken at once."""
        self.ahead = ahead
        self.waited = 0.0  # seconds the host has waited for results
        self._lane = lane
        self._flying: deque[tuple[Entry[Any], Callable[[Any, float], None]]] = deque()

    def __len__(self) -> int:
        return len(self._flying)

    def launch(self, work: Callable[[], T], receive: Callable[[T, float], None]) -> None:
        """Put `work` on the lane; `receive` gets its value, and the seconds it took, when it is taken."""
        self._flying.append((self._lane.put(work), receive))
        if not self.ahead:
            self.take(0)

    def take(self, keep: int) -> None:
        """Receive all but the newest `keep` results, in order, waiting for them."""
        while len(self._flying) > keep:
            entry, receive = self._flying.popleft()
            begin = time.perf_counter()
            value, seconds = entry.take()
            self.waited += time.perf_counter() - begin
            receive(value, seconds)

    def clear(self) -> None:
        """Forget what is in flight; nobody wants the results."""
        self._flying.clear()


def to_host(value: Any) -> Any:
    """A nest of tuples and lists with its device tensors copied to pinned memory, without waiting for the copies."""
    if isinstance(value, Tensor) and value.device.type == "cuda":
        return torch.empty(value.shape, dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
    if isinstance(value, tuple | list):
        copies = [to_host(part) for part in value]
        if isinstance(value, list):
            return copies
        return value._make(copies) if hasattr(value, "_make") else tuple(copies)
    return value


@contextmanager
def torch_alone(wanted: bool) -> Iterator[None]:
    """Keep torch's small operations in this thread.

    Torch's helper threads go on spinning for a while after each operation, on cores that the kernels' own threads need:
    a round of 8 requests took 17 ms instead of 9 on two cores.
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _done(run: Callable[[], Ran[T]]) -> Callable[[], Ran[T]]:
    """Run now; the result, or the exception, comes when the returned function is called."""
    try:
        ran = run()
    except Exception as failure:
        return partial(_fail, failure)
    return lambda: ran


def _fail(failure: Exception) -> Ran[T]:
    raise failure
