"""Where a long pattern can begin at all: a tree of the letters its words begin with, which rejects most words at once.

code, compte, cuenta, card      c─┬─o─┬─de          matches "code ...", "Cuentas ...": there the pattern is tried;
                                  │   └─mpte        passes over "can", "cold" after two or three letters
                                  ├─uenta
                                  └─ard
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

_Tree = dict[str, Any]


def beginnings(words: Iterable[str], after: str = r"\w") -> re.Pattern[str]:
    """Finds where one of the words begins (in lower case), unless a character of the class `after` stands before it."""
    tree: _Tree = {}
    for word in words:
        if not word:
            raise ValueError("a pattern that may begin with anything has no beginnings; give it a letter")
        at = tree
        for letter in word:
            at = at.setdefault(letter, {})
        at[""] = {}
    branches = (f"{re.escape(a)}(?<!{after}{re.escape(a)}){_inner(rest)}" for a, rest in tree.items())
    return re.compile("|".join(branches))


def _inner(tree: _Tree) -> str:
    if "" in tree:  # a word ends here: longer ones with the same beginning add nothing
        return ""
    branches = [re.escape(letter) + _inner(rest) for letter, rest in tree.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def literal_beginning(expression: str) -> str:
    """The letters with which all that a regular expression matches begins."""
    found, at = "", 0
    while at < len(expression):
        escaped = expression[at] == "\\" and not expression[at + 1].isalnum()
        letter = expression[at + escaped]
        following = expression[at + escaped + 1 : at + escaped + 2]
        if following in ("?", "*", "{") or not (letter.isalnum() or escaped):
            break
        found += letter
        at += 1 + escaped
    return found


def matches_from(
    begins: re.Pattern[str],
    pattern: re.Pattern[str],
    lower: str,
    text: str,
    span: tuple[int, int] | None = None,
) -> Iterator[re.Match[str]]:
    """`pattern.finditer(text)`, tried only where `begins` matches in `lower`, the text in lower case; within a span of it."""
    start, end = span or (0, len(text))
    for begin in begins.finditer(lower, start, end):
        if begin.start() >= start:
            match = pattern.match(text, begin.start(), end)
            if match:
                start = match.end()
                yield match
