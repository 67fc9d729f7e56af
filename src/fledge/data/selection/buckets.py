"""Equal keys among millions of rows without holding them in memory: keys are bucketed into files, each sorted alone.

(key, row) ──► key % 64 ──► bucket files on disk ──► each sorted in memory ──► groups of equal keys, rows ascending
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BUCKETS = 64
_BUFFERED = 1 << 18  # entries buffered in memory; fewer are never written
_ENTRY = np.dtype([("key", "<u8"), ("row", "<i8")])


class Group(NamedTuple):
    """Ascending rows with the same key; at least two."""

    key: int
    rows: NDArray[np.int64]


class KeyBuckets:
    """Rows by key. Add all, then iterate over the groups."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._paths = [folder / f"{number:03d}" for number in range(_BUCKETS)]
        self._waiting: list[NDArray[np.void]] = []
        self._held = 0

    def add(self, keys: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        """Key i belongs to row i; both [n]."""
        entries = np.empty(len(keys), _ENTRY)
        entries["key"], entries["row"] = keys, rows
        self._waiting.append(entries)
        self._held += len(entries)
        if self._held >= _BUFFERED:
            self._flush()

    def groups(self) -> Iterator[Group]:
        """Every key that more than one row has."""
        for entries in self._buckets():
            entries = entries[np.lexsort((entries["row"], entries["key"]))]
            keys = entries["key"]
            starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
            ends = np.r_[starts[1:], len(keys)]
            for start, end in zip(starts[ends - starts > 1], ends[ends - starts > 1], strict=True):
                yield Group(int(keys[start]), entries["row"][start:end])

    def _buckets(self) -> Iterator[NDArray[np.void]]:
        if not any(path.exists() for path in self._paths):
            if self._waiting:
                yield np.concatenate(self._waiting)
            return
        self._flush()
        for path in self._paths:
            if path.exists():
                yield np.fromfile(path, _ENTRY)

    def _flush(self) -> None:
        entries = np.concatenate([np.empty(0, _ENTRY), *self._waiting])
        self._waiting, self._held = [], 0
        bucket = (entries["key"] % _BUCKETS).astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        entries, bucket = entries[order], bucket[order]
        borders = np.searchsorted(bucket, np.arange(_BUCKETS + 1))
        for number, path in enumerate(self._paths):
            part = entries[borders[number] : borders[number + 1]]
            if len(part):
                with open(path, "ab") as file:
                    part.tofile(file)
