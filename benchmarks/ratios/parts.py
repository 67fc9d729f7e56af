"""The cost and gain of speculation relative to plain decode on this machine: every figure is a ratio within one run.

    python -m benchmarks.ratios                        everything
    python -m benchmarks.ratios --only levels,ttft     selected parts

    levels      throughput with 1, 2, 4, ... requests at once, under the load of `concurrency.py`: the head, a poor one
                if given, and a head of random weights
    ttft        time to the first token of long prompts
    sampled     throughput at temperature 1, one request at a time and eight at once
    structured  time per output token of answers that have to be JSON of a schema
    context     a verify of many rows after short and long contexts
    neighbour   time per output token next to a process that keeps a core busy
    overlap     the overlap scheduler on and off: throughput, and the share of a round that waits for the host; GPU only
    graphs      rounds replayed as CUDA graphs over launched rounds; GPU only
    attention   speed of attention's KV reads, over a copy; GPU only

Configurations are measured in alternation, ratios are taken within a block, intervals are those of `statistics.py`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from itertools import chain, cycle, islice
from statistics import median
from typing import ClassVar

from benchmarks.forwards import measure_costs
from benchmarks.ratios.kv_reads import kv_reads
from benchmarks.ratios.line import Ratio, Ratios, paired, single
from fledge.base.errors import DataError, FledgeError
from fledge.base.options import Options
from fledge.bench.concurrency import ClosedLoop, Load, longest_answer, run_side_by_side, sweep
from fledge.bench.machine import machine_facts, versions
from fledge.bench.options import AnswerTokens, Count, Levels
from fledge.bench.results import PLAIN, RANDOM, LevelRow
from fledge.bench.statistics import alternation
from fledge.bench.workloads import own_workload
from fledge.engine import Engine
from fledge.engine.rounds.graphs import CudaRecorder
from fledge.heads import Head, head_runner
from fledge.target import Target
from fledge.train.start import random_head

HEAD, POOR = "head", "poor head"
_BUSY = "while True: pass"
_FORM = {
    "type": "object",
    "properties": {
        "answer": {"type": "string", "maxLength": 160},
        "keywords": {
            "type": "array",
            "items": {"type": "string", "maxLength": 20},
            "minItems": 2,
            "maxItems": 5,
        },
        "confidence": {"enum": ["low", "medium", "high"]},
    },
    "required": ["answer", "keywords", "confidence"],
    "additionalProperties": False,
}
_ROOM = 16  # spare tokens beyond prompt and answer
_PER_SLOT, _FEWEST = 4, 5  # requests of a level


class RatioOptions(Options):
    """Options of the measurement."""

    error: ClassVar[type[FledgeError]] = DataError

    concurrency: Levels = (1, 2, 4, 8, 16, 32)
    repeats: Count = 6
    max_tokens: AnswerTokens = 128
    prompts: Count = 12
    long_prompt: int = 1000
    contexts: tuple[int, ...] = (256, 4096)
    rows: tuple[int, ...] = (2, 4, 8, 16, 32)


class Bench:
    """The target, its head, and the prompts shared by all parts."""

    def __init__(self, target: Target, head: Head, options: RatioOptions, poor: Head | None = None) -> None:
        self.target, self.head, self.poor, self.options = target, head, poor, options
        self.prompts = own_workload().limited(options.prompts).token_ids(target)

    def engines(self, *names: str, max_batch: int, longest: int = 0) -> dict[str, Engine]:
        """Warmed-up engines by name, without prefix cache, so that every repeat does the same work."""
        heads = {PLAIN: None, HEAD: self.head, POOR: self.poor}
        if RANDOM in names:
            heads[RANDOM] = random_head(self.target, self.head.vocabulary)
        engines = {name: self._engine(heads[name], max_batch, longest) for name in names}
        for engine in engines.values():
            engine.generate(self.prompts[:2], max_tokens=8, ignore_eos=True)
        return engines

    def _engine(
        self,
        head: Head | None,
        max_batch: int,
        longest: int = 0,
        *,
        overlap: bool | None = None,
        cuda_graphs: bool | None = None,
    ) -> Engine:
        answer = longest_answer(self.options.max_tokens)
        return Engine(
            self.target,
            head,
            max_batch=max_batch,
            max_context=max(longest, *map(len, self.prompts)) + answer + _ROOM,
            prefix_cache=False,
            overlap=overlap,
            cuda_graphs=cuda_graphs,
        )

    def levels(self) -> Iterator[Ratio]:
        """Throughput at every level: the heads over plain decode."""
        heads = (HEAD, RANDOM) if self.poor is None else (HEAD, POOR, RANDOM)
        yield from self._throughput(self.options.concurrency, *heads)

    def _throughput(self, levels: Sequence[int], *names: str, temperature: float = 0.0) -> Iterator[Ratio]:
        engines = self.engines(PLAIN, *names, max_batch=max(levels))
        load = Load(self.options.max_tokens, self.options.repeats, _FEWEST, _PER_SLOT, temperature)
        for plain, *heads in sweep(engines, self.prompts, levels, load):
            for row in heads:
                yield _over_plain(plain, row, load)

    def ttft(self) -> Iterator[Ratio]:
        """Time to the first token of long prompts, with one and eight concurrent requests."""
        size = self.options.long_prompt
        longs = [
            list(islice(cycle(chain.from_iterable(self.prompts)), 37 * n, 37 * n + size)) for n in range(8)
        ]
        engines = self.engines(PLAIN, HEAD, max_batch=8, longest=size)
        for level in (1, 8):
            times: dict[str, list[float]] = {PLAIN: [], HEAD: []}
            for name, row in self._alternate(engines, longs[: max(2, level)], level, 8):
                times[name].append(row.median_ttft_ms)
            what = f"time to first token, {size} tokens, {level} at once: head over plain"
            yield paired(what, times[PLAIN], times[HEAD], "ms")

    def sampled(self) -> Iterator[Ratio]:
        """Throughput at temperature 1, with one and eight concurrent requests."""
        yield from self._throughput((1, 8), HEAD, temperature=1.0)

    def structured(self) -> Iterator[Ratio]:
        """Time per token of JSON answers, one at a time: both engines write the same ones."""
        engines = self.engines(PLAIN, HEAD, max_batch=1)
        times: dict[str, list[float]] = {PLAIN: [], HEAD: []}
        taus: list[float] = []
        for prompt, names in zip(self.prompts, alternation(list(engines), len(self.prompts)), strict=True):
            for name in names:
                (answer,) = engines[name].generate(
                    [prompt], max_tokens=self.options.max_tokens, structured_outputs={"json": _FORM}
                )
                times[name].append(answer.stats.tpot_ms)
                if name == HEAD:
                    taus.append(answer.stats.tau)
        what = "time per token, JSON of a schema: head over plain"
        yield paired(what, times[PLAIN], times[HEAD], "ms", f"tau {median(taus):.2f}")

    def context(self) -> Iterator[Ratio]:
        """A verify of n rows over a plain step, after short and long contexts."""
        target = self.head.target_it_reads(self.target)
        runner = head_runner(target, self.head)
        for context in self.options.contexts:
            costs = measure_costs(
                target, runner, rows=self.options.rows, draft_rows=4, context=context,
                repeats=max(5, self.options.repeats),
            )  # fmt: skip
            for rows in costs.verify:
                what = f"verify of {rows} rows over a plain step, context {context}"
                yield single(what, costs.plain_step, costs.verify[rows], "ms")
            what = f"draft step over a plain step, context {context}"
            yield single(what, costs.plain_step, costs.draft_step, "ms")

    def neighbour(self) -> Iterator[Ratio]:
        """Time per token next to a busy process over that on the quiet machine."""
        for name, engine in self.engines(PLAIN, HEAD, max_batch=1).items():
            times: dict[str, list[float]] = {"quiet": [], "busy": []}
            for prompt, states in zip(
                self.prompts, alternation(["quiet", "busy"], len(self.prompts)), strict=True
            ):
                for state in states:
                    with _busy_process() if state == "busy" else nullcontext():
                        (answer,) = engine.generate(
                            [prompt], max_tokens=self.options.max_tokens, ignore_eos=True
                        )
                    times[state].append(answer.stats.tpot_ms)
            yield paired(
                f"time per token, {name}: busy neighbour over none", times["quiet"], times["busy"], "ms"
            )

    def overlap(self) -> Iterator[Ratio]:
        """Throughput with the overlap scheduler over that without, and the host's exposed share."""
        engines = {
            name: self._engine(self.head, 8, overlap=on) for name, on in (("off", False), ("on", True))
        }
        for level in (1, 8):
            requests = self._requests(2 * level)
            for engine in engines.values():
                run_level(engine, "warm", requests[:level], level, 16)
            before = {name: engine.stats().phases for name, engine in engines.items()}
            speeds: dict[str, list[float]] = {name: [] for name in engines}
            shares: dict[str, list[float]] = {name: [] for name in engines}
            for name, row in self._alternate(engines, requests, level, self.options.max_tokens):
                now = engines[name].stats().phases
                spent, before[name] = now.since(before[name]), now
                rounds = spent.draft + spent.verify + spent.accept + spent.extend + spent.host
                speeds[name].append(row.output_throughput)
                shares[name].append(100 * spent.host / rounds)
            yield paired(
                f"throughput, {level} at once: overlap on over off", speeds["off"], speeds["on"], "tokens/s"
            )
            what = f"host time exposed, share of the rounds, {level} at once: overlap off, on"
            yield Ratio(what=what, base=median(shares["off"]), other=median(shares["on"]), unit="%")

    def graphs(self) -> Iterator[Ratio]:
        """Throughput with CUDA graphs over that without, plain and with the head, at one and eight requests."""
        for name, head in ((PLAIN, None), (HEAD, self.head)):
            engines = {
                state: self._engine(head, 8, cuda_graphs=on) for state, on in (("off", False), ("on", True))
            }
            for level in (1, 8):
                requests = self._requests(max(2 * level, 4))
                speeds: dict[str, list[float]] = {state: [] for state in engines}
                # The first repeat records.
                for state, row in self._alternate(
                    engines, requests, level, self.options.max_tokens, warmup=1
                ):
                    speeds[state].append(row.output_throughput)
                what = f"throughput, {level} at once, {name}: CUDA graphs on over off"
                yield paired(what, speeds["off"], speeds["on"], "tokens/s")

    def attention(self) -> Iterator[Ratio]:
        """Bytes of KV per second that attention reads, over those of a copy."""
        recorder = CudaRecorder(self.target.decoder.device)
        yield from kv_reads(self.target, recorder, self.options.contexts, max(5, self.options.repeats))

    def _requests(self, count: int) -> list[list[int]]:
        return [self.prompts[n % len(self.prompts)] for n in range(count)]

    def _alternate(
        self,
        engines: Mapping[str, Engine],
        requests: list[list[int]],
        level: int,
        tokens: int,
        warmup: int = 0,
    ) -> Iterator[tuple[str, LevelRow]]:
        """Each engine's row, repeat by repeat, without the first `warmup` repeats."""
        for repeat, names in enumerate(alternation(list(engines), self.options.repeats + warmup)):
            for name in names:
                row = run_level(engines[name], name, requests, level, tokens)
                if repeat >= warmup:
                    yield name, row


