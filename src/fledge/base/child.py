"""A temporary server process: a free port, its own process group, waiting until ready, and cleanup.

    with started(["fledge", "serve", "--port", str(port)], name="plain") as server:
        server.wait_until_ready(f"http://127.0.0.1:{port}/health", 600)
        ...

Whatever happens inside, including SIGTERM to ourselves, the server and its workers are ended. If we are killed, for
example by the OOM killer, a guard process ends them: it waits for the end of a pipe that we hold open.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import IO

from fledge.base.errors import ServerError

_POLL_S = 0.5
_PROBE_S = 5.0  # per readiness probe
_TERM_S, _KILL_S = 20.0, 10.0
_GUARD = """
import os, signal, sys, time
message = sys.stdin.read().split()  # returns when we are gone
if not message:
    sys.exit()
group, seconds = int(message[0]), float(message[1])
try:
    os.killpg(group, signal.SIGTERM)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        os.killpg(group, 0)
        time.sleep(0.1)
    os.killpg(group, signal.SIGKILL)
except ProcessLookupError:
    pass
"""


@dataclass(frozen=True)
class StartedServer:
    """A running process; `log` captures its output, or is None if that goes to our own output."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes] | None

    def wait_until_ready(self, url: str, seconds: float) -> None:
        """Return once `url` responds with success; a ServerError if the process ends or the time is up."""
        end = time.monotonic() + seconds
        while not _answers(url):
            code = self.process.poll()
            if code is not None:
                raise ServerError(
                    f"{self.name} ended with code {code} before it was ready{self._output()}; "
                    "run its command by hand to see why"
                )
            if time.monotonic() > end:
                raise ServerError(
                    f"{self.name} wasn't ready after {seconds:.0f} s{self._output()}; give it more time"
                )
            time.sleep(_POLL_S)

    def _output(self) -> str:
        if self.log is None:
            return " (its output is above)"
        self.log.seek(0)
        text = " ".join(self.log.read().decode(errors="replace")[-400:].split())
        return f": {text or 'it printed nothing'}"


@contextmanager
def started(
    command: Sequence[str],
    *,
    name: str,
    environment: Mapping[str, str] | None = None,
    quiet: bool = True,
    term_s: float = _TERM_S,
) -> Iterator[StartedServer]:
    """Run a command while the context is open. `quiet` keeps its output for error messages instead of showing it.

    It has `term_s` seconds to end after SIGTERM, then it is killed; a Ctrl-C meanwhile kills it at once.
    """
    with tempfile.TemporaryFile() as log, stopping_on_sigterm(), _guard() as guard:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log if quiet else None,
                stderr=subprocess.STDOUT if quiet else None,
                start_new_session=True,  # so that its workers can be stopped with it
            )
        except OSError as error:
            raise ServerError(
                f"can't start {name} ({error}); check the command {shlex.join(command)}"
            ) from error
        try:
            guard.write(f"{process.pid} {term_s}\n".encode())
            guard.flush()
            yield StartedServer(name, process, log if quiet else None)
        finally:
            _end(process, term_s)


@contextmanager
def _guard() -> Iterator[IO[bytes]]:
    """Pipe that takes the process group to end if we are killed, and the seconds that ending may take."""
    command = [sys.executable, "-I", "-S", "-c", _GUARD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        if process.stdin is None:
            raise RuntimeError("the guard was started without a pipe")
        try:
            yield process.stdin
        finally:
            process.kill()


def http_url(host: str, port: int) -> str:
    """The URL of a listening host and port; IPv6 needs brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def free_port() -> int:
    """A free port on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=_PROBE_S):
            return True
    except (OSError, ValueError):  # HTTP errors are OSErrors; ValueError: not HTTP
        return False


def stopping_on_sigterm() -> AbstractContextManager[None]:
    """Make SIGTERM unwind like Ctrl-C, so that child processes are ended before we are."""

    def stop() -> None:
        raise KeyboardInterrupt

    return on_sigterm(stop)


@contextmanager
def on_sigterm(action: Callable[[], None]) -> Iterator[None]:
    """Run `action` on SIGTERM instead of ending the process, if signals can be handled here."""
    if not _handles_signals():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _handles_signals() -> bool:
    return threading.current_thread() is threading.main_thread()


def _end(process: subprocess.Popen[bytes], term_s: float) -> None:
    """Ask the server and its workers to end, then kill them."""
    if _handles_signals():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end us before the server
    for number, seconds in ((signal.SIGTERM, term_s), (signal.SIGKILL, _KILL_S)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(seconds)
            return
