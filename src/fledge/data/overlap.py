"""Prompts that were seen before: in the set itself, or in files kept for evaluation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from fledge.base.errors import DataError
from fledge.data.filters import words
from fledge.data.seeds import hash64
from fledge.data.sources.files import BadRow, FileRows
from fledge.data.sources.shapes import detect_shape, user_turns

_SKETCH = 16  # smallest 8-gram hashes kept per prompt: enough to tell half from none
_NEAR_GRAM = 8
_LONG_GRAM = 13  # the usual length for decontamination (GPT-3, arXiv 2005.14165, appendix C)
_SHORT_GRAM = 5  # texts of fewer words only count when equal


class RepeatIndex:
    """Finds exact and near repeats among the texts added so far.

    A text is a near repeat when at least `near` of its sketch (its 16 smallest hashes of 8 words in a row) was seen.
    """

    def __init__(self, near: float) -> None:
        self._near = near
        self._exact: set[int] = set()
        self._grams: set[int] = set()

    def reason(self, text: str) -> str | None:
        """`repeat`, `near_repeat` or None."""
        found = words(text)
        if _hash(found) in self._exact:
            return "repeat"
        sketch = _sketch(found)
        seen = sum(gram in self._grams for gram in sketch)
        return "near_repeat" if sketch and seen >= max(1.0, self._near * len(sketch)) else None

    def add(self, text: str) -> None:
        """Remember a text that stays."""
        found = words(text)
        self._exact.add(_hash(found))
        self._grams.update(_sketch(found))


class EvaluationIndex:
    """Finds prompts that share words with evaluation prompts.

    Overlap is any 13 words in a row; an evaluation prompt of 5 to 12 words that the text contains; a text of 5 to 12
    words that an evaluation prompt contains; or, below 5 words, the same words.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._whole: set[int] = set()
        self._short_lengths: set[int] = set()  # of evaluation prompts that are looked for inside a text
        self._grams: set[int] = set()  # every 5- to 13-gram: a short text may be part of a prompt
        # Every overlap of 5 words or more shares 5 words in a row; Python's own hash of them rules most texts out fast.
        self._first: set[int] = set()
        for text in texts:
            self._add(words(text))

    def __contains__(self, text: str) -> bool:
        found = words(text)
        if _hash(found) in self._whole:
            return True
        if self._first.isdisjoint(_fast_grams(found)):
            return False
        if _SHORT_GRAM <= len(found) < _LONG_GRAM and _hash(found) in self._grams:
            return True
        if any(gram in self._whole for length in self._short_lengths for gram in _grams(found, length)):
            return True
        return any(gram in self._grams for gram in _grams(found, _LONG_GRAM))

    def _add(self, found: Sequence[str]) -> None:
        if not found:
            return
        self._whole.add(_hash(found))
        if _SHORT_GRAM <= len(found) < _LONG_GRAM:
            self._short_lengths.add(len(found))
        self._first.update(_fast_grams(found))
        for length in range(_SHORT_GRAM, _LONG_GRAM + 1):
            self._grams.update(_grams(found, length))


def read_evaluation_texts(urls: Iterable[str]) -> list[str]:
    """All user turns of evaluation files: of every format and shape that sources may have.

    Raises:
        DataError: a file can't be found or read, or one of its rows gives no user turns.
    """
    return [text for url in urls for text in _read_file(url)]


def evaluation_indexes(urls: Iterable[str]) -> dict[str, EvaluationIndex]:
    """An index per evaluation file, by the file's name."""
    indexes: dict[str, EvaluationIndex] = {}
    for url in urls:
        name = unused_name(url.rstrip("/").rsplit("/", 1)[-1], indexes)
        indexes[name] = EvaluationIndex(_read_file(url))
    return indexes


def unused_name(name: str, taken: Collection[str]) -> str:
    """The name, or with a number behind it if it is taken."""
    if name not in taken:
        return name
    return next(f"{name}-{number}" for number in range(2, len(taken) + 3) if f"{name}-{number}" not in taken)


def _read_file(url: str) -> Iterator[str]:
    """A row that can't be read is an error here: what it asks would go into training unnoticed."""
    for number, row in enumerate(FileRows(url).rows(), start=1):
        if isinstance(row, BadRow):
            raise DataError(f"{url}, row {number} can't be read ({row.reason}); mend or remove it")
        found = user_turns(row, detect_shape([row]) or "prompt")
        if isinstance(found, str):
            raise DataError(
                f"{url}, row {number}: no user's turns ({found}); hold them in `turns`, `messages`, `prompt`, "
                "`question` or `text`"
            )
        yield from found.turns


def _sketch(found: Sequence[str]) -> list[int]:
    return sorted(set(_grams(found, _NEAR_GRAM)))[:_SKETCH]


def _grams(found: Sequence[str], length: int) -> Iterator[int]:
    return (_hash(found[start : start + length]) for start in range(len(found) - length + 1))


def _fast_grams(found: Sequence[str]) -> Iterator[int]:
    """Hashes of 5 words in a row that mean something within this process only."""
    return map(hash, zip(*(found[start:] for start in range(_SHORT_GRAM)), strict=False))


def _hash(found: Sequence[str]) -> int:
    return hash64(" ".join(found))
