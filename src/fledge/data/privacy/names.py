"""People's names without a model: a word that announces one, lists of names, capitals.

    "my sister Clara", "Dear Mr. Okonkwo", "Patient: Ng"      a cue: the word before it says that a person follows
    "Anna Kowalski", "Benny saw a shark"                      listed names alone: WEAK

Most prompts that hold a listed name are about somebody famous, made up or in a sum, so a name alone counts only beside
other personal data of the conversation (`filter`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import cues
from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import HONORIFICS, NOBODY, NOT_NAMES, PARTICLES
from fledge.data.privacy.entities import WEAK, Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.organizations import ends_in_firm
from fledge.data.privacy.runs import Token, runs_of_capitals

_CUED = 0.85
_SPLIT = re.compile(r", | (?:and|und|et|y|e) ")
_SIGNATURE = re.compile(  # a line of its own after a closing formula or an empty line, near the end
    rf"(?:\n\s*\n|,\n)[ \t]*[-–—~]{{0,2}} ?(?P<name>[{UPPER}][^\W\d_]+(?:[ .'’-]+[^\W\d_]+){{1,3}})[ \t]*(?=\n|$)"
)
_FAMILY_FIRST = re.compile(  # "Attendees: Smith, John; Doe, Jane", "patient Smith, John"
    rf"(?:(?P<listed>[;|:(]\s|\n[-*\d. ]{{0,4}})|(?P<cue>[^\W\d_]+) )(?P<name>(?P<family>[{UPPER}][^\W\d_]+), (?P<given>[{UPPER}][^\W\d_]+))"
    r"(?=\s*[;.,()|\n]|$)"
)
_MAILBOX = re.compile(rf"(?P<name>[{UPPER}][^\W\d_]+(?: [{UPPER}][^\W\d_]+){{0,3}}),? ?[<(]?[\w.+-]+@")
_MENTION = re.compile(rf"(?<![^\s(,])@(?P<name>[{UPPER}][^\W\d_]+)(?=[\s,:!?]|$)")
_SPEAKER = re.compile(
    r"^[ \t>*-]*(?P<time>[\[(]?\d[\d/.:, -]{3,21}(?: ?[ap]m)?[\])]?\s*(?:- )?)?[<\"*]{0,2}"
    r"(?P<name>[^\W\d_]{2,20}(?: [^\W\d_]{2,20})?)[>\"*]{0,2} ?:[*]{0,2}(?=\s)",
    re.MULTILINE,
)


def find_people(clues: Clues) -> Iterator[Finding]:
    """Names of people; those without a cue are WEAK."""
    yield from _lower_case(clues)
    if clues.text.count(":") > 1:
        yield from _speakers(clues)
    if not clues.capitals:
        return
    for run in runs_of_capitals(clues.text):
        yield from _in_run(clues, run)
    yield from _in_lists(clues)
    if "@" in clues.text:
        for pattern in (_MENTION, _MAILBOX):
            for match in pattern.finditer(clues.text):
                if _may_begin(match["name"].split(" ")[0].lower()):
                    yield Finding(*match.span("name"), e.PERSON, 0.7)


def _in_run(clues: Clues, run: list[Token]) -> Iterator[Finding]:
    """The names in one run of capitalised words."""
    at = 0
    while at < len(run):
        at += run[at].word.rstrip(".") in HONORIFICS and at + 1 < len(run)
        before = clues.lower[max(0, run[at].start - 48) : run[at].start]
        score = _score(clues, run, at, before)
        size = _size(clues, run, at, score > WEAK) if score else 0
        end = run[at + size - 1].end if size else 0
        if score == WEAK and (size > 1 or _is_listed(run[at].word)) and cues.TO_ME.match(clues.lower, end):
            score = _CUED
        lone = size == 1 and score == WEAK and not _stands_alone(clues, run[at], before)
        if size and not lone and not _is_a_thing(clues, run[at].start, end):
            yield Finding(run[at].start, end, e.PERSON, score)
        at += size or 1


_PERSONAL = (
    cues.GREETING,
    cues.INTRODUCTION,
    cues.FIELD,
    cues.ROLE,
    cues.MET,
    cues.ASK,
    cues.DEED,
    cues.PRESENTED,
)


def _score(clues: Clues, run: list[Token], at: int, before: str) -> float:
    """How sure it is that a name begins here; 0: none does."""
    words, token = lexicon(), run[at]
    if token.initial:
        return _initials(clues, run, at, before)
    word, text = token.word, clues.text[token.start : token.end]
    if word in NOT_NAMES or word in NOBODY or word in cues.SAINTS or len(word) < 2:
        return 0.0
    named, rare = words.is_any_name(word), _is_rare(clues, word)
    if len(text) <= 4 and text.isupper() and not words.is_given(word):
        return 0.0  # SSN, ABA
    titled, story = cues.TITLE.search(before), cues.STORY_TITLE.search(before)
    if titled or story:
        earlier = before[: story.start()] if story else ""
        sure = titled or any(cue.search(earlier) for cue in _PERSONAL)
        return 0.0 if words.is_everyday(word) and not named else _CUED if sure else WEAK
    if (named and not words.is_word(word)) or rare:
        field = before.rstrip(" \"'«„")[-1:] in (":", "=") and cues.FIELD.search(before)
        if field or cues.INTRODUCTION.search(before) or cues.GREETING.search(before):
            return _CUED
        noun = clues.language == "de" and not named  # German nouns have capitals too
        full = named or at + 1 < len(run) or (word not in words.common and cues.RELATED.search(before))
        if not noun and full and any(cue.search(before) for cue in (cues.ROLE, cues.MET, cues.DEED)):
            return _CUED
        if _is_listed(word) and (cues.PRESENTED.search(before) or cues.ASK.search(before)):
            return _CUED
        if not noun and cues.NAMED.search(before):
            return _CUED if cues.SOMEONE.search(before) else WEAK
    if words.is_given(word) or word in words.rare_given:
        return WEAK
    follows = run[at + 1].word if at + 1 < len(run) else ""
    return WEAK if rare and words.is_family(follows) and follows not in NOT_NAMES else 0.0


def _initials(clues: Clues, run: list[Token], at: int, before: str) -> float:
    """J. R. Smith: initials before a family name."""
    last = next((token.word for token in run[at:] if not token.initial), "")
    if not last or last in NOT_NAMES:
        return 0.0
    if cues.TITLE.search(before) or cues.FIELD.search(before) or cues.GREETING.search(before):
        return _CUED
    return WEAK if lexicon().is_family(last) or _is_rare(clues, last) else 0.0


def _size(clues: Clues, run: list[Token], at: int, cued: bool) -> int:
    """How many tokens from `at` on belong to one name."""
    words, size = lexicon(), 1
    given = run[at].initial or words.is_given(run[at].word) or run[at].word in words.rare_given
    while at + size < len(run) and size < 6:
        token, last = run[at + size], run[at + size - 1]
        between = clues.lower[last.end : token.start].strip()
        noble = between in PARTICLES and between not in ("y", "e")  # Craig von Essen
        named = token.initial or noble or words.is_any_name(token.word)
        if token.word in NOT_NAMES or (between in ("y", "e") and words.is_given(token.word)):
            break
        if not named and not ((cued or given) and _is_rare(clues, token.word)):
            break
        size += 1
    while size > 1 and run[at + size - 1].initial:  # an initial ends no name
        size -= 1
    return 0 if run[at].initial and size == 1 else size


def _stands_alone(clues: Clues, token: Token, before: str) -> bool:
    """Whether a single word without a cue is a given name that is hardly ever anything else."""
    words = lexicon()
    return (
        _is_listed(token.word)
        and not words.is_known_city(token.word)
        and not (token.end - token.start <= 4 and clues.text[token.start : token.end].isupper())
        and not cues.ARTICLE[clues.language].search(before)
        and re.match(r"\.?\s?\d", clues.text[token.end : token.end + 3]) is None
    )


def _is_listed(word: str) -> bool:
    """Whether a word is a given name and hardly ever anything else."""
    words = lexicon()
    odd = word in words.rare_given and word not in words.common
    return (odd or words.is_given(word)) and not words.is_ambiguous_name(word)


def _is_a_thing(clues: Clues, start: int, end: int) -> bool:
    """Nash equilibrium, Harvard University, Wagner Group, Morgan Stanley."""
    after = clues.lower[end : end + 24]
    return cues.NEXT_IS_NO_PERSON.match(after) is not None or ends_in_firm(clues.lower, start, end)


def _is_rare(clues: Clues, word: str) -> bool:
    """Whether a word is rare enough to be a name where a name is expected: in German, nouns have capitals, too."""
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
        word not in NOT_NAMES and word not in NOBODY and (words.is_any_name(word) or word not in words.common)
    )


def _in_lists(clues: Clues) -> Iterator[Finding]:
    """Names at the end of a letter, family name first, or of people whom the text says to be the writer's."""
    words = lexicon()
    for match in _SIGNATURE.finditer(clues.text):
        parts = [part for part in re.split(r"[ .]+", match["name"].lower()) if part not in PARTICLES]
        listed = any(words.is_any_name(part) and not words.is_ambiguous_name(part) for part in parts)
        plain = all(words.is_any_name(part) or _is_rare(clues, part) for part in parts)
        if clues.text.count("\n", match.end()) <= 4 and listed and plain and NOT_NAMES.isdisjoint(parts):
            yield Finding(*match.span("name"), e.PERSON, 0.7)
    for match in _FAMILY_FIRST.finditer(clues.text):
        family, given = match["family"].lower(), match["given"].lower()
        cue = match["cue"] and cues.ROLE.search(f"the {match['cue'].lower()} ")
        listed = _is_listed(given) and not words.is_known_city(family)
        if (cue or (match["listed"] and listed)) and not {family, given} & (NOT_NAMES | words.regions):
            yield Finding(*match.span("name"), e.PERSON, _CUED)
    for match in cues.ARE_MINE.finditer(clues.text):
        at = match.start("names")
        for name in _SPLIT.split(match["names"]):
            start = clues.text.index(name, at)
            at = start + len(name)
            first = name.split(" ")[0].lower()
            if _may_begin(first) or (" " in name and not words.is_word(first)):
                yield Finding(start, at, e.PERSON, _CUED)


