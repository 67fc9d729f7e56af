"""The same work on many items in several processes."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_work: Callable[[Any], Any] | None = None  # of this process, if it is one of those


def map_in_processes(make: Callable[[], Callable[[T], U]], items: Iterable[T], processes: int) -> Iterator[U]:
    """`make()(item)` for each item, in order. Each process calls `make` once; few items are under way at a time."""
    context = multiprocessing.get_context("spawn")  # forking a process that runs threads can hang
    with context.Pool(processes, _start, (make,)) as pool:
        under_way: deque[Any] = deque()
        for item in items:
            under_way.append(pool.apply_async(_run, (item,)))
            if len(under_way) > 2 * processes:
                yield under_way.popleft().get()
        while under_way:
            yield under_way.popleft().get()


def _start(make: Callable[[], Callable[[Any], Any]]) -> None:
    global _work
    _work = make()


def _run(item: Any) -> Any:
    assert _work is not None  # the pool begins each process with _start
    return _work(item)
