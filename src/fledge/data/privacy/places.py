"""Towns, regions and postal codes without a model: GeoNames' cities, and the words around them.

    0.85   a town before a state or country          "Springfield, IL", "Graz, Austria"
    0.70   a known city, not an everyday word        "the weather in Düsseldorf"
    0.65   anything after "I live in" and similar    "I grew up in Tuttle Creek"
    0.60   a small or ambiguous town after "in"      "a shop in Reading"; a word that ends like a town

Countries and states count only as somebody's home or birthplace, or after a town: "the capital of France" isn't
personal data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import HONORIFICS, NOT_NAMES
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import COMMON_PLACES, lexicon
from fledge.data.privacy.place_cues import FIELD, LIVES, LOCATIVE, PERSONAL, PREFIX, WEAK

_WORD = re.compile(
    rf"[{UPPER}](?:(?<![\w@/\\.#$].)[^\W\d_]*(?:['’-][^\W\d_]+)*(?![\w@\\(=]|\.[a-z])|(?<=(?<!\w)S)t\.(?= [{UPPER}]))"
)
_JOIN = re.compile(
    r"[ \u00a0](?:(?:am|an der|im|auf|bei|ob der|sur|sous|de la|de los|de las|de|del|do|da|dos|das|la|le|les|el|of|the|upon|on|under|e|y|d['’]) ?)?|(?<=St\.) "
)
_IN = re.compile(
    r"(?<![^\W_])(?:in|to|from|near|at|around|nach|aus|bei|ab|à|vers|en|em|hasta|desde|até) (?=(?P<town>[a-zà-öø-ÿ]{3,20}(?:[ '’-][a-zà-öø-ÿ]{1,20}){0,4}))"
)
_ENDED = re.compile(
    r"\s*(?:[,.!?;:)\n]|$|(?:and|und|et|y|e|but|now|since|for|on|at|with|next|this|tomorrow|today|still|steht|am|um|mit|noch|oder|pour|avec|le|ce|cette|demain|con|para|el|este|esta|mañana|com|no|amanhã|tá|às?)\b)"
)
_GERMAN_JOIN = re.compile(r" (?:am|an der|im|in der|vor der|ob der|auf der) ")
_PAIR = re.compile(r" (?:to|and|nach|und|bis|à|et|a|y|hasta|e|até|para|or|oder|ou|o) ")  # from X to Y
_ENDING = re.compile(
    r".{3,}(?:ton|town|ville|burg|burgh|bury|borough|ford|furt|shire|chester|mouth|port|haven|view|side|stad|land|fort|berg|heim|hausen|dorf|stedt|stadt|kirchen|ingen|brück|wick|field|boro|ham|chaven|bourg|court|polis|stad)"
)
_TOWN_ENDING = re.compile(
    r".{3,}(?:ville|furt|mouth|borough|shire|chester|hausen|kirchen|stadt|burgh|fort|port)"
)
_STATE_AFTER = re.compile(r",? ([A-Z]{2})(?: \d{5}(?:-\d{4})?)?(?!\w)")
_REGION_AFTER = re.compile(rf",\s([{UPPER}][^\W\d_]+(?: [{UPPER}][^\W\d_]+){{0,2}})")
_FREQUENT = 4.0  # Zipf frequency from which a word isn't a place, whatever precedes it
_NO_TOWN_BEFORE = ("inc", "ltd", "gmbh", "group", "llc", "saint-germain", "agreement", "club")
_ARTICLES = ("de", "le", "la", "les", "da", "do", "dos")
_POSTCODE_UK = re.compile(
    r"[A-PR-UWYZ](?<![\w-].)(?:(?<=G)IR ?0AA|[A-HK-Y]?\d[\dA-HJKPSTUW]? ?\d[ABD-HJLNP-UW-Z]{2})(?!\w)"
)
_POSTCODE_LABEL = re.compile(
    r"(?<![^\W_])(?:zip(?:[ -]?code)?|post(?:al)?[ -]?code|postleitzahl|plz|code postal|código postal|c\.p\.|cp|cep)(?:[^\w\n]{1,3}|\s(?:is|ist|est|es|é|was)\s(?:the )?)\s?([A-Z]?\d[\dA-Z]{1,4}(?:[ -]?[\dA-Z]{3,4})?)(?!\w)",
    re.IGNORECASE,
)
_POSTCODE_CA = re.compile(r"[ABCEGHJ-NPRSTVXY](?<![\w-].)\d[ABCEGHJ-NPRSTV-Z] \d[ABCEGHJ-NPRSTV-Z]\d(?!\w)")
# A code and the town behind it. Four digits could be a year, so they need a comma or the start of a line before them.
_TOWN_AFTER_CODE = re.compile(
    rf"(?<![\w.,-])(?:(?:D-|F-|E-|CH-|A-)?(?P<code>\d{{5}}|\d{{8}}|(?<=, )\d{{6}}|[A-Z]\d[A-Z] ?\d[A-Z]\d|(?P<sure>\d{{4}}-\d{{3}}|\d{{5}}-\d{{3,4}})|(?:(?<=, )|(?<=\n)|(?<=[ACDFHB]-))\d{{4}}))"
    rf" (?P<town>[{UPPER}][^\W\d_]+(?:[ -](?:(?:de la|de los|de|da|do|dos|das|del|am|an der|im|sur|en|la|le) )?[{UPPER}]?[^\W\d_]+){{0,4}})(?!\w)"
)


def find_places(clues: Clues) -> Iterator[Finding]:
    """Towns, regions, postal codes."""
    yield from _lower_case(clues)
    yield from _lower_towns(clues)
    if not clues.capitals:
        return
    yield from _towns(clues)
    if clues.digits:
        yield from _postcodes(clues)


def _lower_case(clues: Clues) -> Iterator[Finding]:
    """ "i live in santa fe": the longest city in lower case after words that say where somebody lives."""
    for match in LIVES.finditer(clues.text):
        start = match.start("town")
        end = _longest_city(clues, start, match.end())
        if end is None or is_fictional_word(match["town"].split()[0].lower()):
            continue
        name = clues.text[start:end]
        ended = re.match(
            r"\s*(?:[^\w\s]|$|(?:and|und|et|y|e|but|now|since|for|with|can|right|atm|near|close)\b)",
            clues.text[end:],
        )
        big = lexicon().cities[name] >= 100_000 and len(name) > 4
        if lexicon().is_known_city(name) or (
            ended and name not in NOT_NAMES and (big or name not in COMMON_PLACES)
        ):
            yield Finding(start, end, e.LOCATION, 0.65)


def _lower_towns(clues: Clues) -> Iterator[Finding]:
    """ "see you saturday in kassel?": a city in lower case that is no word, after "in" and at a sentence's end."""
    lists = lexicon()
    for match in _IN.finditer(clues.text):
        end = match.end("town")
        while end > match.start("town"):
            name = clues.text[match.start("town") : end]
            if lists.is_city(name) and (
                (lists.is_known_city(name) and len(name) > 4) or _ENDED.match(clues.text, end)
            ):
                sure = lists.is_known_city(name) or " " in name or lists.common.get(name, 0.0) < 3.2
                if sure and name not in COMMON_PLACES and not lists.is_given(name) and name not in NOT_NAMES:
                    yield Finding(match.start("town"), end, e.LOCATION, 0.6)
                break
            end = clues.text.rfind(" ", match.start("town"), end)


