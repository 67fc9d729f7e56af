"""Companies, only if requested: capitals before a legal form.

Firms and brands named after people (`words/firms.txt`) aren't personal data: `ends_in_firm("... at Morgan
Stanley")` is true.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.word_lists import read_lines

_CAP = rf"[{UPPER}][^\W_]*(?:['’.&-][^\W_]+)*"
_FORM = (
    r"(?:,? (?:Inc|LLC|Ltd|Limited|PLC|Plc|plc|Corp|Corporation|Company|Co|GmbH(?: & Co\.? KG)?|AG|KG|KGaA|OHG|e\.V|SE|S\.A\.?|SA|SARL|SAS|S\.L\.?|SL|S\.R\.L|Ltda|Lda|EIRELI|S/A|SpA|BV|NV|Group|Holdings?)\b\.?"
    r"|,? and Sons| e Hijos| und Söhne| & Co\.?)"
)
_LEGAL = re.compile(rf"(?<!\w){_CAP}(?:(?: (?:&|and|und|et|y|e|of|de) |[ -]|, ){_CAP}){{0,4}}?{_FORM}(?!\w)")


def find_organizations(clues: Clues) -> Iterator[Finding]:
    """Companies."""
    if not clues.capitals:
        return
    for match in _LEGAL.finditer(clues.text):
        yield Finding(match.start(), match.end(), e.ORGANIZATION, 0.7)


def _firms() -> dict[str, list[str]]:
    by_last_word: dict[str, list[str]] = {}
    for line in read_lines("firms"):
        for firm in line.split(", "):
            by_last_word.setdefault(firm.split()[-1], []).append(firm)
    return by_last_word


_FIRMS = _firms()


def ends_in_firm(lower: str, start: int, end: int) -> bool:
    """True if lower[start:end], with what precedes it, is a firm's name; `lower` is the text in lower case."""
    last = lower[start:end].split(" ")[-1]
    return any(
        lower.endswith(firm, 0, end) and not lower[max(0, end - len(firm) - 1) : end - len(firm)].isalnum()
        for firm in _FIRMS.get(last, ())
    )
