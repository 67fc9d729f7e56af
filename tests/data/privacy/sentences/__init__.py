"""Sentences and the values in them, a line each below a heading; every file says what they are.

    [PASSPORT]  [greeting: PERSON]  [encoded]     what is to be found; without an entity, whatever it is taken for
    [nobody]  [nobody: code]                      nothing is to be found
    «value»  ‹value›                              found exactly so; at least half of its characters found

All are made up. `\\n` and `\\u200b` stand for a line's end and for signs that aren't seen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fledge.data.privacy.entities import Finding


class Value(NamedTuple):
    """The place of a value in its text, and whether all of it is to be found."""

    start: int
    end: int
    whole: bool


def read(name: str) -> dict[str, list[str]]:
    """The sentences below each heading."""
    sections: dict[str, list[str]] = defaultdict(list)
    heading = ""
    for line in (Path(__file__).parent / f"{name}.txt").read_text("utf-8").split("\n"):
        if line.startswith("["):
            heading = line.strip("[]")
        elif line and not line.startswith("#"):
            signs = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), line)
            sections[heading].append(signs.replace("\\n", "\n"))
    return sections


def unmarked(sentence: str) -> tuple[str, list[Value]]:
    """The text as somebody would write it, and the values in it."""
    text, values = "", []
    for piece in re.split("([«‹][^»›]*[»›])", sentence):
        if piece.startswith(("«", "‹")):
            values.append(Value(len(text), len(text) + len(piece) - 2, piece.startswith("«")))
        text += piece.strip("«»‹›")
    return text, values


def covered(findings: Iterable[Finding]) -> set[int]:
    """The places of all characters that belong to a finding."""
    return {place for finding in findings for place in range(finding.start, finding.end)}


def missed(text: str, values: Iterable[Value], findings: Iterable[Finding]) -> list[str]:
    """The values of which a letter or digit isn't covered."""
    places = covered(findings)
    return [
        text[value.start : value.end]
        for value in values
        if any(text[at].isalnum() and at not in places for at in range(value.start, value.end))
    ]
