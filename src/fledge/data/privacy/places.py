"""Towns and postal codes without a model: GeoNames' cities, and the words around them.

    "I live in Tuttle Creek", "Wohnort: Celle", "Boise, ID 83702"     somebody's home, a field, a postal code
    "the weather in Düsseldorf"                                       a city alone: WEAK

A city alone counts only beside other personal data of the conversation (`filter`): most prompts ask about the place.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import NOT_NAMES
from fledge.data.privacy.entities import WEAK, Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import COMMON_PLACES, lexicon
from fledge.data.privacy.word_lists import read_patterns, read_sections

_P = read_patterns("place_cues")
_LISTS = read_sections("place_cues")
_WORD = rf"(?:[{UPPER}][^\W\d_]+(?:['’-][^\W\d_]+)*|St\.)"
_TOWN = rf"{_WORD}(?:(?: (?:{_P['inside names']}))? {_WORD}){{0,4}}"
_CANDIDATE = re.compile(rf"(?<![\w@/\\.#$-]){_TOWN}(?![\w@\\(=]|\.[a-z])")
_LIVING = rf"(?<![^\W_])(?:(?:{_P['living']})(?: [\w./-]+){{0,3}} (?:{_P['in']})|{_P['home']})"
_FIELD = rf"(?<![^\W_])(?:{_P['fields']})\s?[:=]\s*"
_CUE = re.compile(f"{_LIVING}|{_FIELD}")
_HOME = re.compile(rf"(?:{_LIVING} (?:the )?|{_FIELD})$")
_LOWER = re.compile(rf"{_LIVING} (?P<town>[a-zà-öø-ÿ]{{3,20}}(?:[ '’-][a-zà-öø-ÿ]{{1,20}}){{0,3}})")
_ON_A_RIVER = re.compile(r" (?:am|an der|im) ([^\W\d_]+)")  # Freiburg im Breisgau
_STATE = re.compile(rf",\s(?P<state>[A-Z]{{2}}(?!\w)|{_WORD}(?: {_WORD}){{0,2}})")
_CODE = re.compile(  # Great Britain, Canada
    r"(?<![\w-])(?P<code>[A-PR-UWYZ][A-HK-Y]?\d[\dA-HJKPSTUW]? \d[ABD-HJLNP-UW-Z]{2}|[ABCEGHJ-NPRSTVXY]\d[ABCEGHJ-NPRSTV-Z] \d[ABCEGHJ-NPRSTV-Z]\d)(?!\w)"
)
_AFTER_WORD = re.compile(
    rf"(?<![^\W_])(?i:{_P['postcode']})(?:[^\w\n]{{1,3}}|\s(?:is|ist|est|es|é|was)\s)\s?(?P<code>[A-Z]?\d[\dA-Z]{{1,4}}(?:[ -]?[\dA-Z]{{3,4}})?)(?!\w)"
)
_ZIP = re.compile(r"(?<=[ ,])\d{5}(?:-\d{4})?(?!\w)")
_BEFORE_ZIP = re.compile(rf"(?<!\w){_TOWN},? (?P<state>[A-Z]{{2}}|{_WORD}(?: {_WORD})?),? $")
# A code and the town behind it. Four digits could be a year, so they need a comma or the start of a line before them.
_TOWN_AFTER_CODE = re.compile(
    rf"(?<![\w.,-])(?:(?:D-|F-|E-|CH-|A-)?(?P<code>\d{{5}}|\d{{8}}|(?P<sure>\d{{4,5}}-\d{{3}})|(?:(?<=, )|(?<=\n)|(?<=[ACDFHB]-))\d{{4}}))"
    rf" (?P<town>{_TOWN})(?!\w)"
)


def find_places(clues: Clues) -> Iterator[Finding]:
    """Towns and postal codes; cities without any of it beside them are WEAK."""
    lists, cue = lexicon(), _CUE.search(clues.lower)
    for match in _LOWER.finditer(clues.lower, cue.start()) if cue else ():
        start = match.start("town")
        end = None if clues.text[start].isupper() else _longest(clues, start, match.end(), lists.cities)
        name = clues.text[start:end]
        plain = lists.common.get(name, 0.0) >= 4.0 or all(
            map(lists.is_everyday, name.split())
        )  # "a new city"
        rare = lists.is_known_city(name) or (len(name) > 4 and not plain)
        if end and rare and name not in NOT_NAMES | COMMON_PLACES and not is_fictional_word(name.split()[0]):
            yield Finding(start, end, e.LOCATION, 0.65)
    if clues.capitals:
        yield from _towns(clues, cue)
    if clues.digits:
        yield from _postcodes(clues)


def _towns(clues: Clues, cue: re.Match[str] | None) -> Iterator[Finding]:
    lists = lexicon()
    for match in _CANDIDATE.finditer(clues.text):
        start, stop = match.span()
        first = re.split(r"[ '’-]", match[0].lower())[0]
        if first in NOT_NAMES or is_fictional_word(first):
            continue
        home = cue and _HOME.search(clues.lower, max(cue.start(), start - 60), start)
        end = _longest(clues, start, stop, lists.cities)
        if end is None and home:
            end = _longest(clues, start, stop, lists.regions)
            end = stop if end is None and _may_be_a_town(clues, match[0]) else end
        river = _ON_A_RIVER.match(clues.text, end, stop) if end else None
        end = river.end() if river and river[1].lower() not in NOT_NAMES else end
        if end is None:
            continue
        region_end = _region_after(clues, end)
        if home and region_end:
            yield Finding(end + 2, region_end, e.LOCATION, 0.75)
        known = region_end or lists.is_known_city(clues.lower[start:end])
        if home or (known and not _goes_on(clues.lower[end:stop])):
            yield Finding(start, end, e.LOCATION, 0.75 if home else WEAK)


def _may_be_a_town(clues: Clues, name: str) -> bool:
    """True if an unlisted name may be a town's where one is expected: "New Tuttle", but not "Marketing"."""
    words = [word for word in re.split(r"[ -]", name.lower()) if word not in _LISTS["prefix"]]
    plain = bool(words) and not lexicon().is_word(words[0]) and words[0] not in NOT_NAMES
    return plain and clues.language != "de"  # German nouns have capitals, too


