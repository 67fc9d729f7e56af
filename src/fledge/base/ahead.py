"""Work done ahead of its use, by threads: at most a few results wait, so memory is bounded.

items      i0  i1  i2  i3  i4 ...
worked on     [i1  i2]
used       i0
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
U = TypeVar("U")


def read_ahead(items: Iterable[T], read: Callable[[T], U], ahead: int, threads: int = 1) -> Iterator[U]:
    """`read` of every item in order, with up to `ahead` of them read in advance; 0: by the caller's own thread."""
    if ahead < 1:
        yield from map(read, items)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix="fledge-feed") as pool:
        yield from in_order(pool, read, items, ahead)


def in_order(pool: Executor, work: Callable[[T], U], items: Iterable[T], ahead: int) -> Iterator[U]:
    """`work` of every item in order, with up to `ahead` results in advance."""
    waiting: deque[Future[U]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
