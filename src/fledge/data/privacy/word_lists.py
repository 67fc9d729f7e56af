"""Reads the lists of words in `words/`. Lines that begin with # are comments."""

from __future__ import annotations

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
    sections: dict[str, frozenset[str]] = {}
    heading = ""
    for line in read_lines(name):
        if line.startswith("["):
            heading = line.strip("[]")
        else:
            sections[heading] = sections.get(heading, frozenset()).union(line.split())
    return sections
