"""Names and places that are also everyday words, brands or months: they need more than a capital letter.

Compiled by hand from the names and cities that are frequent as words (see `lexicon`); the lists are in `words/`.
"""

from __future__ import annotations

from importlib import resources


def read_words(name: str) -> frozenset[str]:
    """The words of a list of this package."""
    text = (resources.files("fledge.data.privacy") / "words" / f"{name}.txt").read_text("utf-8")
    return frozenset(word for line in text.splitlines() if not line.startswith("#") for word in line.split())


COMMON_NAMES = read_words("common_names")
COMMON_PLACES = read_words("common_places")
