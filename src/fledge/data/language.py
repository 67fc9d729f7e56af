"""The language a prompt is written in: py3langid's small model, which comes inside its package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from fledge.base.errors import DataError
from fledge.data.filters import words

_FEW_WORDS = 5  # shorter texts are given the benefit of the doubt
_CHARACTERS = 1000  # are enough
_DOUBT = 5.0  # log likelihood by which another language must lead: slang and formulas look a little like many


class LanguageFilter:
    """Rejects prompts in other languages than the given ones; none given: keeps all."""

    def __init__(self, languages: Sequence[str]) -> None:
        """`languages`: ISO 639-1 codes.

        Raises:
            DataError: a code the model doesn't know.
        """
        self._wanted = frozenset(languages)
        if self._wanted:
            known = set(_identifier().labels)
            unknown = sorted(self._wanted - known)
            if unknown:
                raise DataError(
                    f"prompts.languages: {', '.join(unknown)} isn't known; use codes such as en, de, fr"
                )

    def accepts(self, text: str) -> bool:
        """Whether the text is in a wanted language, or too short or unclear to say."""
        if not self._wanted or len(words(text)) < _FEW_WORDS:
            return True
        scores = dict(_identifier().rank(text[:_CHARACTERS]))
        return max(scores[language] for language in self._wanted) > max(scores.values()) - _DOUBT


@cache
def _identifier() -> Any:
    from py3langid import langid  # loads its model on first use

    langid.classify("")
    return langid.IDENTIFIER
