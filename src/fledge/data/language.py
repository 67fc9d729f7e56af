"""The language of a prompt, by py3langid's small model, which ships inside its package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from fledge.base.errors import DataError
from fledge.data.filters import words

_FEW_WORDS = 5  # shorter texts are given the benefit of the doubt
_CHARACTERS = 1000  # enough to tell
_DOUBT = 5.0  # log likelihood by which another language must lead: slang and formulas resemble many


# Languages whose names, places and labels the privacy filter's rules know.
COVERED = ("de", "en", "es", "fr", "pt")
_ENGLISH = re.compile(
    r"\b(?:the|and|of|to|is|are|in|what|how|why|for|with|you|that|please|can|a|an|this|my|it|on|do|i|me|be)\b",
    re.IGNORECASE,
)
_ENGLISH_SHARE = 0.25  # of words: plainly English, without asking the model


def uncovered_language(texts: Sequence[str]) -> str | None:
    """The first language among the texts that the privacy filter's rules don't cover; None if there is none."""
    return next((language for text in texts if (language := _uncovered(text)) is not None), None)


def _uncovered(text: str) -> str | None:
    start = text[:_CHARACTERS]
    if start.isascii() and len(_ENGLISH.findall(start)) >= _ENGLISH_SHARE * len(start.split()):
        return None
    if len(words(start)) < _FEW_WORDS:
        return None
    scores = _scores(start)
    likeliest = max(scores, key=scores.__getitem__)
    return likeliest if max(scores[name] for name in COVERED) < scores[likeliest] - _DOUBT else None


class LanguageFilter:
    """Rejects prompts in languages other than the given ones; accepts all if none are given."""

    def __init__(self, languages: Sequence[str]) -> None:
        """`languages`: ISO 639-1 codes.

        Raises:
            DataError: the model doesn't know a code.
        """
        self._wanted = frozenset(languages)
        if self._wanted:
            supported = set(_identifier().labels)
            unknown = sorted(self._wanted - supported)
            if unknown:
                raise DataError(
                    f"prompts.languages: {', '.join(unknown)} isn't known; use codes such as en, de, fr"
                )

    def accepts(self, text: str) -> bool:
        """True if the text is in a wanted language, or too short or ambiguous to tell."""
        if not self._wanted or len(words(text)) < _FEW_WORDS:
            return True
        scores = _scores(text[:_CHARACTERS])
        return max(scores[language] for language in self._wanted) > max(scores.values()) - _DOUBT


@lru_cache(maxsize=64)
def _scores(start: str) -> dict[str, float]:
    """Log likelihood by language; cached, since both reasons need it; not to be changed."""
    return dict(_identifier().rank(start))


@cache
def _identifier() -> Any:
    from py3langid import langid  # loads its model on first use

    langid.classify("")
    return langid.IDENTIFIER
