"""Runs every peer in its own process and Python, all loaded at once and measured in turn.

An engine whose turn it isn't is stopped (SIGSTOP) with its child processes: some keep spinning after an answer, which
makes rounds of many short forwards in another engine 1.5 times as slow.

TPOT at one request in flight is the time of a whole answer minus that of its first token, divided by the other tokens;
the same for every engine, whatever its own statistics. Throughput counts whole answers including prefill.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from operator import eq
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import psutil

from benchmarks.expanded import expanded
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.waker import each
from fledge.base.child import stopping_on_sigterm
from fledge.base.errors import DataError, FledgeError, ServerError
from fledge.base.options import Options
from fledge.bench.options import AnswerTokens, Count, Levels
from fledge.bench.statistics import interleaved
from fledge.bench.workloads import find_workload, warn_of_lengths
from fledge.data.options import Progress, silent
from fledge.target import Target

_MARGIN = 8
_HERE = Path(__file__).parent


class PeerOptions(Options):
    """Options of a comparison."""

    error: ClassVar[type[FledgeError]] = DataError

    target: str
    head: str | None  # folder of the draft head
    peers: tuple[str, ...] = ()  # only these; empty: all
    modes: tuple[str, ...] = ()  # only these; empty: all
    programs: Mapping[str, str] = {}  # peer -> its Python, or its server's program
    models: Mapping[str, str] = {}  # peer -> the weights in its own format
    drafts: Mapping[str, str] = {}  # peer -> the head in its own format
    workload: str = "mixed"
    prompts: Count = 8
    max_tokens: AnswerTokens = 64
    concurrency: Levels = (1, 8)
    repeats: Count = 3

    def model_post_init(self, context: object) -> None:
        """Raise a DataError for peers or modes that don't exist."""
        names, modes = [peer.name for peer in PEERS], {mode for peer in PEERS for mode in peer.modes}
        named = {*self.peers, *self.programs, *self.models, *self.drafts}
        for what, unknown, choices in (
            ("peer", named - set(names), names),
            ("mode", set(self.modes) - modes, sorted(modes)),
        ):
            if unknown:
                raise DataError(f"no {what} is called {min(unknown)!r}; use one of {', '.join(choices)}")


@dataclass(frozen=True)
class PeerRow:
    """One measurement of one peer in one mode at one concurrency."""

    peer: str
    mode: str
    version: str
    concurrency: int
    repeat: int
    tpot_ms: float | None  # at one request in flight
    throughput: float
    identical: int | None  # answers equal to fledge's plain ones, if measured
    own: int | None  # answers equal to the same peer's plain ones, if measured
    answers: int


@dataclass(frozen=True)
class PeersFound:
    """All rows, and why peers are missing."""

    rows: list[PeerRow]
    missing: list[str]
    options: PeerOptions


class Chosen(NamedTuple):
    """A peer in one of its modes, and its Python or program."""

    peer: Peer
    mode: str
    program: str