def _towns(clues: Clues) -> Iterator[Finding]:
    words = list(_WORD.finditer(clues.text))
    at, last = 0, None  # last: end of the previous place
    while at < len(words):
        paired = last is not None and _PAIR.fullmatch(clues.lower, last, words[at].start()) is not None
        size, score = _town_at(clues, words, at, paired)
        if size and score <= 0.7 and at and _after_unknown(clues, words[at - 1], words[at]):
            size = 0  # Jacquelyne Hinckley
        if size:
            start, end = words[at].start(), words[at + size - 1].end()
            region = _region_after(clues, end)
            if region is not None and score < 0.85:
                score = 0.85
            last = end
            yield Finding(start, end, e.LOCATION, score)
            if region is not None:
                yield Finding(region[0], region[1], e.LOCATION, 0.8)
                while at + size < len(words) and words[at + size].start() < region[1]:
                    size += 1
        at += size or 1


def _after_unknown(clues: Clues, before: re.Match[str], town: re.Match[str]) -> bool:
    """Whether an unlisted capitalised word directly precedes."""
    lists = lexicon()
    word = before[0].lower()
    return (
        town.start() - before.end() == 1
        and clues.text[before.end()] == " "
        and len(word) > 3
        and word not in lists.common
        and word not in PREFIX
        and not lists.is_city(word)
        and word not in lists.regions
        and not is_fictional_word(word)
    )


