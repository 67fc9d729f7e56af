"""The servers of a load test: running ones by address, or ones that are started for it and stopped after it.

plain=http://localhost:8000                     runs already
eagle3=start:fledge serve --port {port}         started with a free port, awaited, and stopped
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from fledge.bench.load.client import model_name
from fledge.errors import ServerError

_POLL_S = 0.5
_STOP_S = 20.0


@dataclass(frozen=True)
class ServerSpec:
    """One server of a comparison. `command` starts it; without one it runs already at `url`."""

    name: str
    url: str | None = None
    command: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str, number: int = 0) -> ServerSpec:
        """`name=http://...`, `name=start:command ... {port}`, or just an address."""
        name, separator, place = text.partition("=")
        if not separator or name.startswith(("http://", "https://", "start:")):
            name, place = f"server{number + 1}" if number else "server", text
        if place.startswith(("http://", "https://")):
            return cls(name, place.rstrip("/").removesuffix("/v1"))
        if place.startswith("start:"):
            words = tuple(shlex.split(place.removeprefix("start:")))
            if not any("{port}" in word for word in words):
                raise ServerError(f"{text!r} doesn't say where the port goes; write {{port}} in the command")
            return cls(name, command=words)
        raise ServerError(
            f"{text!r} is no server; write name=http://host:port or name=start:command --port {{port}}"
        )


def parse_servers(texts: Sequence[str]) -> list[ServerSpec]:
    """All servers, the baseline first."""
    specs = [ServerSpec.parse(text, number) for number, text in enumerate(texts)]
    names = [spec.name for spec in specs]
    if not specs:
        raise ServerError("no server to measure; give --server name=http://host:port")
    if len(set(names)) != len(names):
        raise ServerError(f"two servers have the same name ({', '.join(names)}); give each its own")
    return specs


@asynccontextmanager
async def running(
    spec: ServerSpec, session: aiohttp.ClientSession, api_key: str | None, ready_s: float
) -> AsyncIterator[tuple[str, str]]:
    """The server's address and model while it runs."""
    if spec.url is not None:
        yield spec.url, await model_name(session, spec.url, api_key)
        return
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="fledge-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as output:
            process = _start(spec, port, output.fileno())
            try:
                yield url, await _await_ready(spec, session, url, process, log, api_key, ready_s)
            finally:
                _stop(process)


def _start(spec: ServerSpec, port: int, output: int) -> subprocess.Popen[bytes]:
    words = [word.replace("{port}", str(port)) for word in spec.command]
    try:
        # A session of its own: stopping it stops the workers it starts.
        return subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as error:
        raise ServerError(
            f"can't start {spec.name} ({error}); check the command {shlex.join(words)}"
        ) from error


async def _await_ready(
    spec: ServerSpec,
    session: aiohttp.ClientSession,
    url: str,
    process: subprocess.Popen[bytes],
    log: Path,
    api_key: str | None,
    ready_s: float,
) -> str:
    begin = time.monotonic()
    while True:
        if process.poll() is not None:
            raise ServerError(
                f"{spec.name} ended with code {process.returncode} before it was ready: {_tail(log)}; "
                "run its command by hand to see why"
            )
        try:
            return await model_name(session, url, api_key)
        except ServerError:
            if time.monotonic() - begin > ready_s:
                raise ServerError(
                    f"{spec.name} wasn't ready after {ready_s:.0f} s: {_tail(log)}; raise --ready-timeout"
                ) from None
        await asyncio.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the server and its workers to end, then end them."""
    for wanted in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            try:
                os.killpg(process.pid, wanted)
            except ProcessLookupError:
                break
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                continue
    process.wait()


def _tail(log: Path) -> str:
    text = log.read_text("utf-8", errors="replace").strip()
    return " ".join(text[-400:].split()) or "it printed nothing"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
