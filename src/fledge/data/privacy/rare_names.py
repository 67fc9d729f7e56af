"""Unlisted names that only their position reveals: "chama-se Clóvis", "Dear Jandira,", a line at the end.

A word known as a rare word of some language, as foreign names are, may begin or end a name here; frequent words may
not, and in German, where nouns have capitals, too, only rarer ones.
"""

from __future__ import annotations

import re

from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import ASK, CALLED, GREETING, NOT_NAMES, ROLE
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.word_lists import read_sections

_CAPITAL = rf"[{UPPER}][^\W\d_]*(?:['’-][^\W\d_]+)*"
_AND = r"(?:and|und|et|y|e|&|or|oder|ou|o)"
_AND_BEFORE = re.compile(
    rf"(?<!\w)({_CAPITAL}(?: (?:da |de |van der |van |von )?{_CAPITAL}){{0,2}}) {_AND} (?:(?:de|da|do|del|von|of) |d['’])?$"
)
_AND_AFTER = re.compile(rf" {_AND} ({_CAPITAL})")
_LIST_BEFORE = re.compile(rf"(?<!\w)({_CAPITAL})(?:,| {_AND}) $")
_LIST_AFTER = re.compile(rf"(?:,| {_AND}) ({_CAPITAL})")
_RARE = 4.0  # Zipf frequency below which a word may be a name after a cue
_RARE_GERMAN = 3.5
_RARER = 3.6  # the same without a cue, before a family name
_ADDRESSED = re.compile(r"\s*(?:[,!.:;\n]|$)")
_LISTS = read_sections("name_cues")
_CLIENTS = _LISTS["clients"]
# Terms of address without a name.
_NOBODY = _LISTS["nobody"]


def may_begin(clues: Clues, start: int, end: int, before: str) -> bool:
    """Whether the rare word text[start:end] begins a name by its position; `before`: what precedes, in lower case."""
    word = clues.lower[start:end]
    if not is_rare(clues, word) or word in _NOBODY:
        return False
    if CALLED.search(before):
        return True
    if GREETING.search(before):
        rest = clues.text[end : end + 60].split("\n")[0]
        ended = _ADDRESSED.match(clues.text, end) is not None
        return ended or (rest[:2].strip()[:1].isupper() and clues.language != "de")
    if ROLE.search(before) or ASK.search(before):
        return clues.language != "de" and lexicon().common.get(word, 0.0) < _RARER
    return False


def may_be_a_firm(before: str) -> bool:
    """ "our client Gmail": after these words a single unlisted word is as often a firm or a thing."""
    return before.rstrip(" ,").rpartition(" ")[2] in _CLIENTS


def goes_before_family(clues: Clues, first: str, last: str) -> bool:
    """Jurandir Oliveira: a rare word before a family name, but not in German."""
    words = lexicon()
    return (
        clues.language != "de"
        and words.is_family(last)
        and words.common.get(first, 0.0) < _RARER
        and is_rare(clues, first)
        and not words.is_known_city(first)
    )


def signs(clues: Clues, start: int, end: int) -> bool:
    """Whether text[start:end] fills a line near the end of the text, after an empty line or a closing formula."""
    text = clues.text
    head = text.rfind("\n", 0, start)
    if head <= 0 or text[head + 1 : start].strip(" \t-–—*_") or text.count("\n", end) > 4:
        return False
    stop = text.find("\n", end)
    if text[end : stop if stop >= 0 else len(text)].strip(" \t.,*_"):
        return False
    above = text[text.rfind("\n", 0, head) + 1 : head].strip()
    if text[:head].rstrip().endswith(":"):
        return False  # an announcement: "Essay title:"
    return not above or GREETING.search(above.lower()[-40:] + " ") is not None or above.endswith(",")


def may_sign(clues: Clues, words_: list[str]) -> bool:
    """Whether words that fill a signature's line may be a name: none everyday, one listed or all unknown."""
    words = lexicon()
    if not 2 <= len(words_) <= 4 or any(word in NOT_NAMES or is_fictional_word(word) for word in words_):
        return False
    frequent = [
        word
        for word in words_
        if words.is_everyday(word) or (words.is_word(word) and not is_rare(clues, word))
    ]
    ends = (words_[0], words_[-1])
    has_listed = any(words.is_any_name(word) and not words.is_ambiguous_name(word) for word in ends)
    return not frequent and (has_listed or words_[0] not in words.common)


def beside_a_name(clues: Clues, start: int, end: int) -> bool:
    """Anna and Rose: an unambiguous name is on the other side of an "and"."""
    words = lexicon()
    beside = (_AND_BEFORE.search(clues.text, max(0, start - 50), start), _AND_AFTER.match(clues.text, end))
    names = [name for match in beside if match for name in match[1].lower().split(" ")]
    return any(
        words.is_any_name(name)
        and not words.is_ambiguous_name(name)
        and name not in NOT_NAMES
        and not words.is_known_city(name)
        and (words.is_given(name) or words.common.get(name, 0.0) < 4.3)
        for name in names
    )


def beside_a_thing(clues: Clues, start: int, end: int) -> bool:
    """Python, Ruby and Julia; Big Ben: a name among things is a thing's name."""
    beside = (_LIST_BEFORE.search(clues.text, max(0, start - 30), start), _LIST_AFTER.match(clues.text, end))
    return any(match[1].lower() in NOT_NAMES for match in beside if match) or clues.lower.endswith(
        "big ", 0, start
    )


def shouted(clues: Clues, start: int, end: int, named: list[str]) -> bool:
    """CLARA GUIMARÃES, among words that aren't in capitals: after a given name, words that aren't frequent."""
    text, words = clues.text, lexicon()
    return (
        text[start:end].isupper()
        and not text[max(0, start - 60) : end + 60].isupper()
        and 2 <= len(named) <= 4
        and all(
            (words.is_any_name(word) or words.common.get(word, 0.0) < 4.4) and word not in NOT_NAMES
            for word in named[1:]
        )
    )


def is_rare(clues: Clues, word: str) -> bool:
    """Whether a word is rare enough to be a family name after names or a cue."""
    words = lexicon()
    limit = _RARE_GERMAN if clues.language == "de" else _RARE
    return (
        len(word) > 2
        and word not in NOT_NAMES
        and words.common.get(word, 0.0) < limit
        and word not in words.regions
        and not is_fictional_word(word)
    )
