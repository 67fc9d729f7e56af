"""Servers started for a while: awaited, told apart from dead ones, and gone afterwards with their workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

from fledge.base.child import free_port, started
from fledge.base.errors import ServerError

# A server that starts a worker, as engines do, and names it in a file.
WITH_WORKER = """
import subprocess, sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[2], "w").write(str(worker.pid))
HTTPServer(("127.0.0.1", int(sys.argv[1])), SimpleHTTPRequestHandler).serve_forever()
"""


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie nobody waited for has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(happened: object, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not happened():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_server_is_awaited_and_ends_with_its_workers(tmp_path: Path) -> None:
    port, note = free_port(), tmp_path / "worker"
    url = f"http://127.0.0.1:{port}/"
    with started([sys.executable, "-c", WITH_WORKER, str(port), str(note)], name="one") as server:
        server.wait_until_ready(url, 30)
        assert urllib.request.urlopen(url).status == 200
        worker = int(note.read_text())
        assert not gone(worker)
    assert server.process.returncode is not None
    wait_for(lambda: gone(worker))
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


def test_a_server_ends_with_its_workers_when_we_are_killed(tmp_path: Path) -> None:
    port, note = free_port(), tmp_path / "worker"
    command = [sys.executable, "-c", WITH_WORKER, str(port), str(note)]
    script = (
        "import time\nfrom fledge.base.child import started\n"
        f"with started({command!r}, name='one') as server:\n    print(server.process.pid, flush=True)\n"
        f"    server.wait_until_ready('http://127.0.0.1:{port}/', 30)\n    print('ready', flush=True)\n"
        "    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        server = int(killed.stdout.readline())
        assert killed.stdout.readline() == "ready\n"
        killed.kill()
    wait_for(lambda: gone(server) and gone(int(note.read_text())))


def test_a_dead_or_slow_server_says_what_it_printed() -> None:
    dead = [sys.executable, "-c", "print('no such head'); exit(3)"]
    with (
        started(dead, name="dead") as server,
        pytest.raises(ServerError, match=r"dead ended with code 3 .*: no such head;"),
    ):
        server.wait_until_ready("http://127.0.0.1:9/", 30)
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        started(slow, name="slow") as server,
        pytest.raises(ServerError, match=r"slow wasn't ready after 0 s: it printed nothing"),
    ):
        server.wait_until_ready("http://127.0.0.1:9/", 0.2)
    with (
        pytest.raises(ServerError, match=r"can't start none .*check the command /no/such"),
        started(["/no/such"], name="none"),
    ):
        pass


@pytest.mark.parametrize(
    ("signals", "seconds"),
    [
        ((signal.SIGTERM, signal.SIGTERM), 2.0),  # the server doesn't listen: killed after this
        ((signal.SIGINT, signal.SIGINT), 600.0),  # ... or when Ctrl-C comes again
    ],
)
def test_a_signal_to_us_ends_the_server_first_even_if_it_comes_twice(
    tmp_path: Path, signals: tuple[signal.Signals, signal.Signals], seconds: float
) -> None:
    note = tmp_path / "pid"
    ours = textwrap.dedent(f"""
        import signal, sys, time
        from fledge.base.child import started
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
        deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        deaf += "print(1, flush=True); time.sleep(600)"
        with started([sys.executable, "-c", deaf], name="deaf", term_s={seconds}) as server:
            while not server.log.tell():
                server.log.seek(0, 2)
                time.sleep(0.05)
            open({str(note)!r}, "w").write(str(server.process.pid))
            time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", ours], stderr=subprocess.DEVNULL)
    wait_for(lambda: note.exists() and note.read_text())
    child = int(note.read_text())
    assert not gone(child)
    os.kill(process.pid, signals[0])
    time.sleep(0.5)
    os.kill(process.pid, signals[1])
    assert process.wait(30) != 0
    assert gone(child)
