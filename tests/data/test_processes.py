"""Work in several processes: an error in one, or its end, reaches who waits for the results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from fledge.base.errors import DataError
from fledge.data.processes import map_in_processes
from tests.base.test_child import gone, wait_for


def unmakeable() -> Callable[[int], int]:
    raise DataError("the model isn't installed; install it")


def dying() -> Callable[[int], int]:
    return lambda item: os.kill(os.getpid(), signal.SIGKILL) if item == 3 else item  # type: ignore[return-value]


def test_an_error_while_the_work_is_prepared_is_told_rather_than_tried_for_ever() -> None:
    with pytest.raises(DataError, match="isn't installed"):
        list(map_in_processes(unmakeable, range(20), 1))


def test_a_killed_process_ends_the_stage_rather_than_being_waited_for() -> None:
    with pytest.raises(DataError, match=r"killed.*privacy\.processes"):
        list(map_in_processes(dying, range(20), 1))


def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, time
            from fledge.data.processes import map_in_processes

            def identify(item):
                time.sleep(0.05)
                return os.getpid()

            def make():
                return identify

            if __name__ == "__main__":
                for process in map_in_processes(make, range(10**6), 1):
                    print(process, flush=True)
            """
        )
    )
    command = [sys.executable, str(script)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert parent.stdout is not None
    process = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: gone(process))