def run_level(
    engine: Engine,
    name: str,
    requests: Sequence[list[int]],
    concurrency: int,
    max_tokens: int | Sequence[int],
    temperature: float = 0.0,
) -> LevelRow:
    """Answer all requests with one engine (see `ClosedLoop`)."""
    loop = ClosedLoop(engine, requests, concurrency, max_tokens, temperature)
    run_side_by_side([loop])
    return loop.figures(name)


def _over_plain(plain: LevelRow, row: LevelRow, load: Load) -> Ratio:
    sampled = f", temperature {load.temperature:g}" if load.temperature else ""
    return Ratio(
        what=f"throughput, {row.concurrency} at once{sampled}: {row.engine} over plain",
        base=plain.output_throughput,
        other=row.output_throughput,
        unit="tokens/s",
        ratio=row.over_plain,
        note=f"tau {row.tau:.2f}",
        head=None if sampled else row.engine,
        level=None if sampled else row.concurrency,
    )


PARTS: Mapping[str, Callable[[Bench], Iterator[Ratio]]] = {
    "levels": Bench.levels,
    "ttft": Bench.ttft,
    "sampled": Bench.sampled,
    "structured": Bench.structured,
    "context": Bench.context,
    "neighbour": Bench.neighbour,
    "overlap": Bench.overlap,
    "graphs": Bench.graphs,
    "attention": Bench.attention,
}
_ON_GPUS = ("overlap", "graphs", "attention")