def _goes_on(rest: str) -> bool:
    """True if the words after a city make it a person's name or a firm's: "Paris Hilton", "Lima Ltd"."""
    word = rest.split()[0] if rest.split() else ""
    return bool(word) and (lexicon().is_family(word) or word not in lexicon().common)


def _region_after(clues: Clues, end: int) -> int | None:
    """Where the state or country after a town ends: ", IL", ", Germany"."""
    match = _STATE.match(clues.text, end)
    if match is None or match["state"] in lexicon().state_codes:
        return match.end() if match else None
    return _longest(clues, match.start("state"), match.end(), lexicon().regions)


def _postcodes(clues: Clues) -> Iterator[Finding]:
    lists = lexicon()
    for match in [*_CODE.finditer(clues.text), *_AFTER_WORD.finditer(clues.text)]:
        yield Finding(*match.span("code"), e.LOCATION, 0.7)
    for code in _ZIP.finditer(clues.text):
        town = _BEFORE_ZIP.search(clues.text, max(0, code.start() - 60), code.start())
        if town and (town["state"] in lists.state_codes or town["state"].lower() in lists.regions):
            yield Finding(town.start(), code.end(), e.LOCATION, 0.85)
    for match in _TOWN_AFTER_CODE.finditer(clues.text):
        end = _longest(clues, *match.span("town"), lists.cities) or (
            match.end("code") if match["sure"] else None
        )
        if end is not None:
            yield Finding(match.start(), end, e.LOCATION, 0.8)


def _longest(clues: Clues, start: int, end: int, names: Container[str]) -> int | None:
    """The end of the longest of these names that begins at `start`, up to `end`; None: none does."""
    while end > start:
        if clues.lower[start:end] in names:
            return end
        end = max(clues.text.rfind(" ", start, end), clues.text.rfind("-", start, end))
    return None