def _lower_case(clues: Clues) -> Iterator[Finding]:
    """ "my name is john smith", "hey tom, its lisa from work", "my husband tyler": given names that are no other word."""
    words = lexicon()
    if words.lower_given.isdisjoint(clues.lower_words):
        return
    patterns = (cues.LOWER_INTRODUCTION, cues.LOWER_RELATION, cues.LOWER_GREETING, cues.LOWER_PRESENTED)
    for pattern in patterns:
        for match in pattern.finditer(clues.text):
            first, second = match["first"], (match["second"] or "")
            frequent = 5.6 if pattern is cues.LOWER_INTRODUCTION else 4.6
            odd = (
                pattern is not cues.LOWER_PRESENTED
                and first in words.rare_given
                and first not in words.common
            )
            if not first[0].islower() or first in NOT_NAMES or is_fictional_word(first):
                continue
            named = pattern is cues.LOWER_INTRODUCTION and words.is_given(first) and words.is_family(second)
            if odd or named or words.is_plain_given(first, frequent):
                family = second and (words.is_family(second) or second not in words.common)
                yield Finding(
                    match.start("first"), match.end("second" if family else "first"), e.PERSON, 0.65
                )


def _speakers(clues: Clues) -> Iterator[Finding]:
    """The names at the head of a chat's lines, if one of them is a plain given name; WEAK without a time."""
    words, heads = lexicon(), list(_SPEAKER.finditer(clues.text))
    if len(heads) < 2 or not any(
        words.is_plain_given(match["name"].split(" ")[0].lower()) for match in heads
    ):
        return
    for match in heads:
        first = match["name"].split(" ")[0].lower()
        if first not in NOT_NAMES and words.could_be_name(first) and not words.is_word(first):
            yield Finding(*match.span("name"), e.PERSON, 0.6 if match["time"] else WEAK)