def wanted_parts(names: Sequence[str], *, gpu: bool) -> list[str]:
    """The parts with these names; without names, all that can be measured.

    Raises a DataError for a part that doesn't exist or can't be measured here.
    """
    parts = list(names) or [part for part in PARTS if gpu or part not in _ON_GPUS]
    for part in parts:
        if part not in PARTS:
            raise DataError(f"there is no part {part!r}; choose from {', '.join(PARTS)}")
        if part in _ON_GPUS and not gpu:
            raise DataError(f"{part} is measured on a GPU; name one with --device, or leave this part out")
        if part == "structured" and find_spec("llguidance") is None:
            raise DataError(
                'structured needs a package: pip install "fledge[structured]", or leave this part out'
            )
    return parts


def measure_ratios(
    bench: Bench, parts: Sequence[str], show: Callable[[Ratio], None], command: str = ""
) -> Ratios:
    """Measure these parts, as returned by `wanted_parts`. `show` is called with every new line."""
    lines = []
    for part in parts:
        for line in PARTS[part](bench):
            lines.append(line)
            show(line)
    return Ratios(
        target=bench.target.name,
        command=command,
        date=time.strftime("%Y-%m-%d"),
        machine=machine_facts(bench.target.decoder.device),
        versions=versions(),
        lines=lines,
    )


@contextmanager
def _busy_process() -> Iterator[None]:
    """Another process that keeps one core busy."""
    process = subprocess.Popen([sys.executable, "-c", _BUSY])
    try:
        time.sleep(0.2)  # until it runs
        yield
    finally:
        process.kill()
        process.wait()
