"""The same work on many items in several processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any, TypeVar

from fledge.base.ahead import in_order
from fledge.base.errors import DataError

T = TypeVar("T")
U = TypeVar("U")

_make: Callable[[], Callable[[Any], Any]]  # in each of the processes


def map_in_processes(make: Callable[[], Callable[[T], U]], items: Iterable[T], processes: int) -> Iterator[U]:
    """`make()(item)` for each item, in order. Each process calls `make` once; few items are under way at a time."""
    context = multiprocessing.get_context("spawn")  # forking a process that runs threads can hang
    pool = ProcessPoolExecutor(processes, context, _start, (make,))
    try:
        yield from in_order(pool, _run, items, 2 * processes)
    except BrokenProcessPool as error:
        raise DataError(
            "one of the processes was killed, usually for lack of memory; use fewer (privacy.processes), and run "
            "again to resume"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(make: Callable[[], Callable[[Any], Any]]) -> None:
    global _make
    _make = make
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent can't stop its processes, and the pool's processes wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _work() -> Callable[[Any], Any]:
    """Built with the first item: an error then reaches the caller waiting for it; in `_start` it would be lost."""
    return _make()


def _run(item: Any) -> Any:
    return _work()(item)
