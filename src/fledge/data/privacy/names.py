"""People's names without a model: lists of names, surrounding words, capitals and titles.

A candidate is a run of capitalised words, initials and particles ("Maria da Silva", "J. R. Müller"). Evidence for a
name, strongest first:

    0.90   a title or an introduction before it       "Dr. Okonkwo", "my name is Xiu", "Customer: Adebayo, T."
    0.80   a given name and a family name             "Anna Kowalski"
    0.65   a given name and an unknown word           "Anna Zxyvik"; or unknown and a family name
    0.60   a given name that isn't also a word        "ask Sabine whether"

Everyday words end a run; a run that continues as a company, place or theorem ("Nash equilibrium") isn't a person.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.chats import find_chat_names
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.cues import (
    ARTICLE,
    ASK,
    CALLED,
    CAPITAL_PARTICLES,
    FIELD,
    GREETING,
    HONORIFICS,
    INTRODUCTION,
    NEXT_IS_NO_PERSON,
    NEXT_IS_PERSON,
    NOT_NAMES,
    ROLE,
    SAINTS,
    TITLE,
)
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import Lexicon, lexicon
from fledge.data.privacy.organizations import ends_in_firm
from fledge.data.privacy.rare_names import (
    beside_a_name,
    beside_a_thing,
    goes_before_family,
    is_rare,
    may_be_a_firm,
    may_begin,
    may_sign,
    shouted,
    signs,
)
from fledge.data.privacy.runs import Token, runs_of_capitals
from fledge.data.privacy.unusual_names import find_unusual_names

_SENTENCE_START = re.compile(r"(?:^|[.!?:\n\"“«¿¡•*>)-])\s*$")
_GERMAN_NOUN = 3.5  # German nouns have capitals too: only rarer words count as family names
_RARE_NAME = 3.6  # Zipf frequency below which a word that is also an odd given name may begin a name
_NAME_LINE_AFTER = re.compile(r"\s*[<(]\s*[^\s@<>]+@")


def find_people(clues: Clues) -> Iterator[Finding]:
    """Names of people."""
    if clues.capitals:
        for run in runs_of_capitals(clues.text):
            yield from _People(clues, run).find()
    yield from find_unusual_names(clues)
    yield from find_chat_names(clues)


class _People:
    """The names in one run."""

    def __init__(self, clues: Clues, run: list[Token]) -> None:
        self._clues = clues
        self._run = run
        self._words: Lexicon = lexicon()
        self._called = False  # whether the candidate follows "his name is"

    def find(self) -> Iterator[Finding]:
        at = 0
        while at < len(self._run):
            titled = self._run[at].word.rstrip(".") in HONORIFICS and at + 1 < len(self._run)
            if titled:
                at += 1
            size, score = self._name_at(at, titled)
            first, last = self._run[at], self._run[at + max(size, 1) - 1]
            if size and score and ends_in_firm(self._clues.lower, first.start, last.end):
                at += size
                continue
            if size and score:
                yield Finding(first.start, last.end, e.PERSON, score)
            at += size if size and score else 1

    def _name_at(self, at: int, titled: bool) -> tuple[int, float]:
        """How many words from `at` on are a name (0: none), and the confidence."""
        first = self._run[at]
        before = self._clues.lower[max(0, first.start - 48) : first.start]
        title = TITLE.search(before)
        cue = titled or title is not None
        noble = title is not None and title["particle"] is not None  # "Sra. de la Fuente"
        if first.initial:
            return self._initials(at, cue or FIELD.search(before) is not None)
        saint = at > 0 and self._run[at - 1].word in SAINTS
        signed = self._signed(at)
        if signed:
            return signed, 0.7
        if (
            (
                self._no_name(first.word)
                and not (noble or (cue and self._could_follow_title(first)))
                and not self._by_its_place(at, before)
            )
            or (self._is_abbreviation(first) and not cue)
            or (saint and not cue)
            or (first.word in SAINTS and at + 1 < len(self._run))
        ):
            return 0, 0.0
        # Most words aren't names, so the search for what precedes a name comes after this check.
        greeted = GREETING.search(before) is not None
        introduced = INTRODUCTION.search(before) is not None
        cued = (
            cue
            or introduced
            or greeted
            or (before.rstrip(" \"'«„")[-1:] in (":", "=") and FIELD.search(before) is not None)
            or ROLE.search(before) is not None
        )
        self._called = introduced and CALLED.search(before) is not None
        size = self._size(at, cued)
        named = [token.word for token in self._run[at : at + size] if not token.initial]
        if self._goes_on_as_something_else(at + size) and not cue:
            return 0, 0.0
        if cued and not self._is_a_thing(first, size, cue or introduced or greeted):
            if any(self._words.is_any_name(word) for word in named):
                return size, 0.9
            known = self._words.is_known_city(first.word) or (introduced and self._words.is_city(first.word))
            if cue or greeted or self._called or not (known or first.word in self._words.regions):
                return size, 0.75 if not introduced or size > 1 else 0.55
        if size > 1:
            return size, self._several(at, named, before)
        if self._alone(first, before):
            return size, 0.6
        asked = (
            ASK.search(before) is not None or NEXT_IS_PERSON.match(self._clues.text, first.end) is not None
        )
        return (size, 0.6) if asked and self._could_be_a_name(first.word) else (0, 0.0)

    def _is_a_thing(self, first: Token, size: int, sure: bool) -> bool:
        """ "dass mein Vermieter Kautionsabrechnungen schickt": nouns have capitals too; "our client Gmail"."""
        unlisted = not sure and size == 1 and not self._words.is_any_name(first.word)
        if unlisted and may_be_a_firm(self._clues.lower[max(0, first.start - 30) : first.start]):
            return True
        return unlisted and self._clues.language == "de" and len(first.word) > 9

    def _by_its_place(self, at: int, before: str) -> bool:
        """Whether an unlisted word that is known as a rare one begins a name."""
        first = self._run[at]
        beside = at + 1 < len(self._run) and self._run[at + 1].start - first.end == 1
        return may_begin(self._clues, first.start, first.end, before) or (
            beside and goes_before_family(self._clues, first.word, self._run[at + 1].word)
        )

    def _signed(self, at: int) -> int:
        """The number of words if the run is a signature: all of it from `at` on, in its own line."""
        if at or not signs(self._clues, self._run[0].start, self._run[-1].end):
            return 0
        named = [token.word for token in self._run if not token.initial]
        return len(self._run) if may_sign(self._clues, named) else 0

    def _several(self, at: int, named: list[str], before: str) -> float:
        """The confidence that the words from `at` on, of which `named` aren't initials, are a name."""
        words = self._words
        first, second = self._run[at], self._run[at + 1]
        last, end = named[-1], second.end
        given = words.is_given(first.word) or (
            first.word in words.rare_given and first.word not in words.common
        )
        family = words.is_family(last) and len(named) > 1
        place = words.is_city(" ".join(named)) or (not given and words.is_known_city(first.word))
        plain_first, plain_last = not words.is_ambiguous_name(first.word), not words.is_ambiguous_name(last)
        if place and not (given and family):
            return 0.4
        if given and family:
            if plain_first or plain_last:
                return 0.8
            return 0.55 if not _SENTENCE_START.search(before) else 0.45
        if given and plain_first:
            return 0.8 if len(named) == 1 else 0.65
        if first.word in words.rare_given and family and plain_last:
            return 0.65
        if (
            given
            and len(named) == 2
            and self._is_unknown(last)
            and not self._clues.text[end - 2 : end].isupper()
        ):
            return 0.55
        if given and shouted(self._clues, first.start, end, named):
            return 0.55
        beside = second.start - first.end <= 2
        if family and plain_last and first.word not in words.common and len(named) == 2 and beside:
            return 0.6
        unknown = [self._is_unknown(word) for word in named]
        numbered = re.match(r"\s?\d", self._clues.text[end : end + 2]) is not None  # a product
        if beside and not numbered and goes_before_family(self._clues, first.word, last):
            return 0.55
        if (
            beside
            and not numbered
            and len(named) <= 3
            and all(unknown)
            and (self._clues.language != "de" or beside_a_name(self._clues, first.start, end))
        ):
            return 0.55
        return 0.0

    def _is_unknown(self, word: str) -> bool:
        """Whether a word is on no list at all: two capitalised ones are usually a name."""
        words = self._words
        return (
            len(word) > 2
            and word not in words.common
            and not words.is_city(word)
            and word not in words.regions
        )

    def _could_be_a_name(self, word: str) -> bool:
        words = self._words
        unknown = word not in words.common and len(word) > 2
        return (words.is_any_name(word) or unknown) and not words.is_known_city(word)

    def _alone(self, token: Token, before: str) -> bool:
        """Whether a single word is a given name that refers to a person."""
        words, text = self._words, self._clues.text
        if (
            not words.is_given(token.word)
            or words.is_ambiguous_name(token.word)
            or words.is_known_city(token.word)
        ):
            if _NAME_LINE_AFTER.match(text, token.end):
                return words.is_any_name(token.word)
            odd = (
                token.word in words.rare_given
                and token.word not in words.common
                and text.startswith(("'s ", "’s "), token.end)
            )
            named = words.is_given(token.word) or token.word in words.rare_given
            return odd or (
                named and token.word not in NOT_NAMES and beside_a_name(self._clues, token.start, token.end)
            )
        if token.end - token.start <= 4 and text[token.start : token.end].isupper():
            return False
        if ARTICLE[self._clues.language].search(before) or beside_a_thing(
            self._clues, token.start, token.end
        ):
            return False
        return re.match(r"\.?\s?\d", text[token.end : token.end + 3]) is None

    def _initials(self, at: int, cue: bool) -> tuple[int, float]:
        """J. R. Smith: initials before a family name."""
        size = 1
        while at + size < len(self._run) and self._run[at + size].initial:
            size += 1
        if at + size >= len(self._run):
            return 0, 0.0
        last = self._run[at + size]
        family = self._words.is_family(last.word) and not self._no_name(last.word)
        rare = (
            self._words.common.get(last.word, 0.0) < 3.5 and len(last.word) > 3 and last.word not in NOT_NAMES
        )
        listed = _SENTENCE_START.search(
            self._clues.text[max(0, self._run[at].start - 3) : self._run[at].start]
        )
        if not (cue or family or (rare and (not listed or last.word not in self._words.common))):
            return 0, 0.0
        more = self._size(at + size)
        return size + more, 0.8 if cue or not self._words.is_ambiguous_name(last.word) else 0.55

    def _size(self, at: int, cued: bool = False) -> int:
        """How many tokens from `at` on may belong to one name."""
        size = 1
        while at + size < len(self._run) and size < 6:
            token = self._run[at + size]
            particle = token.word in CAPITAL_PARTICLES and at + size + 1 < len(self._run)
            if self._starts_another_name(at, token, at + size) or (size == 1 and self._is_home(at + 1)):
                break
            if not token.initial and not particle and self._no_name(token.word):
                surname = self._is_surname(at, at + size, cued)
                if not surname and not (cued and self._bridges(at + size)):
                    break
                size += 1
                if surname and not self._bridges(at + size - 1):
                    break
                continue
            size += 1
        while size > 1 and self._run[at + size - 1].initial:  # an initial ends no name
            size -= 1
        return size

    def _bridges(self, at: int) -> bool:
        """Wagner Horta Pires: a word that isn't a name is part of one, between names."""
        word = self._run[at].word
        return (
            at + 1 < len(self._run)
            and self._clues.language != "de"
            and self._words.is_family(self._run[at + 1].word)
            and word not in NOT_NAMES
            and self._words.common.get(word, 0.0) < 4.5
        )

    def _starts_another_name(self, first: int, token: Token, at: int) -> bool:
        """Ana Ruiz y Luis Mora are two, Ortega y Gasset is one."""
        between = self._clues.lower[self._run[at - 1].end : token.start].strip()
        return between in ("y", "e") and at - first > 0 and self._words.is_given(token.word)

    def _is_home(self, at: int) -> bool:
        """Ana de Belo Horizonte: after a given name and "de" comes her home, not her surname."""
        words, run = self._words, self._run
        between = self._clues.lower[run[at - 1].end : run[at].start].strip()
        if between not in ("de", "da", "do") or not words.is_given(run[at - 1].word):
            return False
        before = self._clues.lower[max(0, run[at - 1].start - 48) : run[at - 1].start]
        if INTRODUCTION.search(before) is None and self._clues.language not in ("es", "pt"):
            return False  # Anaïs de Brossard
        ends = [token.end for token in run[at : at + 3]]
        names = [self._clues.lower[run[at].start : end] for end in ends]
        return any(words.is_city(name) and (name not in words.family) for name in names)

    def _is_surname(self, first: int, at: int, cued: bool) -> bool:
        """Whether an unlisted word is a surname by its position: right after a name that isn't also a word."""
        words, before, token = self._words, self._run[at - 1], self._run[at]
        name = self._run[first]
        plain = words.is_given(name.word) or (name.word in words.rare_given and name.word not in words.common)
        frequent = (
            words.common.get(token.word, 0.0) >= _GERMAN_NOUN
            if self._clues.language == "de"
            else words.is_everyday(token.word)
        )
        between = self._clues.lower[before.end : token.start]
        if self._called and at - first == 1 and self._clues.language != "de" and token.word not in NOT_NAMES:
            return between.strip() not in ("y", "e")
        if (
            before.initial
            and at - first == 2
            and words.is_given(name.word)
            and not words.is_everyday(token.word)
        ):
            return token.word not in NOT_NAMES and len(token.word) > 2  # Maria R. Mesquita
        if at - first > 1 or cued:
            inner = all(
                t.initial or words.is_any_name(t.word) for t in self._run[first + (at - first > 1) : at]
            )
            apart = between.strip() in ("y", "e") or NEXT_IS_NO_PERSON.match(self._clues.lower, before.end)
            if (inner or at - first == 1) and not apart and is_rare(self._clues, token.word):
                return True
        return (
            at - first == 1
            and plain
            and (cued or not words.is_ambiguous_name(name.word))
            and not words.is_known_city(name.word)
            and between.strip() not in ("y", "e")
            and len(token.word) > 2
            and not frequent
            and not is_fictional_word(name.word)
            and token.word not in NOT_NAMES
            and token.word not in words.regions
            and NEXT_IS_NO_PERSON.match(self._clues.lower, before.end) is None
        )

    def _could_follow_title(self, token: Token) -> bool:
        """Dr. Prescott, but not Mr. President."""
        words = self._words
        return token.word not in NOT_NAMES and not words.is_everyday(token.word) and len(token.word) > 2

    def _is_abbreviation(self, token: Token) -> bool:
        """SSN, ABA: short and all in capitals, in a text that isn't."""
        text = self._clues.text[token.start : token.end]
        return (
            len(text) <= 4 and text.isupper() and not token.initial and not self._words.is_given(token.word)
        )

    def _no_name(self, word: str) -> bool:
        words = self._words
        if is_fictional_word(word):
            return False
        rare = word in words.rare_given and words.common.get(word, 0.0) < _RARE_NAME
        return word in NOT_NAMES or len(word) < 2 or (words.is_word(word) and not rare)

    def _goes_on_as_something_else(self, at: int) -> bool:
        """Nash equilibrium, Harvard University, Wagner Group, Ford Inc."""
        end = self._run[at - 1].end
        return NEXT_IS_NO_PERSON.match(self._clues.lower[end : end + 24]) is not None
