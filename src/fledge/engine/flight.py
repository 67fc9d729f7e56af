"""Work in flight: rounds and prompts that were launched and whose results the host has not yet taken.

On a CPU a launch runs the work, and its result is taken at once. On a GPU a launch puts kernels on a stream, and with
overlap results are taken one round late (the future map). What a round needs of the one before lies on the device, by
row (`batch.py`), so the host can compose round t + 1 without knowing what round t brings:

    host     compose t+1 | wait | t's result: stops, text, queues | compose t+2 | wait | t+1's result ...
    stream   ... round t .......| round t+1 ...................................| round t+2 ..............

All of the engine's work is on one stream, in order. So the round in flight may still write to a row or page that the
host has just taken from a request: the next owner of the row or page uses it in later work. A request that ends in
round t is part of round t + 1 already; what that round brings for it is discarded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, TypeVar

import torch

from fledge.base.device import to_host

T = TypeVar("T")


class Landed(NamedTuple):
    """Results of a launch."""

    value: Any
    seconds: float  # that it took


class Flight:
    """Launches on a CPU."""

    def __init__(self, ahead: int = 0) -> None:
        """`ahead`: launches that may stay in flight when a step ends."""
        self.ahead = ahead
        self.exposed = 0.0  # seconds nothing ran because the host was busy
        self.planned = 0.0  # of these, the planner's
        self.hidden = 0.0  # seconds the host worked while the device was busy
        self._planning = 0.0  # seconds of the planner that haven't been added to `exposed` yet
        self._waited = 0.0  # seconds the host has waited for results
        self._mark = time.perf_counter()  # until when something ran
        self._flying: deque[tuple[Callable[[], Landed], Callable[[Any, float], None]]] = deque()

    def __len__(self) -> int:
        return len(self._flying)

    def on_device(self) -> AbstractContextManager[Any]:
        """Context in which work put on the device goes to the launches' stream."""
        return nullcontext()

    def launch(self, work: Callable[[], T], receive: Callable[[T, float], None]) -> None:
        """Run `work`; `receive` gets what it returns, and the seconds it took, when that is taken."""
        self._flying.append((self._start(work), receive))
        if not self.ahead:
            self.take(0)

    def take(self, keep: int) -> None:
        """Receive all but the newest `keep` results, in order, waiting for them."""
        while len(self._flying) > keep:
            landed, receive = self._flying.popleft()
            begun = time.perf_counter()
            value, seconds = landed()
            self._waited += time.perf_counter() - begun
            receive(value, seconds)

    def clear(self) -> None:
        """Drop the work in flight; its results are no longer needed."""
        self._flying.clear()

    def finish(self) -> None:
        """Wait until nothing runs any more, and forget it."""
        self.clear()

    @contextmanager
    def step(self) -> Iterator[None]:
        """A step of the engine. If nothing is in flight, the time since the last one doesn't count as `exposed`."""
        begun = time.perf_counter()
        if not self._flying:
            self._start_clock(begun)
        waited, exposed = self._waited, self.exposed
        yield
        if self.ahead:
            worked = time.perf_counter() - begun - (self._waited - waited)
            self.hidden += max(worked - (self.exposed - exposed), 0.0)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """The planner's work, which takes longest where it learns from a round, whatever that round took."""
        begun = time.perf_counter()
        yield
        if not self._flying:
            self._planning += time.perf_counter() - begun

    def _start_clock(self, now: float) -> None:
        self._mark, self._planning = now, 0.0

    def _expose(self, seconds: float) -> None:
        self.exposed += seconds
        self.planned, self._planning = self.planned + self._planning, 0.0

    def settle(self) -> None:
        """Nothing is in flight: the time up to now counts as `exposed`."""
        now = time.perf_counter()
        self._expose(max(now - self._mark, 0.0))
        self._mark = now

    def _start(self, work: Callable[[], Any]) -> Callable[[], Landed]:
        self.settle()
        begun = self._mark
        value = work()
        self._mark = time.perf_counter()
        landed = Landed(value, self._mark - begun)
        return lambda: landed


class StreamFlight(Flight):
    """Launches on a CUDA stream of their own; what they return is copied to pinned memory after them."""

    def __init__(self, device: torch.device, ahead: int) -> None:
        super().__init__(ahead)
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))  # models and pools were made there
        self._last: torch.cuda.Event | None = None  # the end of the launch before

    def on_device(self) -> AbstractContextManager[Any]:
        """See `Flight`."""
        return torch.cuda.stream(self._stream)

    def _start_clock(self, now: float) -> None:
        super()._start_clock(now)
        self._last = None

    def settle(self) -> None:
        """See `Flight`."""
        super().settle()
        self._last = None

    def finish(self) -> None:
        """See `Flight`."""
        self._stream.synchronize()
        super().finish()

    def _start(self, work: Callable[[], Any]) -> Callable[[], Landed]:
        before, begin, end = self._last, *(torch.cuda.Event(enable_timing=True) for _ in range(2))
        if before is None:  # the device has been idle since
            self.settle()
        begin.record(self._stream)
        value = to_host(work())
        end.record(self._stream)
        self._last = end

        def landed() -> Landed:
            end.synchronize()
            self._mark = time.perf_counter()
            if before is not None:
                self._expose(before.elapsed_time(begin) / 1e3)
            return Landed(value, begin.elapsed_time(end) / 1e3)

        return landed


def make_flight(device: torch.device, ahead: int) -> Flight:
    """A GPU's work is timed by events on a stream, so it has one without overlap, too."""
    return StreamFlight(device, ahead) if device.type == "cuda" else Flight(ahead)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that `work` takes on an idle device: by the host's clock on a CPU, by the device's own on a GPU."""
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
