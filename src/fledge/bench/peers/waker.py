"""Wakes stopped engines once the benchmark is gone, so that they find their input closed and end.

Runs as a script beside the benchmark. Each line of its input is the process id of an engine. Its input ends when the
benchmark does, even if that is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import psutil


def each(engine: psutil.Process, call: Callable[[psutil.Process], None]) -> None:
    """`call` an engine's process and all that it started."""
    with suppress(psutil.NoSuchProcess):
        for one in (engine, *engine.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                call(one)


def main() -> None:
    """Wait for the end, then wake."""
    engines = []
    for line in sys.stdin:  # looked up now: later another process may have the number
        with suppress(psutil.NoSuchProcess):
            engines.append(psutil.Process(int(line)))
    for engine in engines:
        each(engine, psutil.Process.resume)


if __name__ == "__main__":
    main()
