"""What spares a text a long pattern must never spare it a match: on texts of all corpora, with and without."""

from __future__ import annotations

import re

import pytest

from fledge.bench.privacy.corpus import make_corpus, make_fourth_corpus, make_second_corpus, make_third_corpus
from fledge.data.privacy import (
    addresses,
    chats,
    keyed,
    labels,
    passwords,
    place_cues,
    places,
    secrets,
    unusual_names,
)
from fledge.data.privacy.beginnings import beginnings, literal_beginning, matches_from
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.cues import GREETING, INTRODUCTION, TITLE
from fledge.data.privacy.label_words import _LABEL, fold, labels_in
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.rare_names import ends_in_cue, ends_in_title, introduces

_POSTCODES = (
    "zip code: 94110",
    "My zipcode is 94110",
    "PLZ: 80331",
    "c.p. 28014",
    "CEP 01310-100",
    "code postal : 75011",
)


@pytest.fixture(scope="module")
def texts() -> list[Clues]:
    makers = (make_corpus, make_second_corpus, make_third_corpus, make_fourth_corpus)
    made = [record.text for make in makers for record in make(250, seed=5)]
    return [Clues(text) for text in (*made, *_POSTCODES)]


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        (passwords._LABEL_WORDS, passwords._PASSWORD),
        (passwords._USERS, passwords._BESIDE_USER),
        (place_cues.LIVES_WORDS, place_cues.LIVES),
        (places._POSTCODE_WORDS, places._POSTCODE_LABEL),
        *((words, pattern) for _, pattern, words in unusual_names._INTRODUCTIONS),
    ],
)
def test_every_match_holds_one_of_the_words(
    texts: list[Clues], words: frozenset[str], pattern: re.Pattern[str]
) -> None:
    matched = [clues for clues in texts if pattern.search(clues.text)]
    assert matched
    assert [clues.text for clues in matched if words.isdisjoint(clues.words)] == []


def test_cues_end_in_words_that_are_known_to_end_them(texts: list[Clues]) -> None:
    for clues in texts:
        for word in re.finditer(r"(?<!\w)\w", clues.lower):
            before = clues.lower[max(0, word.start() - 48) : word.start()]
            assert ends_in_title(before) or not TITLE.search(before), before
            assert introduces(before) or not INTRODUCTION.search(before), before
            assert ends_in_cue(before) or " aus " in before or not GREETING.search(before), before


def test_searches_in_leaps_find_what_a_plain_search_finds(texts: list[Clues]) -> None:
    for clues in texts:
        folded = fold(clues.lower)
        plain = [match.span() for match in _LABEL.finditer(folded)]
        assert [(start, end) for start, end, _ in labels_in(folded, 0, len(folded))] == plain
        assert _spans(labels._values(clues.text)) == _spans(labels._VALUE.finditer(clues.text))
        assert _spans(keyed._fields(clues.text)) == _spans(keyed._FIELD.finditer(clues.text))
        for begins, pattern in addresses._PATTERNS:
            if isinstance(begins, re.Pattern):
                found = matches_from(begins, pattern, clues.lower, clues.text)
                assert _spans(found) == _spans(pattern.finditer(clues.text))


def test_a_word_that_begins_no_place_begins_none() -> None:
    lists = lexicon()
    names = {*lists.cities, *lists.regions}
    first = {re.split(r"[ \u00a0]", name)[0] for name in names} | names
    assert [word for word in first if places._begins_no_place(word)] == []
    assert places._begins_no_place("please")


def test_names_of_chats_hold_every_name_that_is_plain() -> None:
    words = lexicon()
    plain = {name for name in words.lower_given if chats._is_plain(words, name)}
    assert plain <= chats._chat_names() < words.lower_given


@pytest.mark.parametrize(
    ("expression", "letters"),
    [
        (r"bestell\w*", "bestell"),
        (r"orders?\b", "order"),
        (r"c\.c\.(?= ?\d)", "c.c."),
        ("sort ?code", "sort"),
        ("c/", "c"),
    ],
)
def test_literal_beginning(expression: str, letters: str) -> None:
    assert literal_beginning(expression) == letters


def test_beginnings_stand_at_the_head_of_words() -> None:
    begins = beginnings(("code", "compte", "co", "card"))
    assert [match.start() for match in begins.finditer("a card, discard: code")] == [2, 17]
    with pytest.raises(ValueError, match="no beginnings"):
        beginnings(("code", ""))


def test_each_key_pattern_names_what_its_line_must_hold() -> None:
    """A new version of detect-secrets may bring patterns that the pieces beside its plug-ins would hide."""
    for plugin, needs in secrets._plugins():
        for pattern in plugin.denylist:
            source = pattern.pattern.lower().replace("\\", "")
            assert not needs or any(need in source for need in needs) or "(?:r|s)k_live_" in source, source


def _spans(matches: object) -> list[tuple[int, int]]:
    return [match.span() for match in matches]  # type: ignore[attr-defined]
