"""A load test from end to end: start servers, warm up, every level in alternation, stop servers.

    level 1   repeat 1: plain, eagle3    repeat 2: eagle3, plain      (ABBA)
    level 2   ...

All servers stay up for the whole test, so alternating between them is free. With `options.fresh` a server is started
for each block and stopped after it: only one is in memory, and no block can use another's prefix cache.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import aiohttp

from fledge.base.errors import ServerError
from fledge.bench.load.client import Call, open_session
from fledge.bench.load.counters import between, read_counters
from fledge.bench.load.drive import Arrival, closed_loop, drive, poisson
from fledge.bench.load.metrics import level_figures
from fledge.bench.load.options import LoadOptions
from fledge.bench.load.results import Level, LoadResult, compare_levels
from fledge.bench.load.servers import ServerSpec, running
from fledge.bench.machine import machine_facts, versions
from fledge.bench.statistics import interleaved
from fledge.bench.workloads import Workload
from fledge.data.options import Progress, silent

Answers = dict[tuple[str, int], str]  # (question, turn) -> text


def run_load(
    specs: Sequence[ServerSpec],
    workload: Workload,
    options: LoadOptions,
    *,
    traffic: Sequence[Arrival] = (),
    progress: Progress = silent,
    ended_early: Callable[[LoadResult], None] = lambda result: None,
) -> LoadResult:
    """Measure every server at every level, or replay `traffic` with its own timing instead.

    An interrupt or an error passes the results so far to `ended_early`, and is raised again.
    """
    if options.fresh and not any(spec.command for spec in specs):
        raise ServerError("--fresh can't restart a running server; give a server as NAME=start:COMMAND")
    levels = plan_levels(workload, options, traffic)
    api_key = os.environ.get("OPENAI_API_KEY")
    test = _LoadTest(specs, workload.name, options, levels, api_key, progress)
    try:
        asyncio.run(test.run())
    except BaseException:
        if test.rows:
            ended_early(test.result())
        raise
    return test.result()


def plan_levels(
    workload: Workload, options: LoadOptions, traffic: Sequence[Arrival] = ()
) -> dict[Level, Sequence[Arrival]]:
    """The conversations of each level, in the order of measurement."""
    if traffic:
        return {Level(None, None): traffic}
    prompts = workload.prompts
    if options.rates:
        count = options.requests_at(None)
        return {Level(None, rate): poisson(prompts, count, rate, options.seed) for rate in options.rates}
    return {Level(c, None): closed_loop(prompts, options.requests_at(c)) for c in options.concurrency}


@dataclass
class _LoadTest:
    """A running test and its results so far."""

    specs: Sequence[ServerSpec]
    workload: str
    options: LoadOptions
    levels: Mapping[Level, Sequence[Arrival]]
    api_key: str | None
    progress: Progress
    rows: list[dict[str, Any]] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)
    answers: dict[tuple[str, Level], Answers] = field(default_factory=dict)  # by server and level

    async def run(self) -> None:
        by_name = {spec.name: spec for spec in self.specs}
        async with open_session() as session, AsyncExitStack() as stack:
            calls: dict[str, Call] = {}
            for spec in () if self.options.fresh else self.specs:
                calls[spec.name] = await stack.enter_async_context(self._ready(session, spec))
            for turn in interleaved(list(self.levels), list(by_name), self.options.repeats):
                async with AsyncExitStack() as block:
                    call = calls.get(turn.name)
                    if call is None:
                        call = await block.enter_async_context(self._ready(session, by_name[turn.name]))
                    row = await self._block(session, call, turn.name, turn.level, turn.repeat)
                note = f"{turn.name} at {turn.level}: {_brief(row)}"
                self.progress(turn.number, turn.total, note)

    def result(self) -> LoadResult:
        """All results so far."""
        return LoadResult(
            servers=[spec.name for spec in self.specs],
            models=self.models,
            commands={spec.name: spec.url or shlex.join(spec.command) for spec in self.specs},
            workload=self.workload,
            options=json.loads(json.dumps(asdict(self.options))),  # as they will be in the file
            comparisons=compare_levels(self.rows, [spec.name for spec in self.specs], self._same()),
            machine=machine_facts(),
            versions=versions(),
            notes=self._notes(),
            rows=self.rows,
        )

    @asynccontextmanager
    async def _ready(self, session: aiohttp.ClientSession, spec: ServerSpec) -> AsyncIterator[Call]:
        """Start a server if necessary, warm it up, and return how to call it."""
        options = self.options
        place = running(spec, session, self.api_key, options.ready_timeout_s, options.model)
        async with place as (url, model):
            self.models[spec.name] = model
            call = Call(
                url=url,
                model=model,
                max_tokens=options.max_tokens,
                temperature=options.temperature,
                ignore_eos=options.ignore_eos,
                token_counts=options.warmup > 0 if options.token_counts is None else options.token_counts,
                api_key=self.api_key,
                timeout_s=options.timeout_s,
            )
            prompts = [arrival.prompt for arrival in next(iter(self.levels.values()))]
            if options.warmup:
                arrivals = closed_loop(prompts, options.warmup)
                warm = await drive(session, call, arrivals, options.warmup)
                if options.token_counts is None and not any(record.ok for record in warm.records):
                    call = replace(call, token_counts=False)  # some reject unknown fields
                    warm = await drive(session, call, arrivals, options.warmup)
                if not any(record.ok for record in warm.records):
                    raise ServerError(
                        f"{spec.name} at {url} answers no request: {warm.records[0].error}; "
                        "send one by hand to see what it needs"
                    )
            yield call

    async def _block(
        self, session: aiohttp.ClientSession, call: Call, name: str, level: Level, repeat: int
    ) -> dict[str, Any]:
        """One server at one level, once."""
        options, before = self.options, await read_counters(session, call.url)
        driven = await drive(session, call, self.levels[level], level.concurrency)
        speculation = between(before, await read_counters(session, call.url))
        row = {
            "backend": name,
            "dataset_name": self.workload,
            "request_rate": level.rate,
            "max_concurrency": level.concurrency,
            "repeat": repeat,
            "max_tokens": max(self._lengths(self.levels[level])),
            **level_figures(driven.records, driven.seconds, speculation, options.slo, options.price_per_hour),
        }
        self.rows.append(row)
        if not repeat and not options.temperature:  # only greedy answers are comparable
            texts = {(record.question_id, record.turn): record.text for record in driven.records if record.ok}
            self.answers[name, level] = texts
        return row

    def _same(self) -> dict[tuple[str, Level], tuple[int, int]]:
        """By server and level: answers equal to the baseline's, and the number of those compared."""
        same = {}
        for (server, level), answers in self.answers.items():
            baseline = self.answers.get((self.specs[0].name, level), {})
            both = baseline.keys() & answers.keys()
            same[server, level] = sum(baseline[one] == answers[one] for one in both), len(both)
        return same

    def _lengths(self, arrivals: Sequence[Arrival]) -> list[int]:
        """The most new tokens of each answer."""
        turns = [(arrival.prompt, turn) for arrival in arrivals for turn in range(len(arrival.prompt.turns))]
        return [prompt.max_tokens(turn, self.options.max_tokens) for prompt, turn in turns]

    def _notes(self) -> list[str]:
        notes, answered = [], [row for row in self.rows if row["completed"]]
        arrivals = [arrival for level in self.levels.values() for arrival in level]
        if any(arrival.prompt.lengths for arrival in arrivals):
            lengths = self._lengths(arrivals)
            notes.append(
                f"Requests ask for the lengths in the workload's rows ({min(lengths)} to {max(lengths)} tokens), where "
                "there is none for --max-tokens. Answers may end earlier; --ignore-eos makes them as long."
            )
        if unused := sorted({name for arrival in arrivals for name in arrival.prompt.unused}):
            notes.append(
                f"The rows' {', '.join(unused)} isn't sent: sampling is the same for all requests (--temperature)."
            )
        planned = len(self.levels) * self.options.repeats * len(self.specs)
        if len(self.rows) < planned:
            notes.append(f"Ended early: {len(self.rows)} of {planned} blocks were measured.")
        if answered and not self.options.fresh and len(self.levels) * self.options.repeats > 1:
            notes.append(
                "Prompts come again at every level and repeat: a server with a prefix cache has computed them before, "
                "and its TTFT is that of cached prompts. --fresh starts servers anew instead."
            )
        if any(row["tokens_counted_by"] == "chunks" for row in answered):
            notes.append(
                "A server sent no usage: its output tokens are counted as one per chunk, so under speculation its TPOT "
                "is too high and its throughput too low."
            )
        if any(row["itl_basis"] == "chunks" for row in answered):
            notes.append(
                "A server doesn't report its chunks' tokens: ITL is the time between chunks, and TPOT takes the first "
                "for one token. Under speculation a chunk may hold several, and then TPOT is too low."
            )
        return notes


def _brief(row: dict[str, Any]) -> str:
    tpot = row["median_tpot_ms"]
    return f"{row['output_throughput']:.0f} tokens/s" + (f", TPOT {tpot:.1f} ms" if tpot else "")
