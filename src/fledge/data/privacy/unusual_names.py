"""Names without the usual capitals or order: after an introduction, family name first, after an @.

"my name is john smith"      lower case, after words that introduce somebody
"Smith, John;"               as lists and files have them
"@Sabine could you"          as chats have them
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import FIELD, LOWER_INTRODUCTION, NOT_NAMES, ROLE, WEAK_INTRODUCTION
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import lexicon

_RARE = 3.6  # Zipf frequency below which a word after a given name is taken for a family name
_RARE_PAIR = 8.6  # sum of the Zipf frequencies of two names in lower case: "edwin johnson" has 8.4
_LOWER_WORD = re.compile(r"(?<![^\s(,;:\"'>])[a-zà-öø-ÿ]{3,20}(?:-[a-zà-öø-ÿ]{2,20})?(?![\w=@/(\[-]|\.\w)")
_CAPITAL = rf"[{UPPER}][^\W\d_]+(?:['’-][^\W\d_]+)*"
_GIVEN_END = r"(?: [A-Z]\.)?(?=\s*(?:\.(?!\s?\d)|[;,()|\n\t\"<]|$))"
_GIVEN_LAST = re.compile(
    rf", (?<=[^\W\d_], ){_CAPITAL}{_GIVEN_END}"
)  # how the next one ends: not tried without
_FAMILY_FIRST = re.compile(
    rf"(?<![\w@.-])(?P<family>(?:(?:van der|van|von|de la|de|da|dos|O['’]) ?)?{_CAPITAL}(?:[ -]{_CAPITAL})?), (?P<given>{_CAPITAL}){_GIVEN_END}"
)
_PATIENT = re.compile(r"(?<!\w)(?:pte?|pat|pac|kd|mr|mrs)\.? $")
_ROLE_FIRST = re.compile(
    r"(?:pte?|pat|pac|patient(?:in|e)?|paciente|client[ea]?|utente|eleve|élève|schüler(?:in)?|frau|herr|student(?:in)?|alumn[oa]|alun[oa]) "
)
_LISTED = re.compile(r"(?:[;|(:]|\n[-*\d. ]{0,4})\s*$")  # begins a field, or is one of several
_MENTION = re.compile(rf"(?<![^\s(,])@(?P<name>{_CAPITAL})(?=[\s,:!?]|$)")


def find_unusual_names(clues: Clues) -> Iterator[Finding]:
    """Names without the usual capitals or order."""
    yield from _lower_case(clues)
    yield from _lower_pairs(clues)
    if clues.capitals:
        yield from _family_first(clues)
        if "@" in clues.text:
            yield from _mentioned(clues)


def _lower_case(clues: Clues) -> Iterator[Finding]:
    words = lexicon()
    for regex in (LOWER_INTRODUCTION, WEAK_INTRODUCTION):  # the latter doesn't say enough alone
        for match in regex.finditer(clues.text):
            first, second = match["first"].lower(), (match["second"] or "").lower()
            if match["first"][0].isupper() or is_fictional_word(first):
                continue
            given = words.is_given(first) or first in words.rare_given
            plain = given and not words.is_ambiguous_name(first) and words.common.get(first, 0.0) < 5.0
            known = words.is_family(second) or (bool(second) and second not in words.common)
            family = known or (plain and bool(second) and words.common[second] < _RARE)
            certain = given and (plain or known) and (regex is LOWER_INTRODUCTION or family)
            if certain:
                end = match.end("second") if family else match.end("first")
                third = (match["third"] or "").lower()
                if family and words.is_family(third) and not words.is_ambiguous_name(third):
                    end = match.end("third")
                yield Finding(match.start("first"), end, e.PERSON, 0.7)


def _lower_pairs(clues: Clues) -> Iterator[Finding]:
    """A given name and a family name in lower case, neither of them a frequent word: "log in as martha burch"."""
    words = lexicon()
    if words.lower_given.isdisjoint(clues.lower_words):
        return
    before = None  # the word before, if it could be a given name
    for match in _LOWER_WORD.finditer(clues.text):
        word = match[0]
        if before is not None and clues.text[before.end() : match.start()] == " " and words.is_family(word):
            frequency = words.common.get(before[0], 0.0) + words.common.get(word, 0.0)
            if (
                frequency < _RARE_PAIR
                and not words.is_ambiguous_name(word)
                and not words.is_city(f"{before[0]} {word}")
            ):
                yield Finding(before.start(), match.end(), e.PERSON, 0.6)
                before = None
                continue
        plain = words.is_given(word) and not words.is_ambiguous_name(word) and not words.is_known_city(word)
        before = match if plain and not is_fictional_word(word) else None


def _family_first(clues: Clues) -> Iterator[Finding]:
    if not _GIVEN_LAST.search(clues.text):
        return
    words = lexicon()
    for match in _FAMILY_FIRST.finditer(clues.text):
        given, family = match["given"].lower(), match["family"].lower()
        last = family.split()[-1]
        rare = given in words.rare_given and words.common.get(given, 0.0) < _RARE
        before, cued, start = _before_family(clues, match.start(), family)
        unknown = given not in words.common and (
            (words.is_family(last) and words.common.get(last, 0.0) < 4.3)
            or last.startswith(("mc", "mac", "o'", "o’"))
        )
        unknown = unknown or (cued and words.common.get(given, 0.0) < _RARE)
        if not (words.is_given(given) or rare or unknown) or given in NOT_NAMES or last in NOT_NAMES:
            continue
        listed = not before or _LISTED.search(before) is not None
        if (
            before[-1:] == " "
            and not (cued or listed)
            and (before[-2:-1].isalnum() or words.is_known_city(family))
        ):
            continue
        if is_fictional_word(last) or family in words.regions or (given in words.regions and not cued):
            continue
        if " " in family and words.is_given(family.split()[0]) and not words.is_given(given):
            continue  # Isabella Brandtner, Bahnhofstr. 80
        plain = not words.is_ambiguous_name(given)
        place = words.is_known_city(family) or words.is_known_city(given)
        if not cued and (
            not (plain or (listed and words.is_family(last) and not words.is_ambiguous_name(last)))
        ):
            continue
        if not cued and ((place and not listed) or words.is_plain_given(last, 9.0)):
            continue
        if (
            cued
            or words.is_family(last)
            or words.common.get(last, 0.0) < _RARE
            or (listed and place and plain)
        ):
            yield Finding(start, match.end("given"), e.PERSON, 0.92 if cued else 0.75)


def _before_family(clues: Clues, start: int, family: str) -> tuple[str, bool, int]:
    """What precedes a family name, whether that announces one, and where the name begins: after "Pt" or "Patient"."""
    role = _ROLE_FIRST.match(family)
    if role:
        start += role.end()
    before = clues.lower[max(0, start - 40) : start]
    return before, any(cue.search(before) for cue in (ROLE, FIELD, _PATIENT)), start


def _mentioned(clues: Clues) -> Iterator[Finding]:
    words = lexicon()
    for match in _MENTION.finditer(clues.text):
        name = match["name"].lower()
        if words.is_given(name) and not words.is_ambiguous_name(name):
            yield Finding(*match.span("name"), e.PERSON, 0.7)
