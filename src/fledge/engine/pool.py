"""Who owns which page of the KV pool.

A page holds `page_size` consecutive KV indices of one request, in the target's pool and in the head's alike: both
use the same page numbers, so one allocation serves both.

    request's pages   [ 7 ][ 2 ][ 9 ]            page 0 belongs to nobody: unused page-table
    KV index           0..  16.. 32..47          entries and padding rows point at it
                       committed | window        reserve() keeps one window beyond the committed length
"""

from __future__ import annotations

from collections.abc import Iterable

from fledge.errors import EngineError

PADDING_PAGE = 0


class PagePool:
    """A free list of pages. Requests keep their own page lists; the pool knows which pages are out."""

    def __init__(self, pages: int, page_size: int) -> None:
        if pages < 2:
            raise EngineError(f"a KV pool of {pages} pages holds nothing; give the engine more kv_tokens")
        self.pages = pages
        self.page_size = page_size
        self.reset()

    def reset(self) -> None:
        """All pages free, as at the start; owners' lists mean nothing afterwards."""
        self._free = list(range(self.pages - 1, PADDING_PAGE, -1))  # used as a stack: warm pages go out first
        self._out = bytearray(self.pages)
        self._out[PADDING_PAGE] = 1

    @property
    def free_pages(self) -> int:
        """Pages nobody owns."""
        return len(self._free)

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
        if missing > len(self._free):
            return False
        for _ in range(missing):
            page = self._free.pop()
            self._out[page] = 1
            owned.append(page)
        return True

    def release(self, owned: list[int]) -> None:
        """Give all of `owned` back, leaving the list empty."""
        for page in reversed(owned):
            if page == PADDING_PAGE or not self._out[page]:
                raise EngineError(f"KV page {page} was given back twice; report this as a bug of the engine")
            self._out[page] = 0
            self._free.append(page)
        owned.clear()

    def check(self, owners: Iterable[list[int]] = ()) -> None:
        """Raise EngineError unless every page is either free or in exactly one owner's list."""
        seen = bytearray(self.pages)
        seen[PADDING_PAGE] = 1
        for page in [page for owned in owners for page in owned] + self._free:
            if seen[page]:
                raise EngineError(f"KV page {page} has two owners; report this as a bug of the engine")
            seen[page] = 1
        lost = seen.count(0)
        if lost:
            raise EngineError(
                f"{lost} KV pages have no owner and aren't free; report this as a bug of the engine"
            )
        if self._out.count(0) != len(self._free):
            raise EngineError(
                "the KV pool's record of pages in use is wrong; report this as a bug of the engine"
            )
