"""Runs of capitalised words, initials and particles: candidates for names ("Maria da Silva", "J. R. Müller")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fledge.data.privacy.clues import UPPER

_REST = r"[^\W\d_]*(?:['’.-](?=[^\W\d_]{2})[^\W\d_]+)*"
_TOKEN = re.compile(
    rf"[{UPPER}](?:(?<!\w.)(?P<initial>\.(?:-?[{UPPER}]\.)*)|(?<![\w@/\\.#$-].){_REST}(?![\w@\\(/]|\.(?:[a-z\d]|[A-Z]\w*[A-Z\d])|!\w))"
)
_PARTICLE = (
    r"(?:de la|de las|de los|de|da|das|do|dos|del|della|di|du|des|von der|von den|von|vom|zu|zur|van der|van den|van de|van|ten|ter|le|la|el|al|bin|ben|ibn|y|e|"
    r"d['’])"
)
_JOIN = re.compile(rf"[ \u00a0]{{1,2}}(?:{_PARTICLE} ?)?|[ ]?d['’]")


class Token(NamedTuple):
    """A capitalised word or an initial."""

    start: int
    end: int
    word: str  # in lower case, without possessive
    initial: bool


def runs_of_capitals(text: str) -> Iterator[list[Token]]:
    """Runs of capitalised words with only blanks and particles between them."""
    run: list[Token] = []
    for match in _TOKEN.finditer(text):
        word = match[0]
        end = match.end()
        if word.endswith(("'s", "’s", "'S")):
            word, end = word[:-2], end - 2
        token = Token(match.start(), end, word.lower(), match["initial"] is not None)
        if run and _JOIN.fullmatch(text, run[-1].end, token.start) is None:
            yield run
            run = []
        run.append(token)
    if run:
        yield run
