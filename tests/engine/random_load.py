"""Random load on an engine: arrivals, cancels and batches by chance, prompts that begin alike, further turns.

Every job comes with plain decode's answer (no prefix cache), so answers are compared as they end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fledge.engine import Completion, Engine, SamplingParams, StepResult
from fledge.target.target import Target

_SAMPLED = ({"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.2, "top_k": 20})
_GENERATION = 64  # jobs made at a time; later ones may go on from the answers


@dataclass(frozen=True)
class Job:
    """A request and what it has to be answered with."""

    prompt: list[int]
    params: SamplingParams
    speculate: bool
    expected: list[int]


@dataclass
class Served:
    """What came of a job."""

    job: Job
    token_ids: list[int] = field(default_factory=list)
    completion: Completion | None = None  # None: cancelled

    @property
    def identical(self) -> bool:
        """Whether the answer is plain decode's; if it was cancelled, the beginning of it."""
        end = None if self.completion is not None else len(self.token_ids)
        return self.token_ids == self.job.expected[:end]


def make_jobs(
    target: Target,
    rng: random.Random,
    count: int,
    *,
    draw: Callable[[int], list[int]],
    longest: int,
    most_tokens: int,
) -> list[Job]:
    """Jobs whose prompts share beginnings of different lengths; some are the next turn of an earlier job.

    `draw` gives so many tokens; prompt and answer have at most `longest` together, the answer `most_tokens`.
    """
    plain, size = Engine(target, max_context=longest, prefix_cache=False), target.decoder.page_size
    beginnings = [draw(rng.randrange(1, longest // 2)) for _ in range(5)]
    jobs: list[Job] = []
    while len(jobs) < count:
        history = [job.prompt + job.expected for job in jobs[-2 * _GENERATION :]]
        made: dict[int, Job] = {}
        for _ in range(min(_GENERATION, count - len(jobs))):
            start = rng.choice(history if history and rng.random() < 0.3 else beginnings)
            if rng.random() < 0.3:  # leaves the other somewhere within a page, or where a page ends
                start = start[: rng.randrange(1, len(start) + 1)]
                start = start[: max(len(start) // size * size, 1)] if rng.random() < 0.6 else start
            most = rng.randrange(1, most_tokens + 1)
            tail = draw(rng.choice([3, 4, 5, 16, 31, 32, 33, 70]))
            prompt = start[: longest - most - len(tail)] + tail  # its own tail: no two prompts are the same
            sampling = rng.choice(_SAMPLED) if rng.random() < 0.25 else {}
            params = SamplingParams(
                max_tokens=most,
                seed=rng.randrange(1000),
                ignore_eos=True,
                **sampling,  # type: ignore[arg-type]
            )
            made[plain.submit(prompt, params)] = Job(prompt, params, rng.random() < 0.9, [])
        while plain.busy:
            for result in plain.step():
                made[result.request_id].expected.extend(result.token_ids)
        jobs += made.values()
    return jobs


class RandomLoad:
    """Keeps an engine busy."""

    def __init__(self, engine: Engine, rng: random.Random) -> None:
        self.engine = engine
        self.cancelled = 0
        self._rng = rng
        self._live: dict[int, Served] = {}
        self._doomed: dict[int, int] = {}  # steps until they are cancelled, unless they are done before

    def run(self, jobs: Sequence[Job]) -> list[Served]:
        """Serve the jobs to their ends, cancelled ones included."""
        rng, quiet = self._rng, False
        served: list[Served] = []
        while len(served) < len(jobs) or self._live:
            # Now and then nothing arrives until all is done, and the engine checks its pages.
            quiet = bool(self._live) and (quiet or rng.random() < 0.01)
            arriving = 0 if quiet else rng.choice([0, 0, 0, 1, 1, 2, 6])
            for job in jobs[len(served) : len(served) + arriving]:
                served.append(self._submit(job))
            for request, steps in list(self._doomed.items()):
                self._doomed[request] = steps - 1
                if not steps:
                    self._cancel(request)
            for result in self.engine.step():
                one = self._live.get(result.request_id)
                if one is None:  # cancelled by a sink within this step
                    continue
                one.token_ids += result.token_ids
                if result.completion is not None:
                    one.completion = result.completion
                    self._forget(result.request_id)
        return served

    def _submit(self, job: Job) -> Served:
        one = Served(job)
        sink = self._cancel_someone if self._rng.random() < 0.03 else None
        request = self.engine.submit(job.prompt, job.params, speculate=job.speculate, sink=sink)
        self._live[request] = one
        if self._rng.random() < 0.12:
            self._doomed[request] = self._rng.randrange(25)
        return one

    def _cancel_someone(self, result: StepResult) -> None:
        """A sink that cancels a request, its own perhaps, from within the step that serves it."""
        waiting = [request for request, one in self._live.items() if one.completion is None]
        if result.completion is None and waiting and self._rng.random() < 0.1:
            self._cancel(self._rng.choice(waiting))

    def _cancel(self, request: int) -> None:
        self.engine.cancel(request)
        self._forget(request)
        self.cancelled += 1

    def _forget(self, request: int) -> None:
        del self._live[request]
        self._doomed.pop(request, None)
