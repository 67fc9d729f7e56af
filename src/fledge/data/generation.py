"""Keeps the engine full while jobs that may need several generations are answered in order.

A job is a Python generator: it yields a `Generation`, gets the finished `Completion` back, and returns its result.

    jobs     0 1 2 3 4 5 6 ...        submitted as room appears, whatever shard they belong to
    engine   [2 3 5 6]                a straggler (2) holds nobody up
    results  0 1 | 2 ...              handed on in order, so that shards come out the same in any batch
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from fledge.engine import Completion, Engine, SamplingParams

T = TypeVar("T")


@dataclass(frozen=True)
class Generation:
    """One request to the target."""

    prompt_ids: list[int]
    params: SamplingParams


class AnswerFailed(Exception):
    """Thrown into a job whose answer can't be had; other jobs go on."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


Job = Generator[Generation, Completion, T]


class TokenRate:
    """Generated tokens, and how many of them per second over the last half minute."""

    _WINDOW_S = 30.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokens = 0
        self._clock = clock
        self._marks: list[tuple[float, int]] = [(clock(), 0)]

    def add(self, tokens: int) -> None:
        """Count tokens that just came."""
        self.tokens += tokens
        now = self._clock()
        if now - self._marks[-1][0] < 1.0:
            return
        self._marks.append((now, self.tokens))
        while len(self._marks) > 2 and now - self._marks[1][0] >= self._WINDOW_S:
            del self._marks[0]

    def per_second(self) -> float:
        """Tokens per second lately."""
        then, before = self._marks[0]
        return (self.tokens - before) / max(self._clock() - then, 1e-9)


def run_in_order(engine: Engine, jobs: Iterable[Job[T]], rate: TokenRate) -> Generator[T, None, None]:
    """Results of the jobs in their order. Closing the iterator drops what is still in the engine."""
    runner = _Runner[T](engine, iter(jobs), rate)
    try:
        yield from runner.results()
    finally:
        runner.cancel()


class _Runner(Generic[T]):
    def __init__(self, engine: Engine, jobs: Iterator[Job[T]], rate: TokenRate) -> None:
        self._engine = engine
        self._jobs = enumerate(jobs)
        self._rate = rate
        # A step admits as many as finished in the one before, so half a batch in waiting keeps the engine full.
        self._in_flight = engine.max_batch + (engine.max_batch + 1) // 2
        self._running: dict[int, tuple[int, Job[T]]] = {}  # request id -> job
        self._finished: dict[int, T] = {}  # job number -> result
        self._exhausted = False

    def results(self) -> Iterator[T]:
        number = 0
        while True:
            self._fill()
            while number in self._finished:
                yield self._finished.pop(number)
                number += 1
            if self._running:
                self._step()
            elif self._exhausted:
                return

    def cancel(self) -> None:
        for request in self._running:
            self._engine.cancel(request)

    def _fill(self) -> None:
        while not self._exhausted and len(self._running) < self._in_flight:
            try:
                number, job = next(self._jobs)
            except StopIteration:
                self._exhausted = True
                return
            self._advance(number, job, None)

    def _step(self) -> None:
        for result in self._engine.step():
            if result.request_id not in self._running:
                continue  # somebody else's request on the same engine
            self._rate.add(len(result.token_ids))
            if result.completion is not None:
                number, job = self._running.pop(result.request_id)
                self._advance(number, job, result.completion)

    def _advance(self, number: int, job: Job[T], completion: Completion | None) -> None:
        try:
            wanted = next(job) if completion is None else job.send(completion)
        except StopIteration as stop:
            self._finished[number] = stop.value
        else:
            self._running[self._engine.submit(wanted.prompt_ids, wanted.params)] = (number, job)