class _Before:
    """The words before a capitalised one; examined only for the few words that may be a place."""

    def __init__(self, text: str, paired: bool) -> None:
        self.text, self._paired = text, paired

    @cached_property
    def personal(self) -> bool:
        """Someone lives, works or goes there, or a field is filled in."""
        text = self.text
        if self._paired or PERSONAL.search(text) is not None:
            return True
        return text.rstrip()[-1:] in (":", "=") and FIELD.search(text) is not None

    @cached_property
    def locative(self) -> bool:
        """That, or a preposition of place."""
        return self.personal or LOCATIVE.search(self.text) is not None


def _town_at(clues: Clues, words: list[re.Match[str]], at: int, paired: bool) -> tuple[int, float]:
    """How many words from `at` on are a place (0: none), and the confidence."""
    first = words[at][0].lower()
    lists = lexicon()
    abbreviation = len(first) <= 4 and words[at][0].isupper()  # "ABA", "SAN": hardly ever a town
    if (
        is_fictional_word(first)
        or first in ("mai", "may", "juin", "juni", "juli")
        or (abbreviation and first not in lists.regions)
    ):
        return 0, 0.0
    before = _Before(clues.lower[max(0, words[at].start() - 60) : words[at].start()], paired)
    longest = _run_length(clues.text, words, at)
    if longest > 1 and first in COMMON_PLACES and not before.personal:
        pair = clues.lower[words[at].start() : words[at + 1].end()]
        apart = words[at + 1].start() - words[at].end() > 1
        if not lists.is_city(pair) and (apart or lists.is_word(words[at + 1][0].lower())):
            return 0, 0.0  # Feira da Ladra, Best Buy
    run = words[at : at + longest]
    listed = _listed_town(clues, run, before)
    return listed if listed[0] else _unlisted_place(clues, run, before)


def _listed_town(clues: Clues, run: list[re.Match[str]], before: _Before) -> tuple[int, float]:
    """The longest listed city or region at the beginning of a run of capitalised words, and the confidence."""
    lists, first, longest = lexicon(), run[0][0].lower(), len(run)
    for size in range(min(longest, 4), 0, -1):
        name = clues.lower[run[0].start() : run[size - 1].end()]
        if name in lists.regions and before.personal:
            return size, 0.65
        if not lists.is_city(name):
            continue
        if size == 1 and longest == 2 and _on_a_river(clues.lower, run[0], run[1]):
            size = longest
        if size == longest or size > 1 or not _name_goes_on(run[size][0].lower()):
            if lists.is_known_city(name):
                return size, 0.55 if lists.is_any_name(name) and not before.locative else 0.7
            end = run[size - 1].end()
            if (
                before.personal
                or _region_after(clues, end)
                or (before.locative and not WEAK.search(before.text) and first not in NOT_NAMES)
            ):
                return size, 0.65
    return 0, 0.0


