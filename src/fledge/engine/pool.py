"""Ownership of the KV pool's pages.

A page holds `page_size` consecutive KV indices, in the target's pool and in the head's alike: both use the same page
numbers, so one allocation serves both. Requests whose tokens begin alike may share their first pages.

    request's pages   [ 7 ][ 2 ][ 9 ]            page 0 belongs to no request: unused page-table
    KV index           0..  16.. 32..47          entries and padding rows point at it
                       committed | window        reserve() keeps one window beyond the committed length

    free --reserve--> in use --release--> free, or idle if its contents are to be kept
                        ^-----share------ idle --reserve, when nothing is free: the oldest is evicted--> in use
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fledge.base.errors import EngineError
from fledge.target.batch import PADDING_PAGE


class PagePool:
    """Counts how many requests use each page. Requests keep their own page lists."""

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 2:
            raise EngineError(f"a KV pool of {pages} pages holds nothing; give the engine more kv_tokens")
        self.pages = pages
        self.page_size = page_size
        self.evictions = 0
        self.on_evict: Callable[[int], None] | None = None  # called with a page before it is dropped
        self.reset()

    def reset(self) -> None:
        """All pages free and empty, as at the start; owners' lists mean nothing afterwards."""
        self._free = list(range(self.pages - 1, PADDING_PAGE, -1))  # used as a stack: warm pages go out first
        self._users = [0] * self.pages
        self._kept = bytearray(self.pages)  # 1: worth keeping once it is unused
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept but unused; the one to evict first

    @property
    def free_pages(self) -> int:
        """Unused pages, idle ones included."""
        return len(self._free) + len(self._idle)

    @property
    def idle_pages(self) -> int:
        """Unused pages whose contents are kept until the room is needed."""
        return len(self._idle)

    @property
    def usable_tokens(self) -> int:
        """Tokens a single request could hold with the pool to itself."""
        return (self.pages - 1) * self.page_size

    def pages_for(self, tokens: int) -> int:
        """Pages that hold `tokens` KV indices."""
        return -(-tokens // self.page_size)

    def reserve(self, owned: list[int], tokens: int) -> bool:
        """Append pages to `owned` until they hold `tokens` indices; False, and no change, if too few are free."""
        missing = self.pages_for(tokens) - len(owned)
        if missing > self.free_pages:
            return False
        for _ in range(missing):
            page = self._free.pop() if self._free else self._evict()
            self._users[page] = 1
            owned.append(page)
        return True

    def share(self, owned: list[int], pages: Sequence[int]) -> None:
        """Append pages that are in use or idle already to `owned`."""
        for page in pages:
            if not self._users[page] and page not in self._idle:
                raise EngineError(
                    f"KV page {page} holds nothing to share; report this as a bug of the engine"
                )
            self._idle.pop(page, None)
            self._users[page] += 1
            owned.append(page)

    def release(self, owned: list[int]) -> None:
        """Stop using all of `owned`, leaving the list empty. Of pages to be kept, the last is evicted first."""
        for page in reversed(owned):
            if page == PADDING_PAGE or not self._users[page]:
                raise EngineError(f"KV page {page} was given back twice; report this as a bug of the engine")
            self._users[page] -= 1
            if self._users[page]:
                continue
            if self._kept[page]:
                self._idle[page] = None
            else:
                self._free.append(page)
        owned.clear()

    def idle(self, pages: Iterable[int]) -> int:
        """Number of these pages that are unused now."""
        return sum(not self._users[page] for page in pages)

    def keep(self, page: int) -> None:
        """The contents of a page in use stay when its last user gives it back."""
        self._kept[page] = 1

    def drop(self, page: int) -> None:
        """The contents of this page aren't wanted any more."""
        self._kept[page] = 0
        if page in self._idle:
            del self._idle[page]
            self._free.append(page)

    def check(self, owners: Iterable[list[int]] = ()) -> None:
        """Raise EngineError unless every page is free, idle, or in exactly as many owners' lists as it has users."""
        listed = np.array([page for owned in owners for page in owned], dtype=np.int64)
        counts = np.bincount(listed, minlength=self.pages)
        users = np.array(self._users)
        wrong = np.flatnonzero(counts > users)
        if len(wrong):
            raise EngineError(
                f"KV page {wrong[0]} has more owners than it was given to; report this as a bug of the engine"
            )
        unused = np.bincount(np.array([*self._free, *self._idle], dtype=np.int64), minlength=self.pages)
        lost = (users > counts) | (counts + unused == 0)
        lost[PADDING_PAGE] = False
        if lost.any():
            raise EngineError(
                f"{lost.sum()} KV pages have no owner and aren't free; report this as a bug of the engine"
            )
        unkept = [page for page in self._idle if not self._kept[page]]
        if unused[PADDING_PAGE] or counts[PADDING_PAGE] or (unused + (counts > 0) > 1).any() or unkept:
            raise EngineError(
                "the KV pool's record of pages in use is wrong; report this as a bug of the engine"
            )

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self._kept[page] = 0
        self.evictions += 1
        if self.on_evict is not None:
            self.on_evict(page)
        return page
