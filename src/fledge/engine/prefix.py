"""Index of the pages that hold the KV of given tokens, so that a request may begin with pages that another filled.

The head's entry at position p is made of the feature g[p] and the *next* token x[p + 1]. So what a page holds in both
pools depends on all tokens up to one beyond its end, and that is what its key stands for:

    page_size 4     x0   x1 x2 x3 x4   x5 x6 x7 x8   x9 ...
    page 0 (0..3)   [------ key 0 ------]
    page 1 (4..7)           key 0  + [--- key 1 ---]           key j = hash(key j - 1, the tokens)

A request that finds its first j pages here has at least one token left to run, page j's first, whose forward gives it
the feature and the proposals a round starts from. Nothing of the head needs to be kept besides its pages, and the
target's and the head's states are those of a prefill from the start: a hit costs no acceptance.

Only full pages that are entirely committed are shared, and rounds write beyond the committed length only, so what
others read of a shared page is never written again. Pages the head hasn't written (`with_head` False), because the
request doesn't speculate or its head has fallen behind, serve requests that don't speculate; the others too, where
running them again for the head would cost more than it saves: their heads' histories begin behind (see
`drafters/eagle.py`).
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

from fledge.base.errors import EngineError
from fledge.engine.pool import PagePool
from fledge.engine.request import Request

_KEY_BYTES = 16  # of a cryptographic hash: collisions can't be constructed


class _Entry(NamedTuple):
    page: int
    with_head: bool


class Match(NamedTuple):
    """Pages a request may begin with."""

    pages: list[int]
    with_head: int  # how many of them, the first ones, the head has written


class PrefixCache:
    """Finds and shares full pages by the tokens they stand for; the pool evicts the least recently used."""

    def __init__(self, pool: PagePool, *, heads: bool) -> None:
        """`heads`: pages have a draft head's entries, too."""
        self._pool, self._heads = pool, heads
        self._entries: dict[bytes, _Entry] = {}
        self._key_of: dict[int, bytes] = {}  # by page
        pool.on_evict = self._forget

    def match(self, request: Request) -> Match:
        """The pages that hold the beginning of what a request has to prefill, its last token always left out."""
        pages: list[int] = []
        with_head = 0
        for key in self.keys(request):
            entry = self._entries.get(key)
            if entry is None:
                break
            with_head += entry.with_head and with_head == len(pages)
            pages.append(entry.page)
        return Match(pages, with_head)

    def keys(self, request: Request) -> list[bytes]:
        """Keys of the full pages of a request's prefill; its last token is always left out."""
        return self._keys(request, request.prefill_length)

    def insert(self, request: Request, written: int) -> None:
        """Offer a request's full pages to others; the target has written `written` indices.

        Where another request has offered the same tokens before, its page takes the place of this request's own, unless
        the head isn't done with that; so call this only while no page table on the device holds the request's pages, or
        never will again.
        """
        # The token after a page has to be known.
        keys = self._keys(request, min(written + 1, request.length))
        for number in range(request.shared_pages, len(keys)):
            key, page = keys[number], request.pages[number]
            entry = self._entries.get(key)
            with_head = not self._heads or (number + 1) * self._pool.page_size <= request.draft.written
            if entry is not None and (entry.with_head or not with_head):
                if with_head:
                    self._use_instead(request, number, entry.page)
                continue
            if entry is not None:  # the head's entries are what this page has and that one lacks
                del self._key_of[entry.page]
                self._pool.drop(entry.page)
            self._entries[key] = _Entry(page, with_head)
            self._key_of[page] = key
            self._pool.keep(page)
        request.shared_pages = max(request.shared_pages, len(keys))

    def clear(self) -> None:
        """Forget everything; the pool has been reset."""
        self._entries.clear()
        self._key_of.clear()

    def forget_heads(self) -> None:
        """Mark all pages as lacking the head's KV: another head drafts now."""
        self._entries = {
            key: entry._replace(with_head=not self._heads) for key, entry in self._entries.items()
        }

    def check(self) -> None:
        """Raise EngineError unless pages and keys belong to each other one to one."""
        if {entry.page: key for key, entry in self._entries.items()} != self._key_of:
            raise EngineError("the prefix cache's two records differ; report this as a bug of the engine")

    def _use_instead(self, request: Request, number: int, page: int) -> None:
        current = request.pages[number]
        if current == page:
            return
        swapped: list[int] = []
        self._pool.share(swapped, [page])
        self._pool.release([current])
        request.pages[number] = page

    def _keys(self, request: Request, tokens: int) -> list[bytes]:
        """Keys of the pages that are full when a request's first `tokens` tokens but the last are written."""
        size, keys = self._pool.page_size, request.page_keys
        full = max(tokens - 1, 0) // size
        for number in range(len(keys), full):
            start = number * size + 1 if number else 0
            token_bytes = np.array(request.context(start, (number + 1) * size + 1), dtype=np.int32).tobytes()
            parent = keys[-1] if keys else b""
            keys.append(hashlib.blake2b(parent + token_bytes, digest_size=_KEY_BYTES).digest())
        return keys[:full]

    def _forget(self, page: int) -> None:
        del self._entries[self._key_of.pop(page)]
