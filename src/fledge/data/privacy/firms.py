"""Firms and brands that bear people's names: nobody's personal data.

Compiled by hand; general knowledge, and far from complete. `ends_in_firm("... at Morgan Stanley")` is true.
"""

from __future__ import annotations

from importlib import resources


def _read() -> dict[str, list[str]]:
    text = (resources.files("fledge.data.privacy") / "words" / "firms.txt").read_text("utf-8")
    by_last_word: dict[str, list[str]] = {}
    for line in text.splitlines():
        for firm in line.split(", ") if not line.startswith("#") else ():
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
