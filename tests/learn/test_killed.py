"""A server that learns, killed at any moment: the next one begins with a whole version, and no process is left."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fledge.learn import Versions
from tests.learn.planted import PLANTED, assert_none_holds, files_below
from tests.learn.test_learning import alive, until

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.kernels
def test_whenever_it_is_killed_the_versions_are_whole(tiny_target_folder: Path, tmp_path: Path) -> None:
    rng, versions, served = random.Random(0), Versions(tmp_path / "learned"), 0
    for _ in range(20):
        command = [
            sys.executable,
            "-m",
            "tests.learn.killed_server",
            str(tiny_target_folder),
            str(versions.folder),
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True) as server:
            assert server.stdout is not None
            process, begun_with = map(int, server.stdout.readline().split())
            assert begun_with >= served
            if not served:
                until(lambda: versions.to_serve(), lambda: None)
            time.sleep(rng.uniform(0, 10))
            server.send_signal(signal.SIGKILL)
            server.wait()
        until(lambda process=process: not alive(process), lambda: None, 60)
        assert_none_holds(files_below(tmp_path), PLANTED)
        served = versions.to_serve() or 0
        for card in versions.cards():
            versions.load(card.number)
    assert served
