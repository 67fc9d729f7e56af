"""Reads the lists of words in `words/`. Lines that begin with # are comments."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import resources


def read_lines(name: str) -> list[str]:
    """The lines of a list."""
    text = (resources.files("fledge.data.privacy") / "words" / f"{name}.txt").read_text("utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def read_words(name: str) -> frozenset[str]:
    """The words of a list."""
    return frozenset(word for line in read_lines(name) for word in line.split())


@cache
def read_sections(name: str) -> dict[str, frozenset[str]]:
    """The words of a list with sections below headings such as `[towns]`."""
    return {heading: frozenset(" ".join(lines).split()) for heading, lines in _sections(name).items()}


@cache
def read_patterns(name: str) -> dict[str, str]:
    """The phrases of each section, separated by two blanks, as one regular expression's alternatives."""
    return {heading: one_of("  ".join(lines).split("  ")) for heading, lines in _sections(name).items()}


def one_of(phrases: Iterable[str]) -> str:
    """Alternatives grouped by their first letter: where none begins with the next one, `re` tries no more than letters."""
    by_letter: dict[str, list[str]] = {}
    for phrase in phrases:
        plain = phrase[0].isalpha() and phrase[1:2] not in ("?", "*", "+", "{")
        by_letter.setdefault(phrase[0] if plain else "", []).append(phrase[plain:])
    return "|".join(
        f"{letter}(?:{'|'.join(rest)})" if letter and len(rest) > 1 else letter + "|".join(rest)
        for letter, rest in by_letter.items()
    )


def _sections(name: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    heading = ""
    for line in read_lines(name):
        if line.startswith("[") and line.endswith("]"):
            heading = line.strip("[]")
        else:
            sections.setdefault(heading, []).append(line)
    return sections
