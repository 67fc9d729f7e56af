"""Dates of birth: a date beside a word such as "born", in any date format of the five languages. And of signatures.

born on the 3rd of April 1985     geb. 3.4.85     né le 1er avril 1985     nacida el 3 de abril del 85
DOB 04/03/1985                    3. April 1985 in Ulm geboren             04/03/1985 is my birthday
signed by Ida Holm on 3/4/2021    von Ida Holm am 3.4.2021 unterschrieben   firmado el 3/4/2021 por Ida Holm
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.label_words import fold
from fledge.data.privacy.word_lists import read_patterns

_REACH = 45  # maximum characters between the word and the date
_BESIDE = 3  # the same where the date can't belong to another label

_P = read_patterns("birth_words")
_DAY = rf"(?:0?[1-9]|[12]\d|3[01]|{_P['ordinals']})(?:st|nd|rd|th|er|\.|[ºª°])?"
_NUMBER = r"(?:0?[1-9]|[12]\d|3[01]|i{1,3}|iv|vi{0,3}|ix|xi{0,2})"
_YEAR, _SHORT = r"(?:1[89]|20)\d\d", r"['´`]?\d\d"
_OF = r"[ ./-]{0,2}(?:(?:de|of|den|del|do|dia|the) ){0,2}"
_MONTH = rf"(?:{_P['months']})\.?,?"
DATE = re.compile(
    rf"(?<!\w)(?:{_YEAR}(?P<s>[-/. ]){_NUMBER}(?P=s){_NUMBER}"
    rf"|{_NUMBER}[ ./-]{{1,2}}{_NUMBER}[ ./-]{{1,2}}(?:{_YEAR}|{_SHORT})"
    rf"|{_DAY}{_OF}{_MONTH}{_OF}(?:{_YEAR}|{_SHORT})"
    rf"|{_YEAR}[ ./-]{_MONTH}[ ./-]{_DAY}"
    rf"|{_MONTH}{_OF}{_DAY}[,. /-]{{1,2}}(?:{_YEAR}|(?<=[,/-]){_SHORT}|(?<=[,/-] ){_SHORT}))(?!\w)"
)
_BORN = re.compile(
    rf"(?<![^\W_])(?:{_P['born']})(?![^\W_])|(?<=[(,;\s])\* ?(?=\d{{1,2}}\.)"
)  # German: * 3.4.1985
_COMPACT = re.compile(r"[^\w\n]{0,6}\s?((?:19|20)\d{6}|\d{4}(?:19|20)\d\d)(?!\d)")
# Another event's date: "DOB 4/5/81 / issued 3/2/2010".
_OTHER_EVENT = re.compile(rf"(?<![^\W_])(?:{_P['other events']})(?![^\W_])")
_NEXT = re.compile(r"[!?;]\s|\n\s*\n|(?<!\bgeb)(?<!\bnac)(?<!\bnasc)(?<!\bdat)\.\s+[A-ZÀ-Þ]")

# A person's signature beside its date; laws and treaties are signed in public.
_CAPITAL = rf"[{UPPER}](?:[^\W\d_]|['’-](?=[^\W\d_]))*\.?"
_PERSON = rf"{_CAPITAL}(?: (?:(?:de|da|do|dos|del|la|von|van|der) )*{_CAPITAL}){{0,3}}"
_SIGNED, _BY, _ON = (rf"(?<![^\W_])(?i:{_P[name]})" for name in ("signed", "by", "on"))
_SIGNER = rf"(?:[:,]? {_BY}:? (?:[a-zß-ÿ]+ ){{0,2}}|[:,] |(?<=gezeichnet) ){_PERSON}"
_SIGNED_BY = re.compile(rf"{_SIGNED}{_SIGNER}(?:,? {_ON}|,)? $")
_SIGNED_ON = re.compile(rf"{_SIGNED} (?:(?:in|at|à|en|em) {_CAPITAL} )?(?:{_ON} )?$")
_BY_AFTER = re.compile(rf",? {_BY} {_PERSON}")
_BY_BEFORE = re.compile(rf"{_BY} {_PERSON} {_ON} $")
_SIGNED_AFTER = re.compile(rf",? (?:{_BY} {_PERSON} )?{_SIGNED}")
_PUBLIC = re.compile(
    r"(?<![^\W_])(?:treat(?:y|ies)|bill|law|acts?|declaration|constitution|(?-i:[A-Z]\w+ (?:Agreement|Accords?))|charter|pact|decree"
    r"|executive order|(?-i:[A-Z]{4,}) w(?:as|ere)"
    r"|vertrag von|\w+-vertrag|abkommen|gesetz|verfassung|traités?|lois?|décret|tratado|leyes|ley|decreto|constitución|leis?|constituição|president\w*|präsident\w*"
    r"|presidente|minister\w*|king|queen|könig\w*|roi|reine|re[yi])(?![^\W_])",
    re.IGNORECASE,
)
_SENTENCE = 120  # characters around a date

Span = tuple[int, int]


def find_births(clues: Clues) -> Iterator[Finding]:
    """Dates of birth."""
    if not clues.digits:
        return
    folded = fold(clues.lower)
    born = [match.span() for match in _BORN.finditer(folded)]
    if not born:
        return
    for _, end in born:
        compact = _COMPACT.match(folded, end)
        if compact:
            yield Finding(*compact.span(1), e.DATE_OF_BIRTH, 0.93)
    last = None  # end of the previous date of birth
    for match in DATE.finditer(folded):
        start, end = match.span()
        after = any(_linked(clues, folded, word, start) for _, word in born)
        # One date belongs to a word, the first, unless the next follows at once: "born 3/4/81, 5/6/79 and 1/2/90".
        taken = last is not None and start - last > 6 and not any(last <= word < start for word, _ in born)
        if after and not taken:
            last = end
        if (after and not taken) or _before(clues, folded, end, born):
            beside = any(0 <= start - word <= _BESIDE for _, word in born)
            yield Finding(start, end, e.DATE_OF_BIRTH, 0.93 if beside else 0.85)


def find_signatures(clues: Clues) -> Iterator[Finding]:
    """Dates on which a person signed."""
    if not clues.digits or not re.search(_SIGNED, clues.text):
        return
    for match in DATE.finditer(fold(clues.lower)):
        start, end = match.span()
        before, after = clues.text[max(0, start - _SENTENCE) : start], clues.text[end : end + _SENTENCE]
        signed = _SIGNED_BY.search(before) or (_SIGNED_ON.search(before) and _BY_AFTER.match(after))
        if not signed and (later := _SIGNED_AFTER.match(after)):
            signed = _BY_BEFORE.search(before) or (_BY_AFTER.match(later[0]) and later)
        if signed and not _PUBLIC.search(before) and not _PUBLIC.search(after):
            yield Finding(start, end, e.DATE_OF_BIRTH, 0.85)


def _linked(clues: Clues, folded: str, start: int, end: int) -> bool:
    """True if a word and a date are close, in one sentence, and nothing else is said to happen in between."""
    if not 0 <= end - start <= _REACH or _NEXT.search(clues.text, start, end):
        return False
    return _OTHER_EVENT.search(folded, start, end) is None


def _before(clues: Clues, folded: str, end: int, born: list[Span]) -> bool:
    """True if the next word for birth follows the date and has no date of its own: "3.4.1985 in Ulm geboren"."""
    word = next((span for span in born if span[0] >= end), None)
    if word is None or not _linked(clues, folded, end, word[0]) or re.search(r"\d", folded[end : word[0]]):
        return False
    return re.match(r"[^.;!?\n]{0,30}\d", folded[word[1] :]) is None
