"""The language of a prompt, by py3langid's small model, which ships inside its package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fledge.base.errors import DataError
from fledge.data.filters import words

_FEW_WORDS = 5  # shorter texts are given the benefit of the doubt
_CHARACTERS = 1000  # enough to tell
_DOUBT = 5.0  # log likelihood by which another language must lead: slang and formulas resemble many


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
        """Whether the text is in a wanted language, or too short or ambiguous to tell."""
        if not self._wanted or len(words(text)) < _FEW_WORDS:
            return True
        scores = dict(_identifier().rank(text[:_CHARACTERS]))
        return max(scores[language] for language in self._wanted) > max(scores.values()) - _DOUBT


@cache
def _identifier() -> Any:
    from py3langid import langid  # loads its model on first use

    langid.classify("")
    return langid.IDENTIFIER
