"""People's names without a model: a word that announces one, lists of names, capitals.

    "my sister Clara", "Dear Mr. Okonkwo", "Patient: Ng"      a cue: the word before it says that a person follows
    "Anna Kowalski", "Benny saw a shark"                      listed names alone: WEAK

Most prompts that hold a listed name are about somebody famous, made up or in a sum, so a name alone counts only beside
other personal data of the conversation (`filter`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from fledge.data.privacy import cues
from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import HONORIFICS, NOT_NAMES, PARTICLES, UNNAMED
from fledge.data.privacy.entities import WEAK, Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.organizations import ends_in_firm
from fledge.data.privacy.runs import Token, runs_of_capitals

_CUED = 0.85
_MADE_UP = 0.2  # with a cue, in a sum or a story: beside other personal data it counts, as WEAK ones do
_SPLIT = re.compile(r", | (?:and|und|et|y|e) ")
_FAMILY_FIRST = re.compile(  # "Attendees: Smith, John; Doe, Jane", "patient Smith, John"
    rf"[{UPPER}](?<![^\s*.(-].)[^\W\d_]+, [{UPPER}][^\W\d_]+(?=\s*[;.,()|\n]|$)"
)
_LISTED = re.compile(r"(?:[;|:(]\s|\n[-*\d. ]{0,4})$")
_BESIDE_EMAIL = re.compile(  # "Ann Holm <ann@acme.org>", "@Ann could you"
    rf"(?P<name>[{UPPER}][^\W\d_]+(?: [{UPPER}][^\W\d_]+){{0,3}}),? ?[<(]?[\w.+-]+@|(?<![^\s(,])@(?P<mention>[{UPPER}][^\W\d_]+)(?=[\s,:!?]|$)"
)


def find_people(clues: Clues) -> Iterator[Finding]:
    """Names of people; those without a cue are WEAK."""
    yield from _lower_case(clues)
    if not clues.capitals:
        return
    for run in runs_of_capitals(clues.text):
        yield from _in_run(clues, run)
    yield from _in_lists(clues)
    if "@" in clues.text:
        for match in _BESIDE_EMAIL.finditer(clues.text):
            group = "mention" if match["mention"] else "name"
            if _may_begin(match[group].split(" ")[0].lower()):
                yield Finding(*match.span(group), e.PERSON, 0.7)


def _in_run(clues: Clues, run: list[Token]) -> Iterator[Finding]:
    """The names in one run of capitalised words."""
    at = 0
    while at < len(run):
        at += run[at].word.rstrip(".") in HONORIFICS and at + 1 < len(run)
        before = clues.lower[max(0, run[at].start - 48) : run[at].start]
        score = _score(clues, run, at, before)
        size = _size(clues, run, at, score != WEAK) if score else 0
        end = run[at + size - 1].end if size else 0
        if score == WEAK and (size > 1 or _is_listed(run[at].word)) and cues.TO_ME.match(clues.lower, end):
            score = _CUED
        lone = size == 1 and score == WEAK and not _stands_alone(clues, run[at])
        if size and not lone and not _is_a_thing(clues, run[at].start, end):
            yield Finding(run[at].start, end, e.PERSON, score)
        at += size or 1


def _score(clues: Clues, run: list[Token], at: int, before: str) -> float:
    """Confidence that a name begins here; 0: none does."""
    words = lexicon()
    lead = next((token for token in run[at:] if not token.initial), None)  # J. R. Smith
    if lead is None or lead.word in NOT_NAMES or lead.word in UNNAMED or lead.word in cues.SAINTS:
        return 0.0
    word, text = lead.word, clues.text[lead.start : lead.end]
    named, rare = words.is_any_name(word), _is_rare(clues, word)
    if len(text) < 2 or (len(text) <= 4 and text.isupper() and not words.is_given(word)):
        return 0.0  # SSN, ABA
    sure = _MADE_UP if _is_made_up(clues) else _CUED
    if cues.TITLE.search(before):
        return 0.0 if words.is_everyday(word) else sure
    if (named and not words.is_word(word)) or rare:
        if cues.INTRODUCTION.search(before):
            return _CUED
        noun = clues.language == "de" and not named  # German nouns have capitals too
        full = named or at + 1 < len(run) or (word not in words.common and cues.RELATED.search(before))
        if full and not noun and cues.RELATION.search(before):
            return sure
    if _is_listed(word) and cues.MENTION.search(before):
        return _CUED
    if run[at].initial:
        return WEAK if words.is_family(word) or rare else 0.0
    if words.is_given(word) or word in words.rare_given:
        return WEAK
    follows = run[at + 1].word if at + 1 < len(run) else ""
    return WEAK if rare and words.is_family(follows) and follows not in NOT_NAMES else 0.0


@lru_cache(maxsize=4)
def _is_made_up(clues: Clues) -> bool:
    """True if the text is a sum, a story or a question without first person: "Mrs. Lopez has 24 eggs. How many ..."."""
    return cues.MADE_UP.search(clues.lower) is not None and cues.SPEAKERS.search(clues.lower) is None


def _size(clues: Clues, run: list[Token], at: int, cued: bool) -> int:
    """Number of tokens from `at` on that belong to one name."""
    words, size = lexicon(), 1
    given = run[at].initial or words.is_given(run[at].word) or run[at].word in words.rare_given
    while at + size < len(run) and size < 6:
        token, last = run[at + size], run[at + size - 1]
        between = clues.lower[last.end : token.start].strip()
        noble = between in PARTICLES and between not in ("y", "e")  # Craig von Essen
        named = token.initial or noble or token.word in PARTICLES or words.is_any_name(token.word)
        named = named or (cued and words.is_ambiguous_name(token.word))
        if token.word in NOT_NAMES or (between in ("y", "e") and words.is_given(token.word)):
            break
        if not named and not ((cued or given) and _is_rare(clues, token.word)):
            break
        size += 1
    while size > 1 and (run[at + size - 1].initial or run[at + size - 1].word in PARTICLES):
        size -= 1
    return 0 if run[at].initial and size == 1 else size


def _stands_alone(clues: Clues, token: Token) -> bool:
    """True if a single word without a cue is a given name that is hardly ever anything else."""
    text = clues.text[token.start : token.end]
    return (
        _is_listed(token.word)
        and not lexicon().is_known_city(token.word)
        and not (len(text) <= 4 and text.isupper())
        and re.match(r"\.?\s?\d", clues.text[token.end : token.end + 3]) is None
    )


def _is_listed(word: str) -> bool:
    """True if a word is a given name and hardly ever anything else."""
    words = lexicon()
    odd = word in words.rare_given and word not in words.common
    return (odd or words.is_given(word)) and not words.is_ambiguous_name(word)


def _is_a_thing(clues: Clues, start: int, end: int) -> bool:
    """Nash equilibrium, Harvard University, Wagner Group, Morgan Stanley."""
    after = clues.lower[end : end + 24]
    return cues.NEXT_IS_NO_PERSON.match(after) is not None or ends_in_firm(clues.lower, start, end)


def _is_rare(clues: Clues, word: str) -> bool:
    """True if a word is rare enough to be a name where a name is expected: in German, nouns have capitals, too."""
    words = lexicon()
    return (
        len(word) > 2
        and words.common.get(word, 0.0) < (3.5 if clues.language == "de" else 4.0)
        and word not in words.regions
        and not is_fictional_word(word)
    )


def _may_begin(word: str) -> bool:
    words = lexicon()
    return (
        word not in NOT_NAMES
        and word not in UNNAMED
        and (words.is_any_name(word) or word not in words.common)
    )


def _in_lists(clues: Clues) -> Iterator[Finding]:
    """Names with the family name first, or of people whom the text says to be the writer's."""
    words = lexicon()
    for match in _FAMILY_FIRST.finditer(clues.text):
        family, given = match[0].lower().split(", ")
        before = clues.lower[max(0, match.start() - 24) : match.start()]
        listed = _is_listed(given) and not words.is_known_city(family) and _LISTED.search(before)
        cue = not listed and cues.RELATION.search(f"the {before.rpartition(' ')[0].rpartition(' ')[2]} ")
        if (cue or listed) and not {family, given} & (NOT_NAMES | words.regions):
            yield Finding(*match.span(), e.PERSON, _CUED)
    for match in cues.ARE_MINE.finditer(clues.text):
        at = match.start("names")
        for name in _SPLIT.split(match["names"]):
            start = clues.text.index(name, at)
            at = start + len(name)
            first = name.split(" ")[0].lower()
            if _may_begin(first) or (" " in name and not words.is_word(first)):
                yield Finding(start, at, e.PERSON, _CUED)


def _lower_case(clues: Clues) -> Iterator[Finding]:
    """ "my name is john smith", "hey tom, its lisa from work": given names that are no other word."""
    words = lexicon()
    for match in cues.LOWER.finditer(clues.lower):
        first, second = match["first"], match["second"] or ""
        if clues.text[match.start("first")].isupper() or first in NOT_NAMES or is_fictional_word(first):
            continue
        odd = first in words.rare_given and first not in words.common
        full = words.is_given(first) and not words.is_ambiguous_name(first) and words.is_family(second)
        if odd or full or words.is_plain_given(first):
            family = second and (words.is_family(second) or second not in words.common)
            yield Finding(match.start("first"), match.end("second" if family else "first"), e.PERSON, 0.65)
