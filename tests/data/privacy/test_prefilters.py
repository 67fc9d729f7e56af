"""What spares a text a long pattern must never spare it a match: on texts of all corpora, with and without."""

from __future__ import annotations

import re

import pytest

from fledge.bench.privacy.corpus import make_corpus, make_fourth_corpus, make_second_corpus, make_third_corpus
from fledge.data.privacy import chats
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.cues import GREETING
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.rare_names import ends_in_cue


@pytest.fixture(scope="module")
def texts() -> list[Clues]:
    makers = (make_corpus, make_second_corpus, make_third_corpus, make_fourth_corpus)
    return [Clues(record.text) for make in makers for record in make(250, seed=5)]


def test_cues_end_in_words_that_are_known_to_end_them(texts: list[Clues]) -> None:
    for clues in texts:
        for word in re.finditer(r"(?<!\w)\w", clues.lower):
            before = clues.lower[max(0, word.start() - 48) : word.start()]
            assert ends_in_cue(before) or " aus " in before or not GREETING.search(before), before


def test_names_of_chats_hold_every_name_that_is_plain() -> None:
    words = lexicon()
    plain = {name for name in words.lower_given if chats._is_plain(words, name)}
    assert plain <= chats._chat_names() < words.lower_given
