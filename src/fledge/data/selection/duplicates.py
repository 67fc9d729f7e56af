"""Duplicates among millions of prompts: exact ones, prefixes of others, and near ones by MinHash LSH.

A request log contains a conversation once per request, each time a turn longer; only the longest is kept (`continued`).
Near duplicates: MinHash (Broder 1997) over word trigrams from rensa, banded (Leskovec et al., Mining of Massive
Datasets, ch. 3); two prompts that share a band are compared by their whole signatures. Prompts with different system
prompts or tools are never duplicates.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fledge.data.filters import words
from fledge.data.prompt_store import TrainingPrompt
from fledge.data.seeds import hash64
from fledge.data.selection.buckets import KeyBuckets

_PERMUTATIONS = 64  # hashes per MinHash signature
_SEED = 1
_GRAM = 3  # words
_FEW = 0.6  # below this similarity, bands of two rows; above it four are enough and cheaper

KEPT, REPEAT, CONTINUED, NEAR_REPEAT = 0, 1, 2, 3
REASONS = {REPEAT: "repeat", CONTINUED: "continued", NEAR_REPEAT: "near_repeat"}


class DuplicateFinder:
    """Add prompts in order, then call `verdicts`. Keys are stored on disk; one byte per row is held in memory."""

    def __init__(self, folder: Path, near: float) -> None:
        """`near`: Jaccard similarity of trigrams from which two prompts are duplicates; 1 turns this off."""
        self._near = near
        self._band = 4 if near >= _FEW else 2
        self._exact = KeyBuckets(folder / "exact")
        self._bands = KeyBuckets(folder / "bands")
        self._signatures = folder / "signatures"
        self._signature_file = open(self._signatures, "wb")  # noqa: SIM115 (closed by verdicts)
        self.rows = 0

    def add(self, prompts: Sequence[TrainingPrompt]) -> None:
        """Add the next prompts, identified by their turns, system prompt and tools."""
        keys: list[int] = []
        rows: list[int] = []
        for number, prompt in enumerate(prompts):
            folded = [" ".join(words(turn)) for turn in prompt.turns]
            row = 2 * (self.rows + number)
            for length in range(1, len(folded) + 1):
                keys.append(hash64("\x1f".join(prompt.context), *folded[:length]))
                rows.append(row + (length == len(folded)))  # odd: the whole conversation
        self._exact.add(np.array(keys, np.uint64), np.array(rows, np.int64))
        if self._near < 1.0:
            self._add_signatures(prompts)
        self.rows += len(prompts)

    def verdicts(self) -> NDArray[np.uint8]:
        """KEPT, REPEAT, CONTINUED or NEAR_REPEAT for each row, [rows]."""
        self._signature_file.close()
        verdicts = np.zeros(self.rows, np.uint8)
        for _, marked in self._exact.groups():
            complete = marked[marked % 2 == 1] // 2
            if len(complete) < len(marked):
                verdicts[complete] = CONTINUED
            else:
                verdicts[complete[1:]] = REPEAT
        # A conversation continued in a repeat of a longer one is also continued in the one that is kept.
        exact = verdicts != KEPT
        if self._near < 1.0:
            with open(self._signatures, "rb") as file:
                for _, rows in self._bands.groups():
                    self._compare(rows[~exact[rows]], verdicts, file.fileno())
        return verdicts

    def _compare(self, rows: NDArray[np.int64], verdicts: NDArray[np.uint8], file: int) -> None:
        """Mark the rows of one band that are similar to its first."""
        later = rows[1:][verdicts[rows[1:]] == KEPT]
        if not len(later):
            return
        first = self._signature(file, int(rows[0]))
        for row in later:
            if (self._signature(file, int(row)) == first).mean() >= self._near:
                verdicts[row] = NEAR_REPEAT

    def _signature(self, file: int, row: int) -> NDArray[np.uint32]:
        size = 4 * _PERMUTATIONS
        return np.frombuffer(os.pread(file, size, row * size), np.uint32)

    def _add_signatures(self, prompts: Sequence[TrainingPrompt]) -> None:
        grams = [_grams(words("\n".join(prompt.turns))) for prompt in prompts]
        if not grams:
            return
        import rensa  # of the data extra

        matrix = rensa.RMinHash.digest_matrix_from_token_sets(grams, _PERMUTATIONS, _SEED)
        signatures = np.array(matrix.to_rows(), np.uint32)  # [n, permutations]
        signatures.tofile(self._signature_file)
        bands = signatures.reshape(len(signatures), -1, self._band)  # [n, bands, rows of a band]
        rows = np.arange(self.rows, self.rows + len(signatures))
        # Prompts with different system prompts or tools share no key, and so are never compared.
        systems = np.array([hash64(*p.context) if p.context else 0 for p in prompts], np.uint64)
        for number in range(bands.shape[1]):
            self._bands.add(_mix(bands[:, number], number) ^ systems, rows)


def _grams(text_words: Sequence[str]) -> list[str]:
    if len(text_words) <= _GRAM:
        return [" ".join(text_words)]
    return [" ".join(gram) for gram in zip(text_words, text_words[1:], text_words[2:], strict=False)]


def _mix(band: NDArray[np.uint32], number: int) -> NDArray[np.uint64]:
    """One 64-bit key per row from a band's values, [n, k] -> [n]. Multiplication wraps around on purpose."""
    key = np.full(len(band), number + 1, np.uint64)
    for column in band.T:
        key = (key ^ column.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        key ^= key >> np.uint64(29)
    return key
