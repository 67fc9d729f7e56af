"""The words that name a kind of number (`words/labels.txt`), searched for in texts and in field names.

The same words name fields of JSON, YAML, SQL and CSV: "taxId" is read as "tax id".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from fledge.data.privacy.word_lists import read_lines, read_sections

OTHER = "OTHER"  # not personal: orders, invoices, versions, books
NUMBER = "NUMBER"  # "the number is": of whatever was mentioned last, a document or a telephone
_NO = r"(?:[\s_-]?(?:numbers?|num\b\.?|nbr\b\.?|no\b\.?|nr\b\.?|n\.?[º°o]\b?\.?|n[º°]|nummern?|numero|id\b(?!-\w)|#))?"


class Label(NamedTuple):
    """Words that name a kind of value, and the form such a value must have."""

    entity: str
    words: tuple[str, ...]
    value: re.Pattern[str]  # pattern of the value's letters and digits
    context: re.Pattern[str] | None  # must occur in the text (in lower case, without accents)


# A number follows at once, or after up to three words and a link, or it is the name of a field: "agencia do Itau: 1234".
_LINKS = r"(?:n[°º.o]|num\w*|nr|[:#,(]|e\b|es\b|est\b|ist\b|is\b)"
_NUMBERED = rf"(?=\s?{_LINKS}?\s?\(?\d|(?:\s\w+){{1,3}}\s?{_LINKS}\s?\d|$)"


def _read() -> Iterator[Label]:
    lines = read_lines("labels")
    starts = [number for number, line in enumerate(lines) if line[0] == "["]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        entity, value = lines[start][1:].split("] ", 1)
        near = lines[start + 1].removeprefix("near: ")
        first = start + 1 + (near != lines[start + 1])
        words = [
            word.replace("{numbered}", _NUMBERED) for line in lines[first:end] for word in line.split("  ")
        ]
        context = re.compile(near) if first > start + 1 else None
        yield Label(entity, tuple(words), re.compile(value), context)


LABELS = tuple(_read())


_ACCENTS = str.maketrans("àáâãäåçèéêëìíîïñòóôõöùúûüýÿ’", "aaaaaaceeeeiiiinooooouuuuyy'")


@lru_cache(maxsize=8)
def fold(lower: str) -> str:
    """Lower-case text without accents, which people leave out, with the same length."""
    return lower if lower.isascii() else lower.translate(_ACCENTS)


def _compiled() -> re.Pattern[str]:
    """One regular expression for all rows. Alternatives are grouped by their first letter, so most are never tried."""
    filed: dict[str, dict[int, list[str]]] = {}
    for row, branch in _branches():
        filed.setdefault(branch[0], {}).setdefault(row, []).append(branch[1:])
    letters = []
    for letter, rows in sorted(filed.items()):
        inner = "|".join(
            rf"(?P<{letter}{row}>(?:{'|'.join(rest)}){_NO if LABELS[row].entity != NUMBER else ''})"
            for row, rest in rows.items()
        )
        letters.append(f"{letter}(?:{inner})")
    pattern = "|".join(letters).replace(r"\b", r"(?![^\W_])")
    pattern = re.sub(r"(?<=[\w)?}*]) (?=[\w(])", r"[\\s_-]", pattern)
    return re.compile(
        rf"(?<![^\W_])(?<!@)(?:{pattern})(?!\w*(?:@|\.[a-z])|_(?:type|count|rate|status|hash|len|format|name|date))"
    )


def _branches() -> Iterator[tuple[int, str]]:
    """The words, each with the number of its row; acronyms also with full stops (N.I.F.)."""
    for row, label in enumerate(LABELS):
        for word in label.words:
            yield row, word
            acronym = re.match(r"[a-z]{3,5}(?=\\b)", word)
            if acronym and label.entity not in (OTHER, NUMBER):
                yield row, r"\.".join(acronym[0]) + r"\b\.?" + word[acronym.end() + 2 :]


_LABEL = _compiled()


def labels_in(folded: str, start: int, end: int) -> Iterator[tuple[int, int, Label]]:
    """The spans of labels in a part of a folded text, with their labels."""
    for match in _LABEL.finditer(folded, start, end):
        yield match.start(), match.end(), LABELS[int((match.lastgroup or "x0")[1:])]


def label_at(folded: str, start: int) -> Label | None:
    """The label that begins at `start`."""
    match = _LABEL.match(folded, start)
    return LABELS[int((match.lastgroup or "x0")[1:])] if match else None


_NO_FIELD = read_sections("field_keys")["about_a_number"]
_CAMEL = re.compile(r"(?<=[a-zß-ÿ0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@lru_cache(maxsize=4096)
def field_words(name: str) -> str:
    """The words of a field's name, folded: "taxId" is "tax id"."""
    return " ".join(word for word in re.split(r"[\W_]+", fold(_CAMEL.sub(" ", name).lower())) if word)


@lru_cache(maxsize=4096)
def field_label(name: str) -> Label | None:
    """The label in a field's name: taxId, EMPLOYER_EIN, "n. de passeport"; if there are several, the last one."""
    text = field_words(name)
    if not text or _NO_FIELD.intersection(text.split()):
        return None
    last = None
    for _, _, label in labels_in(text, 0, len(text)):
        if label.entity != NUMBER:
            last = label
    return None if last is None or last.entity == OTHER else last
