"""How long a fresh server takes to be faster: a workload replayed against `fledge serve --learn`.

    round     1 to 4 prompts at once, a pause, the next ones ...           in random order, again and again
    probe     now and then one prompt alone, plainly and then speculating: the same answer, and how many times faster

Both answers of a probe come from the same server, one right after the other, so a slow spell of the machine meets both.
The time to 1.2x is that of the first probe from which the median of three, it and its neighbours, is 1.2 or more.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from fledge.base.child import free_port, started
from fledge.bench.load.client import Call, RequestRecord, model_name, open_session, send
from fledge.bench.workloads import Prompt

_MARKS = (1.2, 1.5, 2.0)
_READY_S = _ANSWER_S = 600.0
_SHORTEST = 32  # tokens of an answer whose pace is measured


@dataclass(frozen=True)
class RaceOptions:
    """How a race is run."""

    minutes: float = 15.0
    max_tokens: int = 256
    probe_every: int = 10  # prompts
    pause_s: float = 2.0  # at most
    seed: int = 0
    serve: Sequence[str] = ()  # more options of `fledge serve`


@dataclass(frozen=True)
class Probe:
    """One prompt, answered twice."""

    seconds: float  # since the first request
    plain: float  # tokens per second
    learnt: float
    same: bool  # the two answers are equal
    version: int | None = None  # of the head that drafted

    @property
    def speed_up(self) -> float:
        """Of decoding."""
        return self.learnt / self.plain


@dataclass
class Race:
    """What came of it."""

    target: str
    probes: list[Probe] = field(default_factory=list)
    requests: int = 0
    tokens: int = 0
    failed: int = 0
    learning: dict[str, Any] = field(default_factory=dict)  # /v1/learn at the end

    def reached(self) -> dict[float, float | None]:
        """Seconds to each mark; None: not reached."""
        smooth = [
            median(p.speed_up for p in self.probes[max(i - 1, 0) : i + 2]) for i in range(len(self.probes))
        ]
        times = [(probe.seconds, value) for probe, value in zip(self.probes, smooth, strict=True)]
        return {mark: next((at for at, value in times if value >= mark), None) for mark in _MARKS}

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "reached": {f"{mark:g}x": at for mark, at in self.reached().items()}}


def race(
    target: str, prompts: Sequence[Prompt], options: RaceOptions, folder: str, tell: Callable[[str], None]
) -> Race:
    """Start a server that learns into `folder`, serve the prompts for so many minutes, and end it."""
    port = free_port()
    command = [sys.executable, "-m", "fledge", "serve", target, "--port", str(port), "--learn"]
    command += ["--learn-folder", folder, *options.serve]
    with started(command, name="the server that learns") as server:
        url = f"http://127.0.0.1:{port}"
        server.wait_until_ready(f"{url}/health", _READY_S)
        return asyncio.run(run(url, target, prompts, options, tell))


async def run(
    url: str, target: str, prompts: Sequence[Prompt], options: RaceOptions, tell: Callable[[str], None]
) -> Race:
    """The race against a server that is there."""
    rng, found, begun = random.Random(options.seed), Race(target), time.monotonic()
    since_probe = options.probe_every
    async with open_session() as session:
        call = Call(
            url, await model_name(session, url), options.max_tokens, temperature=0.0, ignore_eos=False,
            token_counts=True, api_key=None, timeout_s=_ANSWER_S,
        )  # fmt: skip

        async def ask(prompt: Prompt, *, speculate: bool = True) -> RequestRecord:
            record = RequestRecord(prompt.question_id, 0, time.perf_counter())
            return await send(
                session, call, prompt.messages, record, {**prompt.extras, "speculate": speculate}
            )

        async def state() -> dict[str, Any]:
            async with session.get(f"{url}/v1/learn") as response:
                seen: dict[str, Any] = await response.json()
                return seen

        for group in _groups(prompts, rng):
            if time.monotonic() - begun > 60 * options.minutes:
                break
            if since_probe >= options.probe_every:
                since_probe = 0
                plain, learnt = [await ask(group[0], speculate=on) for on in (False, True)]
                if plain.tpot and learnt.tpot and min(plain.output_tokens, learnt.output_tokens) >= _SHORTEST:
                    at, version = time.monotonic() - begun, (await state())["version"]
                    probe = Probe(at, 1 / plain.tpot, 1 / learnt.tpot, plain.text == learnt.text, version)
                    found.probes.append(probe)
                    tell(
                        f"{probe.seconds:6.0f} s  {probe.plain:6.1f} -> {probe.learnt:6.1f} tokens/s  "
                        f"{probe.speed_up:.2f}x  version {version}"
                        + ("" if probe.same else "  ANOTHER ANSWER")
                    )
            for record in await asyncio.gather(*map(ask, group)):
                found.requests += 1
                found.failed += not record.ok
                found.tokens += record.output_tokens if record.ok else 0
            since_probe += len(group)
            await asyncio.sleep(rng.uniform(0, options.pause_s))
        found.learning = await state()
    return found


def _groups(prompts: Sequence[Prompt], rng: random.Random) -> Iterator[list[Prompt]]:
    """The prompts in random order, one to four at a time, without end."""
    while True:
        order = rng.sample(list(prompts), len(prompts))
        while order:
            count = rng.randint(1, 4)
            yield order[:count]
            order = order[count:]
