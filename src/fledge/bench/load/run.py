"""A load test from end to end: warm up, then every level in alternation.

level 1   repeat 1: plain, eagle3    repeat 2: eagle3, plain      (ABBA)
level 2   ...
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import aiohttp

from fledge.base.errors import ServerError
from fledge.bench.load.client import Call, model_name, open_session
from fledge.bench.load.counters import between, read_counters
from fledge.bench.load.drive import drive, repeated
from fledge.bench.load.metrics import level_figures
from fledge.bench.load.options import LoadOptions
from fledge.bench.load.results import LoadResult, compare_levels
from fledge.bench.machine import machine_facts, versions
from fledge.bench.statistics import interleaved
from fledge.bench.workloads import Prompt, Workload
from fledge.data.options import Progress, silent

Answers = dict[tuple[str, int], str]  # (question, turn) -> text


def run_load(
    servers: Mapping[str, str],
    workload: Workload,
    options: LoadOptions,
    *,
    progress: Progress = silent,
    ended_early: Callable[[LoadResult], None] = lambda result: None,
) -> LoadResult:
    """Measure every server at every level. `servers`: addresses by name, the baseline first.

    An interrupt or an error passes the results so far to `ended_early`, and is raised again.
    """
    levels = {c: repeated(workload.prompts, options.requests_at(c)) for c in options.concurrency}
    test = _LoadTest(servers, workload.name, options, levels, os.environ.get("OPENAI_API_KEY"), progress)
    try:
        asyncio.run(test.run())
    except BaseException:
        if test.rows:
            ended_early(test.result())
        raise
    return test.result()


@dataclass
class _LoadTest:
    """A running test and its results so far."""

    servers: Mapping[str, str]
    workload: str
    options: LoadOptions
    levels: Mapping[int, Sequence[Prompt]]
    api_key: str | None
    progress: Progress
    rows: list[dict[str, Any]] = field(default_factory=list)
    models: dict[str, str] = field(default_factory=dict)
    answers: dict[tuple[str, int], Answers] = field(default_factory=dict)  # by server and level

    async def run(self) -> None:
        async with open_session() as session:
            calls = {name: await self._ready(session, name) for name in self.servers}
            for turn in interleaved(list(self.levels), list(calls), self.options.repeats):
                row = await self._block(session, calls[turn.name], turn.name, turn.level, turn.repeat)
                note = f"{turn.name} with {turn.level} in flight: {_brief(row)}"
                self.progress(turn.number, turn.total, note)

    def result(self) -> LoadResult:
        """All results so far."""
        return LoadResult(
            servers=list(self.servers),
            models=self.models,
            addresses=dict(self.servers),
            workload=self.workload,
            options=json.loads(json.dumps(asdict(self.options))),  # as they will be in the file
            comparisons=compare_levels(self.rows, list(self.servers), self._same()),
            machine=machine_facts(),
            versions=versions(),
            notes=self._notes(),
            rows=self.rows,
        )

    async def _ready(self, session: aiohttp.ClientSession, name: str) -> Call:
        """Warm a server up; returns how to call it."""
        options, url = self.options, self.servers[name]
        model = options.model or await model_name(session, url, self.api_key)
        self.models[name] = model
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
        if options.warmup:
            prompts = repeated(next(iter(self.levels.values())), options.warmup)
            warm = await drive(session, call, prompts, options.warmup)
            if options.token_counts is None and not any(record.ok for record in warm.records):
                call = replace(call, token_counts=False)  # some reject unknown fields
                warm = await drive(session, call, prompts, options.warmup)
            if not any(record.ok for record in warm.records):
                raise ServerError(
                    f"{name} at {url} answers no request: {warm.records[0].error}; "
                    "send one by hand to see what it needs"
                )
        return call

    async def _block(
        self, session: aiohttp.ClientSession, call: Call, name: str, level: int, repeat: int
    ) -> dict[str, Any]:
        """One server at one level, once."""
        options, before = self.options, await read_counters(session, call.url)
        driven = await drive(session, call, self.levels[level], level)
        speculation = between(before, await read_counters(session, call.url))
        row = {
            "backend": name,
            "dataset_name": self.workload,
            "max_concurrency": level,
            "repeat": repeat,
            "max_tokens": max(self._lengths(self.levels[level])),
            **level_figures(driven.records, driven.seconds, speculation),
        }
        self.rows.append(row)
        if not repeat and not options.temperature:  # only greedy answers are comparable
            texts = {(record.question_id, record.turn): record.text for record in driven.records if record.ok}
            self.answers[name, level] = texts
        return row

    def _same(self) -> dict[tuple[str, int], tuple[int, int]]:
        """By server and level: answers equal to the baseline's, and the number of those compared."""
        same, first = {}, next(iter(self.servers))
        for (server, level), answers in self.answers.items():
            baseline = self.answers.get((first, level), {})
            both = baseline.keys() & answers.keys()
            same[server, level] = sum(baseline[one] == answers[one] for one in both), len(both)
        return same

    def _lengths(self, prompts: Sequence[Prompt]) -> list[int]:
        """The most new tokens of each answer."""
        turns = [(prompt, turn) for prompt in prompts for turn in range(len(prompt.turns))]
        return [prompt.max_tokens(turn, self.options.max_tokens) for prompt, turn in turns]

    def _notes(self) -> list[str]:
        notes, answered = [], [row for row in self.rows if row["completed"]]
        prompts = [prompt for level in self.levels.values() for prompt in level]
        if any(prompt.lengths for prompt in prompts):
            lengths = self._lengths(prompts)
            notes.append(
                f"Requests ask for the lengths in the workload's rows ({min(lengths)} to {max(lengths)} tokens), where "
                "there is none for --max-tokens. Answers may end earlier; --ignore-eos makes them as long."
            )
        if unused := sorted({name for prompt in prompts for name in prompt.unused}):
            notes.append(
                f"The rows' {', '.join(unused)} isn't sent: sampling is the same for all requests (--temperature)."
            )
        planned = len(self.levels) * self.options.repeats * len(self.servers)
        if len(self.rows) < planned:
            notes.append(f"Ended early: {len(self.rows)} of {planned} blocks were measured.")
        if answered and len(self.levels) * self.options.repeats > 1:
            notes.append(
                "Prompts come again at every level and repeat: a server with a prefix cache has computed them before, "
                "and its TTFT is that of cached prompts; turn the cache off to measure whole prefills."
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
