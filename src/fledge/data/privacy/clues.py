"""One cheap pass over a text decides which recognisers must run on it, and its probable language.

"call me at 030 1234567"   digits            -> numbers, phones, dates, addresses
"mail to a@b.org"          '@'               -> e-mail
"hi there"                 no capital word   -> neither names nor places
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

UPPER = "A-ZÀ-ÖØ-ÞĀ-Ž"  # capital letters, for a character class
_CAPITAL = re.compile(f"[{UPPER}]")
_WORD = re.compile(r"[a-zà-öø-ÿ]+")
_TOKEN = re.compile(r"[^\W_]+")
# Frequent words of one language that are rare in the other four.
_FUNCTION_WORDS = {
    "en": "the and is of to that with for this are was it my you have what how please can i'm from your would",
    "de": "der die das und ist nicht ich mit ein eine zu auf für sie wie dem den von bitte mein meine wir bin im",
    "fr": "le les des est et une je pour dans du au vous que qui avec sur mon ma nous suis pas ce être mes",
    "es": "el los las es y una en para con por mi yo que del está se su al qué cómo soy muy hola tengo como",
    "pt": "o os as é uma em para com não meu minha um do da dos eu que por você sou está na no ao olá",
}
_LANGUAGE_OF: dict[str, list[str]] = {}
for _language, _words in _FUNCTION_WORDS.items():
    for _word in _words.split():
        _LANGUAGE_OF.setdefault(_word, []).append(_language)

LANGUAGES = tuple(_FUNCTION_WORDS)


@dataclass(frozen=True)
class Clues:
    """Facts about a text, collected before any recogniser runs."""

    text: str  # letters of other scripts are blanked, since they join words that rules look for: "IBAN是DE89..."
    written: str = ""  # the original text, if it has such letters

    @property
    def original(self) -> str:
        """The text with letters of all scripts, for models and the recipe's own patterns; of the same length."""
        return self.written or self.text

    @cached_property
    def lower(self) -> str:
        """The text in lower case, with the same length (so that positions agree)."""
        lowered = self.text.lower()
        return lowered if len(lowered) == len(self.text) else "".join(map(_lower_one, self.text))

    @cached_property
    def words(self) -> frozenset[str]:
        """The words in lower case: letters and digits, separated by anything else and by underscores."""
        return frozenset(_TOKEN.findall(self.lower))

    @cached_property
    def digits(self) -> int:
        """The number of digits."""
        return sum(map(self.text.count, "0123456789"))

    @cached_property
    def capitals(self) -> bool:
        """True if there is a capital letter: names need one."""
        return _CAPITAL.search(self.text) is not None

    @cached_property
    def language(self) -> str:
        """The most likely of the five languages by function words; English if there are none."""
        votes = dict.fromkeys(LANGUAGES, 0.0)
        for word in filter(_LANGUAGE_OF.__contains__, _WORD.findall(self.lower[:2000])):
            languages = _LANGUAGE_OF[word]
            for language in languages:
                votes[language] += 1 / len(languages)
        return max(votes, key=lambda language: votes[language])


def _lower_one(character: str) -> str:
    lowered = character.lower()
    return lowered if len(lowered) == 1 else character