def _unlisted_place(clues: Clues, run: list[re.Match[str]], before: _Before) -> tuple[int, float]:
    """Whether a run of capitalised words is an unlisted place, by its context and ending."""
    lists, first, longest = lexicon(), run[0][0].lower(), len(run)
    start, end = run[0].start(), run[-1].end()
    if first in NOT_NAMES or first in HONORIFICS:
        return 0, 0.0
    if longest > 1 and first in _ARTICLES and before.personal:
        return longest, 0.65
    if first in PREFIX and longest > 1 and (before.locative or _region_after(clues, end)):
        return longest, 0.65
    if _region_after(clues, end) and not lists.is_word(first):
        return longest, 0.6
    name = clues.lower[start:end]
    rare = clues.language != "de" and longest <= 2 and lists.common.get(first, 0.0) < _FREQUENT
    rare = rare and not before.text.endswith((" ao ", " aos ", " al ", " au ", " aux "))
    if name in lists.regions or (lists.is_word(first) and not (rare and before.personal)):
        return 0, 0.0
    if longest <= 4 and not lists.is_given(first) and before.personal:
        return longest, 0.65
    if (
        longest == 1
        and _TOWN_ENDING.fullmatch(first)
        and first not in lists.common
        and not lists.is_any_name(first)
    ):
        return 1, 0.55
    if (
        longest == 1
        and _ENDING.fullmatch(first)
        and first not in lists.common
        and not lists.is_given(first)
        and before.locative
    ):
        return 1, 0.6
    return 0, 0.0


def _on_a_river(lower: str, town: re.Match[str], word: re.Match[str]) -> bool:
    """Freiburg im Breisgau, Frankfurt am Main; but not: Berlin im Januar."""
    if _GERMAN_JOIN.fullmatch(lower, town.end(), word.start()) is None:
        return False
    name = word[0].lower()
    return (
        name in ("main", "rhein", "see", "neckar", "inn", "ruhr", "donau")
        or lexicon().common.get(name, 0.0) < 3.6
    )


def _run_length(text: str, words: list[re.Match[str]], at: int) -> int:
    lists = lexicon()
    size = 1
    while (
        at + size < len(words)
        and size < 5
        and _JOIN.fullmatch(text, words[at + size - 1].end(), words[at + size].start())
    ):
        if words[at + size][0].lower() in NOT_NAMES or (
            size and lists.is_word(words[at + size][0].lower()) and size > 1
        ):
            break
        size += 1
    return size


def _name_goes_on(word: str) -> bool:
    """Whether a single word after a city makes it a person's name or a firm's: "Paris Hilton", "Lima Ltd"."""
    lists = lexicon()
    unlisted = len(word) > 3 and word not in lists.common and not lists.is_city(word)
    return lists.is_family(word) or unlisted or word in _NO_TOWN_BEFORE


def _region_after(clues: Clues, end: int) -> tuple[int, int] | None:
    """The span of the state or country after a town: ", IL", ", Germany"."""
    lists = lexicon()
    match = _STATE_AFTER.match(clues.text, end)
    if match and match[1] in lists.state_codes and clues.text[end] == ",":
        return match.start(1), match.end()
    match = _REGION_AFTER.match(clues.text, end)
    if match:
        name = match[1].lower()
        while name:
            if name in lists.regions:
                return match.start(1), match.start(1) + len(name)
            name = name.rpartition(" ")[0]
    return None


def _postcodes(clues: Clues) -> Iterator[Finding]:
    for match in _POSTCODE_UK.finditer(clues.text):
        if " " in match[0]:
            yield Finding(match.start(), match.end(), e.LOCATION, 0.7)
    for match in _POSTCODE_LABEL.finditer(clues.text):
        yield Finding(match.start(1), match.end(1), e.LOCATION, 0.75)
    for match in _POSTCODE_CA.finditer(clues.text):
        yield Finding(match.start(), match.end(), e.LOCATION, 0.7)
    for match in _TOWN_AFTER_CODE.finditer(clues.text):
        end = _longest_city(clues, *match.span("town"))
        if end is None and match["sure"]:
            end = match.end("code")
        if end is not None:
            yield Finding(match.start(), end, e.LOCATION, 0.8)


def _longest_city(clues: Clues, start: int, end: int) -> int | None:
    """The end of the longest city that begins at `start`, up to `end`; None: no city."""
    lists = lexicon()
    while end > start:
        name = clues.lower[start:end]
        if lists.is_city(name) and (name not in lists.given or lists.cities[name] >= 100_000):
            return end
        end = max(clues.text.rfind(" ", start, end), clues.text.rfind("-", start, end))
    return None
