"""Firms and brands that bear people's names: nobody's personal data.

Compiled by hand; general knowledge, and far from complete. `ends_in_firm("... at Morgan Stanley")` is true.
"""

from __future__ import annotations

from fledge.data.privacy.word_lists import read_lines


def _read() -> dict[str, list[str]]:
    by_last_word: dict[str, list[str]] = {}
    for line in read_lines("firms"):
        for firm in line.split(", "):
            by_last_word.setdefault(firm.split()[-1], []).append(firm)
    return by_last_word


_FIRMS = _read()


def ends_in_firm(lower: str, start: int, end: int) -> bool:
    """Whether lower[start:end], with what stands before it, is a firm's name; `lower` is the text in lower case."""
    last = lower[start:end].split(" ")[-1]
    return any(
        lower.endswith(firm, 0, end) and not lower[max(0, end - len(firm) - 1) : end - len(firm)].isalnum()
        for firm in _FIRMS.get(last, ())
    )
