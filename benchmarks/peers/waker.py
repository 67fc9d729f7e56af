"""Continues stopped engines when the benchmark is gone, so that they find their input closed and end.

Runs as a script beside the benchmark. Each line of its input is the process id of an engine. Its input ends with the
benchmark, even if that is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

import psutil


def each(engine: psutil.Process, call: Callable[[psutil.Process], None]) -> None:
    """`call` an engine's process and its children."""
    with suppress(psutil.NoSuchProcess):
        for one in (engine, *engine.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                call(one)


def main() -> None:
    """Wait for the end of input, then continue the engines."""
    engines = []
    for line in sys.stdin:  # looked up now: the id may be reused later
        with suppress(psutil.NoSuchProcess):
            engines.append(psutil.Process(int(line)))
    for engine in engines:
        each(engine, psutil.Process.resume)


if __name__ == "__main__":
    main()
