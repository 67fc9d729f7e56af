"""A server that is started for a while: free port, process group of its own, awaited, and gone afterwards.

    with started(["fledge", "serve", "--port", str(port)], name="plain") as server:
        server.wait_until_ready(f"http://127.0.0.1:{port}/health", 600)
        ...

Whatever happens inside, SIGTERM to ourselves included, the server and the workers it started are ended. If we are
killed, as by a system out of memory, a guard ends them: a process that waits for the end of a pipe, which is our own.
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
_PROBE_S = 5.0  # for one answer while waiting
_TERM_S, _KILL_S = 20.0, 10.0
_GUARD = """
import os, signal, sys, time
told = sys.stdin.read().split()  # until we are gone
if not told:
    sys.exit()
group, seconds = int(told[0]), float(told[1])
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
    """A running process; `log` holds what it printed, or is None if that went to our own output."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes] | None

    def wait_until_ready(self, url: str, seconds: float, api_key: str | None = None) -> None:
        """Return once `url` answers with success; ServerError if the process ends or the time is over."""
        end = time.monotonic() + seconds
        while not _answers(url, api_key):
            code = self.process.poll()
            if code is not None:
                raise ServerError(
                    f"{self.name} ended with code {code} before it was ready{self._told()}; "
                    "run its command by hand to see why"
                )
            if time.monotonic() > end:
                raise ServerError(
                    f"{self.name} wasn't ready after {seconds:.0f} s{self._told()}; give it more time"
                )
            time.sleep(_POLL_S)

    def _told(self) -> str:
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
    """Run a command while it is needed. `quiet` keeps its output for error messages instead of showing it.

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
                start_new_session=True,  # stopping it stops the workers it starts
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
    """Where to write the process group that is to end if we are killed, and how long it may take."""
    command = [sys.executable, "-I", "-S", "-c", _GUARD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        if process.stdin is None:
            raise RuntimeError("the guard was started without a pipe")
        try:
            yield process.stdin
        finally:
            process.kill()


def http_url(host: str, port: int) -> str:
    """The address of what listens there; IPv6 wants brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str, api_key: str | None) -> bool:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_PROBE_S):
            return True
    except (OSError, ValueError):  # HTTP errors are OSErrors; ValueError: no HTTP at all
        return False


def stopping_on_sigterm() -> AbstractContextManager[None]:
    """SIGTERM unwinds like Ctrl-C, so that what we started is ended before we are."""

    def stop() -> None:
        raise KeyboardInterrupt

    return on_sigterm(stop)


@contextmanager
def on_sigterm(action: Callable[[], None]) -> Iterator[None]:
    """SIGTERM does this instead of ending the process, where signals can be handled at all."""
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
    """Ask the server and its workers to end, then end them."""
    if _handles_signals():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not end us before the server
    for number, seconds in ((signal.SIGTERM, term_s), (signal.SIGKILL, _KILL_S)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(seconds)
            return
