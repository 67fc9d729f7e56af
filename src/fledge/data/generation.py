"""Keeps the engine full while running jobs that may need several generations each; results come in order.

A job is a Python generator: it yields a `Generation`, gets the finished `Completion` back, and returns its result.

    jobs     0 1 2 3 4 5 6 ...        submitted as room appears, whatever shard they belong to
    engine   [2 3 5 6]                a straggler (2) doesn't block others
    results  0 1 | 2 ...              returned in order, so shards don't depend on batching
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from fledge.engine import Completion, Engine, SamplingParams

T = TypeVar("T")
_MAX_WAITING = 64  # results that may wait for an earlier one, per running request


@dataclass(frozen=True)
class Generation:
    """One request to the target."""

    prompt_ids: list[int]
    params: SamplingParams


class AnswerFailed(Exception):
    """Thrown into a job whose answer failed; other jobs continue."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


Job = Generator[Generation, Completion, T]
Request = TypeVar("Request", bound=Hashable)
Answer = tuple[Request, Completion | AnswerFailed]


class TokenRate:
    """Counts generated tokens, and their rate over the last half minute."""

    _WINDOW_S = 30.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.tokens = 0
        self._clock = clock
        self._marks: list[tuple[float, int]] = [(clock(), 0)]

    def add(self, tokens: int) -> None:
        """Count newly generated tokens."""
        self.tokens += tokens
        now = self._clock()
        if now - self._marks[-1][0] < 1.0:
            return
        self._marks.append((now, self.tokens))
        while len(self._marks) > 2 and now - self._marks[1][0] >= self._WINDOW_S:
            del self._marks[0]

    def per_second(self) -> float:
        """Tokens per second over the last half minute."""
        then, before = self._marks[0]
        return (self.tokens - before) / max(self._clock() - then, 1e-9)


def run_in_order(engine: Engine, jobs: Iterable[Job[T]], rate: TokenRate) -> Generator[T, None, None]:
    """Results of the jobs in their order. Closing the iterator cancels requests still in the engine."""

    def answers(running: Collection[int]) -> Iterator[Answer[int]]:
        for result in engine.step():
            if result.request_id in running:  # skip other users' requests on the same engine
                rate.add(len(result.token_ids))
                if result.completion is not None:
                    yield result.request_id, result.completion

    def stop(running: Collection[int]) -> None:
        for request in running:
            engine.cancel(request)

    # A step admits as many requests as the previous one finished, so half a batch waiting keeps the engine full.
    limit = engine.max_batch + (engine.max_batch + 1) // 2
    return keep_full(
        jobs, limit, lambda generation: engine.submit(generation.prompt_ids, generation.params), answers, stop
    )


def keep_full(
    jobs: Iterable[Job[T]],
    limit: int,
    start: Callable[[Generation], Request],
    answers: Callable[[Collection[Request]], Iterable[Answer[Request]]],
    stop: Callable[[Collection[Request]], None],
) -> Generator[T, None, None]:
    """Results of the jobs in their order, with up to `limit` requests running.

    `start` begins a request and returns its handle; `answers` blocks until some running requests are answered; `stop`
    receives the running requests whose answers are no longer needed.
    """
    numbered = enumerate(jobs)
    running: dict[Request, tuple[int, Job[T]]] = {}
    finished: dict[int, T] = {}  # by the job's number, until all earlier jobs are
    exhausted, number = False, 0

    def advance(index: int, job: Job[T], answer: Completion | AnswerFailed | None) -> None:
        try:
            if isinstance(answer, AnswerFailed):
                generation = job.throw(answer)
            else:
                generation = next(job) if answer is None else job.send(answer)
        except StopIteration as ended:
            finished[index] = ended.value
        else:
            running[start(generation)] = (index, job)

    try:
        while True:
            while not exhausted and len(running) < limit and len(finished) < _MAX_WAITING * limit:
                try:
                    index, job = next(numbered)
                except StopIteration:
                    exhausted = True
                else:
                    advance(index, job, None)
            while number in finished:
                yield finished.pop(number)
                number += 1
            if running:
                for request, answer in answers(running):
                    advance(*running.pop(request), answer)
            elif exhausted:
                return
    finally:
        stop(running)
