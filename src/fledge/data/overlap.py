"""Prompts seen before: in the set itself, or in evaluation files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

from fledge.base.errors import DataError
from fledge.data.filters import words
from fledge.data.seeds import hash64
from fledge.data.sources.files import BadRow, FileRows
from fledge.data.sources.shapes import detect_shape, user_turns

_SKETCH = 16  # smallest 8-gram hashes kept per prompt: enough to tell half from none
_NEAR_GRAM = 8  # words
_LONG_GRAM = 13  # the usual length for decontamination (GPT-3, arXiv 2005.14165, appendix C)
_SHORT_GRAM = 5  # shorter texts only match if equal


class RepeatIndex:
    """Finds exact and near repeats among the texts added so far.

    A text is a near repeat if at least `near` of its sketch (its 16 smallest hashes of 8 consecutive words) was seen.
    """

    def __init__(self, near: float) -> None:
        self._near = near
        self._exact: set[int] = set()
        self._grams: set[int] = set()

    def reason(self, text: str) -> str | None:
        """`repeat`, `near_repeat` or None."""
        text_words = words(text)
        if _hash(text_words) in self._exact:
            return "repeat"
        sketch = _sketch(text_words)
        seen = sum(gram in self._grams for gram in sketch)
        return "near_repeat" if sketch and seen >= max(1.0, self._near * len(sketch)) else None

    def add(self, text: str) -> None:
        """Add an accepted text."""
        text_words = words(text)
        self._exact.add(_hash(text_words))
        self._grams.update(_sketch(text_words))


class EvaluationIndex:
    """Finds prompts that share words with evaluation prompts.

    Overlap is any 13 consecutive words; an evaluation prompt of 5 to 12 words that the text contains; a text of 5 to 12
    words that an evaluation prompt contains; or, below 5 words, the same words.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._whole: set[int] = set()
        self._short_lengths: set[int] = set()  # of evaluation prompts that are searched for inside a text
        # Every overlap of 5 words or more shares 5 consecutive words; Python's own hash rules out most texts quickly.
        self._first: set[int] = set()
        self._texts = [found for text in texts if (found := words(text))]
        for text_words in self._texts:
            self._whole.add(_hash(text_words))
            if _SHORT_GRAM <= len(text_words) < _LONG_GRAM:
                self._short_lengths.add(len(text_words))
            self._first.update(_fast_grams(text_words))

    def __contains__(self, text: str) -> bool:
        text_words = words(text)
        if _hash(text_words) in self._whole:
            return True
        if self._first.isdisjoint(_fast_grams(text_words)):
            return False
        if _SHORT_GRAM <= len(text_words) < _LONG_GRAM and _hash(text_words) in self._grams:
            return True
        if any(gram in self._whole for length in self._short_lengths for gram in _grams(text_words, length)):
            return True
        return any(gram in self._grams for gram in _grams(text_words, _LONG_GRAM))

    @cached_property
    def _grams(self) -> set[int]:
        """Every 5- to 13-gram, since a short text may be part of a prompt; made once a text shares 5 words."""
        lengths = range(_SHORT_GRAM, _LONG_GRAM + 1)
        return {gram for found in self._texts for length in lengths for gram in _grams(found, length)}


def read_evaluation_texts(urls: Iterable[str]) -> list[str]:
    """All user turns of evaluation files, which may have any format and shape that sources may have.

    Raises:
        DataError: a file can't be found or read, or one of its rows gives no user turns.
    """
    return [text for url in urls for text in _read_file(url)]


def evaluation_indexes(urls: Iterable[str]) -> dict[str, EvaluationIndex]:
    """An index per evaluation file, keyed by the file's name."""
    indexes: dict[str, EvaluationIndex] = {}
    for url in urls:
        name = unused_name(url.rstrip("/").rsplit("/", 1)[-1], indexes)
        indexes[name] = EvaluationIndex(_read_file(url))
    return indexes


def unused_name(name: str, taken: Collection[str]) -> str:
    """The name, with a number appended if it is taken."""
    if name not in taken:
        return name
    return next(f"{name}-{number}" for number in range(2, len(taken) + 3) if f"{name}-{number}" not in taken)


def _read_file(url: str) -> Iterator[str]:
    """Unlike in sources, an unreadable row is an error: its prompt would go into training unnoticed."""
    for number, row in enumerate(FileRows(url).rows(), start=1):
        if isinstance(row, BadRow):
            raise DataError(f"{url}, row {number} can't be read ({row.reason}); fix or remove it")
        parsed = user_turns(row, detect_shape([row]) or "prompt")
        if isinstance(parsed, str):
            raise DataError(
                f"{url}, row {number}: no user turns ({parsed}); put them in `turns`, `messages`, `prompt`, "
                "`question` or `text`"
            )
        yield from parsed.turns


def _sketch(text_words: Sequence[str]) -> list[int]:
    return sorted(set(_grams(text_words, _NEAR_GRAM)))[:_SKETCH]


def _grams(text_words: Sequence[str], length: int) -> Iterator[int]:
    return (_hash(text_words[start : start + length]) for start in range(len(text_words) - length + 1))


def _fast_grams(text_words: Sequence[str]) -> Iterator[int]:
    """Hashes of 5 consecutive words, valid within this process only."""
    return map(hash, zip(*(text_words[start:] for start in range(_SHORT_GRAM)), strict=False))


def _hash(text_words: Sequence[str]) -> int:
    return hash64(" ".join(text_words))