class Worker:
    """A peer's process; see workers/protocol.py."""

    def __init__(self, peer: Peer, mode: str, process: subprocess.Popen[str], log: IO[str]) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the worker was started without pipes")
        self.peer, self.mode, self.version = peer.name, mode, ""
        self._process, self._log = process, log
        self._stdin, self._stdout = process.stdin, process.stdout
        self._whole = psutil.Process(process.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Resume it inside the context, and pause it afterwards."""
        self.resume()
        try:
            yield
        finally:
            self.pause()

    def pause(self) -> None:
        """Stop the process and its children."""
        each(self._whole, psutil.Process.suspend)

    def resume(self) -> None:
        """Continue the process and its children."""
        each(self._whole, psutil.Process.resume)

    def ask(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Send one line and read one line."""
        self.send(value)
        return self.receive()

    def send(self, value: Mapping[str, Any]) -> None:
        """Write a line to the process. If it has ended, `receive` raises."""
        with suppress(BrokenPipeError):
            self._stdin.write(json.dumps(value) + "\n")
            self._stdin.flush()

    def receive(self) -> dict[str, Any]:
        """The next line from the process."""
        line = self._stdout.readline()
        answer = json.loads(line) if line else {"error": f"ended without an answer: {self._tail()}"}
        if "error" in answer:
            raise ServerError(
                f"{self.peer} ({self.mode}) failed: {answer['error']}; leave it out with --peer"
            )
        return dict(answer)

    def end(self) -> None:
        """Let the process end by itself, or else kill it."""
        self.resume()
        for stream in (self._stdin, self._stdout):
            with suppress(BrokenPipeError):  # unread input of an ended process
                stream.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tail(self) -> str:
        self._log.seek(0)
        return " ".join(self._log.read()[-300:].split())


def run_peers(target: Target, options: PeerOptions, progress: Progress = silent) -> PeersFound:
    """Load every installed peer in every mode, and measure all in alternation."""
    chosen, missing = choose_peers(options)
    prompts = _prompts(target, options)
    if len(prompts) < max(options.concurrency):
        raise DataError(
            f"{len(prompts)} prompts can't keep {max(options.concurrency)} requests in flight; raise --prompts "
            "or lower --concurrency"
        )
    context = max(len(one["ids"]) for one in prompts) + options.max_tokens + _MARGIN
    rows: list[PeerRow] = []
    # If we are ended or killed, stopped workers are continued, so that they find their input closed and end.
    with stopping_on_sigterm(), waking_at_our_end() as waker, ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for peer, mode, program in chosen:
            config = {
                "model": options.models.get(peer.name) or _model(peer, target),
                "head": options.drafts.get(peer.name, options.head),
                "mode": mode,
                "program": program,
                "max_batch": max(options.concurrency),
                "max_context": context,
            }
            worker = stack.enter_context(start_worker(peer, mode, program, config))
            waker.write(f"{worker.pid}\n")
            workers[f"{peer.name} {mode}"] = worker
        waker.flush()
        missing += _wait_until_loaded(workers)
        if not workers:
            raise ServerError(f"no engine to measure: {'; '.join(missing)}")
        missing += _measure(workers, prompts, options, rows, progress)
    if not rows:
        raise ServerError(f"no engine could be measured: {'; '.join(missing)}")
    return PeersFound(rows, missing, options)


def _model(peer: Peer, target: Target) -> str:
    """The target's own files, or for an engine that doesn't run its GGUF file what that holds."""
    return str(target.place if peer.module == "fledge" else expanded(str(target.place)))


def choose_peers(options: PeerOptions) -> tuple[list[Chosen], list[str]]:
    """The engines and modes to measure, and a line for each that can't be measured."""
    chosen, missing = [], []
    for peer in PEERS:
        if options.peers and peer.name not in options.peers:
            continue
        program = peer.find(options.programs)
        if program is None:
            missing.append(f"{peer.name}: not installed; {peer.install}, and give --program {peer.name}=PATH")
        elif peer.own_model and peer.name not in options.models:
            missing.append(
                f"{peer.name}: needs the weights in its own format; {peer.install}, and give --model {peer.name}=PATH"
            )
        else:
            for mode in _best_modes(peer, options):
                if mode == "eagle3" and peer.own_model and peer.name not in options.drafts:
                    missing.append(
                        f"{peer.name}: needs the head in its own format for eagle3; give --draft "
                        f"{peer.name}=PATH"
                    )
                    continue
                chosen.append(Chosen(peer, mode, program))
    return chosen, missing


def _best_modes(peer: Peer, options: PeerOptions) -> list[str]:
    """The requested modes, or else plain and the best speculation: the head if there is one, or n-grams."""
    has_head = (options.drafts.get(peer.name) or options.head) is not None
    modes = [mode for mode in peer.modes if mode != "eagle3" or has_head]
    if options.modes:
        return [mode for mode in modes if mode in options.modes]
    return [mode for mode in modes if mode != "ngram" or "eagle3" not in modes]


@contextmanager
def waking_at_our_end() -> Iterator[IO[str]]:
    """A stream for the process ids of workers to continue when this process is gone, even if killed."""
    script = str(_HERE / "waker.py")
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        if process.stdin is None:
            raise RuntimeError("the waker was started without a pipe")
        yield process.stdin


@contextmanager
def start_worker(peer: Peer, mode: str, program: str, config: Mapping[str, Any]) -> Iterator[Worker]:
    """Start a peer's process and send it its configuration; it runs in the peer's own Python, or in ours."""
    script = _HERE / "workers" / peer.worker
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable if peer.program else program, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        worker = Worker(peer, mode, process, log)
        try:
            worker.send(config)
            yield worker
        finally:
            worker.end()


def _wait_until_loaded(workers: dict[str, Worker]) -> list[str]:
    """Wait for all workers, which load concurrently. Failed ones are removed; their errors are returned."""
    errors = []
    for name, worker in list(workers.items()):
        try:
            worker.version = str(worker.receive()["ready"])
        except ServerError as error:
            del workers[name]
            errors.append(str(error))
    return errors


def _prompts(target: Target, options: PeerOptions) -> list[dict[str, Any]]:
    """Token ids for engines that accept them, and the same as text for the others."""
    workload = find_workload(options.workload).limited(options.prompts)
    warn_of_lengths(workload, options.max_tokens)
    every = workload.token_ids(target)
    return [{"ids": ids, "text": target.tokenizer.decode(ids)} for ids in every]


def _measure(
    workers: Mapping[str, Worker],
    prompts: Sequence[dict[str, Any]],
    options: PeerOptions,
    rows: list[PeerRow],
    progress: Progress,
) -> list[str]:
    """Fill `rows`. The rows of an engine that fails are removed, and its error is returned."""
    failed: dict[str, str] = {}
    for name, worker in workers.items():  # warm up: first calls compile, allocate and page in
        try:
            worker.ask({"prompts": prompts[:1], "max_tokens": 4})
        except ServerError as error:
            failed[name] = str(error)
        worker.pause()
    plain: dict[tuple[str, int], list[list[int]]] = {}  # answers of the plain mode, by peer and level
    for turn in interleaved(options.concurrency, list(workers), options.repeats):
        if turn.name in failed:
            continue
        try:
            with workers[turn.name].awake():
                row, tokens = _ask_level(
                    workers[turn.name], prompts, turn.level, turn.repeat, options.max_tokens
                )
        except ServerError as error:
            failed[turn.name] = str(error)
            continue
        if row.mode == "plain":
            plain.setdefault((row.peer, turn.level), tokens)
        same = {
            peer: sum(map(eq, tokens, answers))
            for (peer, level), answers in plain.items()
            if level == turn.level
        }
        rows.append(replace(row, identical=same.get("fledge"), own=same.get(row.peer)))
        progress(turn.number, turn.total, f"{turn.name}, {turn.level} at once: {row.throughput:.0f} tokens/s")
    rows[:] = [row for row in rows if f"{row.peer} {row.mode}" not in failed]
    return list(failed.values())


def _ask_level(
    worker: Worker, prompts: Sequence[dict[str, Any]], level: int, repeat: int, max_tokens: int
) -> tuple[PeerRow, list[list[int]]]:
    """Ask all prompts in groups of `level`; with one in flight, also each first token alone, for the TPOT."""
    tokens: list[list[int]] = []
    total = first = 0.0
    for start in range(0, len(prompts), level):
        group = prompts[start : start + level]
        if level == 1:
            first += worker.ask({"prompts": group, "max_tokens": 1})["seconds"]
        answer = worker.ask({"prompts": group, "max_tokens": max_tokens})
        total += answer["seconds"]
        tokens += answer["tokens"]
    count = sum(map(len, tokens))
    later = count - len(prompts)
    tpot = 1e3 * (total - first) / later if level == 1 and later > 0 else None
    return PeerRow(
        worker.peer, worker.mode, worker.version, level, repeat, tpot, count / total, None, None, len(prompts)
    ), tokens
