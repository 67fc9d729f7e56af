"""Towns and postal codes without a model: GeoNames' cities, and the words around them.

    "I live in Tuttle Creek", "Wohnort: Celle", "Boise, ID 83702"     somebody's home, a field, a postal code
    "the weather in Düsseldorf"                                       a city alone: WEAK

A city alone counts only beside other personal data of the conversation (`filter`): most prompts ask about the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import NOT_NAMES
from fledge.data.privacy.entities import WEAK, Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import COMMON_PLACES, lexicon
from fledge.data.privacy.word_lists import read_sections

_WORD = rf"(?:[{UPPER}][^\W\d_]+(?:['’-][^\W\d_]+)*|St\.)"
_LINK = r"(?:am|an der|im|auf|bei|ob der|sur|sous|de la|de los|de las|de|del|do|da|dos|das|la|le|les|el|of|the|upon|on|under|y)"
_TOWN = rf"{_WORD}(?:(?: {_LINK})? {_WORD}){{0,4}}"
_CANDIDATE = re.compile(rf"(?<![\w@/\\.#$-]){_TOWN}(?![\w@\\(=]|\.[a-z])")
# Words that say that somebody lives, works, comes from or was born there.
_HOME = {
    "en": r"(?:live[sd]?|living|born|grew up|raised|based|resid(?:es?|ed|ing)|works?|working|settled|studies|hometown|house|flat|apartment|office|clinic|branch|warehouse)"
    r"(?: \w+){0,2} (?:in|near|at|outside|is)|(?:moved?|moving|relocat\w+|commut\w+)(?: \w+)? (?:to|from)|(?:i'?m|i am) (?:in|from)|(?:originally|comes?) from",
    "de": r"(?:wohn\w*|leb(?:e|t|en)|gebor\w*|aufgewachsen|arbeite\w*|zieh\w*|gezogen|umgezogen|stamm\w*|komm\w*|ansässig|wohnung|filiale|büro|ich bin)"
    r"(?: \w+){0,3} (?:in|aus|nach|bei|von)",
    "fr": r"(?:habit\w*|vi[st]|vivons|née?|(?:em|dé)ménag\w*|travaill\w*|résid\w*|install\w*|grandi|appartement|bureau)(?: [^\W_]+){0,3} (?:à|au|en|dans|de)"
    r"|je suis à|(?:viens|vient|originaire|natif|native) de",
    "es": r"(?:viv[eoi]\w*|nac\w*|resid\w*|trabaj\w*|crec\w*|cri[óo]\w*|mud\w*|domiciliad[oa]|vecin[oa]|estudi\w*|piso|apartamento|sucursal|oficina)"
    r"(?: [\w./-]+){0,3} (?:en|a|de)|(?:estoy|casan) en|(?:soy|somos|vengo|natural|originari[oa]) de",
    "pt": r"(?:mor\w{1,4}|viv\w*|nasc\w*|resid\w*|trabalh\w*|cresc\w*|mud\w*|domiciliad[oa]|estud\w*|filial|escritório)"
    r"(?: [\w./-]+){0,3} (?:em|no|na|para|de)|(?:estou|casam) em|(?:sou|somos|venho|natural) (?:de|do|da)",
}
_LIVES = re.compile(rf"(?<![^\W_])(?:{'|'.join(_HOME.values())}) (?:the )?$")
_LOWER = re.compile(
    rf"(?<![^\W_])(?:{'|'.join(_HOME.values())}) (?P<town>[a-zà-öø-ÿ]{{3,20}}(?:[ '’-][a-zà-öø-ÿ]{{1,20}}){{0,3}})"
)
_PAIR = re.compile(r" (?:to|and|nach|und|à|et|a|y|para|e) ")  # from X to Y
_FIELD = re.compile(
    r"(?<![^\W_])(?:city|town|location|place of birth|birthplace|residence|hometown|destination|(?:wohn|geburts)?ort|stadt|ville|lieu(?: de naissance)?|commune"
    r"|ciudad|localidad|lugar(?: de nacimiento)?|municipio|cidade|localidade|município|naturalidade|local de nascimento)\s?[:=]\s*$"
)
PREFIX = read_sections("place_cues")["prefix"]  # what names of towns begin with
_ON_A_RIVER = re.compile(r" (?:am|an der|im) ([^\W\d_]+)")  # Freiburg im Breisgau
_NO_TOWN_BEFORE = frozenset(("inc", "ltd", "gmbh", "group", "llc", "saint-germain", "agreement", "club"))
_ZIP = re.compile(r"(?<=[ ,])\d{5}(?:-\d{4})?(?!\w)")
_BEFORE_ZIP = re.compile(rf"(?<!\w){_TOWN},? (?P<state>[A-Z]{{2}}|{_WORD}(?: {_WORD})?),? $")
_STATE = re.compile(rf",\s(?P<state>[A-Z]{{2}}(?!\w)|{_WORD}(?: {_WORD}){{0,2}})")
_POSTCODE_UK = re.compile(r"(?<![\w-])[A-PR-UWYZ][A-HK-Y]?\d[\dA-HJKPSTUW]? \d[ABD-HJLNP-UW-Z]{2}(?!\w)")
_POSTCODE_CA = re.compile(r"(?<![\w-])[ABCEGHJ-NPRSTVXY]\d[ABCEGHJ-NPRSTV-Z] \d[ABCEGHJ-NPRSTV-Z]\d(?!\w)")
_POSTCODE_LABEL = re.compile(
    r"(?<![^\W_])(?:zip(?:[ -]?code)?|post(?:al)?[ -]?code|postleitzahl|plz|code postal|código postal|c\.p\.|cp|cep)(?:[^\w\n]{1,3}|\s(?:is|ist|est|es|é|was)\s)"
    r"\s?(?P<code>[A-Z]?\d[\dA-Z]{1,4}(?:[ -]?[\dA-Z]{3,4})?)(?!\w)",
    re.IGNORECASE,
)
# A code and the town behind it. Four digits could be a year, so they need a comma or the start of a line before them.
_TOWN_AFTER_CODE = re.compile(
    rf"(?<![\w.,-])(?:(?:D-|F-|E-|CH-|A-)?(?P<code>\d{{5}}|\d{{8}}|(?<=, )\d{{6}}|(?P<sure>\d{{4}}-\d{{3}}|\d{{5}}-\d{{3}})|(?:(?<=, )|(?<=\n)|(?<=[ACDFHB]-))\d{{4}}))"
    rf" (?P<town>{_TOWN})(?!\w)"
)


def find_places(clues: Clues) -> Iterator[Finding]:
    """Towns and postal codes; cities without any of it beside them are WEAK."""
    for match in _LOWER.finditer(clues.lower):
        start = match.start("town")
        if clues.text[start].isupper():
            continue
        end = _longest_city(clues, start, match.end())
        if end is not None and not is_fictional_word(match["town"].split()[0]):
            name = clues.text[start:end]
            known = lexicon().is_known_city(name) or (len(name) > 4 and lexicon().common.get(name, 0.0) < 4.0)
            if known and name not in NOT_NAMES and name not in COMMON_PLACES:
                yield Finding(start, end, e.LOCATION, 0.65)
    if clues.capitals:
        yield from _towns(clues)
    if clues.digits:
        yield from _postcodes(clues)


def _towns(clues: Clues) -> Iterator[Finding]:
    lists, last = lexicon(), None  # the end of the last home
    for match in _CANDIDATE.finditer(clues.text):
        start = match.start()
        first = re.match(r"[^\W\d_]+", clues.lower[start : match.end()])
        if first is None or first[0] in NOT_NAMES or is_fictional_word(first[0]):
            continue
        before = clues.lower[max(0, start - 60) : start]
        home = (
            _LIVES.search(before) is not None
            or _FIELD.search(before) is not None
            or (last is not None and _PAIR.fullmatch(clues.text, last, start) is not None)
        )
        end = _longest_city(clues, start, match.end())
        if end is None and home:
            region = _longest(clues, start, match.end(), lists.regions)
            end = region or (match.end() if _may_be_a_town(clues, match[0].lower()) else None)
        if end is None:
            continue
        river = _ON_A_RIVER.match(clues.lower, end, match.end())
        end = river.end() if river and river[1] not in NOT_NAMES else end
        name = clues.lower[start:end]
        region_end = _region_after(clues, end)
        if home:
            last = end
            yield Finding(start, end, e.LOCATION, 0.75)
            if region_end:
                yield Finding(end + 2, region_end, e.LOCATION, 0.75)
        elif (end == match.end() or not _goes_on(clues.lower[end : match.end()])) and (
            lists.is_known_city(name) or region_end
        ):
            yield Finding(start, end, e.LOCATION, WEAK)


def _may_be_a_town(clues: Clues, name: str) -> bool:
    """Whether an unlisted name may be a town's where one is expected: "New Tuttle", but not "Marketing"."""
    words = [word for word in re.split(r"[ -]", name) if word not in PREFIX]
    return (
        clues.language != "de"
        and bool(words)
        and not lexicon().is_word(words[0])
        and words[0] not in NOT_NAMES
    )


def _goes_on(rest: str) -> bool:
    """Whether the words after a city make it a person's name or a firm's: "Paris Hilton", "Lima Ltd"."""
    word = rest.split()[0] if rest.split() else ""
    return lexicon().is_family(word) or word in _NO_TOWN_BEFORE or word not in lexicon().common


def _region_after(clues: Clues, end: int) -> int | None:
    """Where the state or country after a town ends: ", IL", ", Germany"."""
    match = _STATE.match(clues.text, end)
    if match is None:
        return None
    if match["state"] in lexicon().state_codes:
        return match.end()
    return _longest(clues, match.start("state"), match.end(), lexicon().regions)


def _postcodes(clues: Clues) -> Iterator[Finding]:
    lists = lexicon()
    for pattern in (_POSTCODE_UK, _POSTCODE_CA):
        for match in pattern.finditer(clues.text):
            yield Finding(match.start(), match.end(), e.LOCATION, 0.7)
    for match in _POSTCODE_LABEL.finditer(clues.text):
        yield Finding(*match.span("code"), e.LOCATION, 0.75)
    for code in _ZIP.finditer(clues.text):
        town = _BEFORE_ZIP.search(clues.text, max(0, code.start() - 60), code.start())
        if town and (town["state"] in lists.state_codes or town["state"].lower() in lists.regions):
            yield Finding(town.start(), code.end(), e.LOCATION, 0.85)
    for match in _TOWN_AFTER_CODE.finditer(clues.text):
        end = _longest_city(clues, *match.span("town"))
        if end is None and match["sure"]:
            end = match.end("code")
        if end is not None:
            yield Finding(match.start(), end, e.LOCATION, 0.8)


def _longest_city(clues: Clues, start: int, end: int) -> int | None:
    """The end of the longest city that begins at `start`, up to `end`; None: no city."""
    return _longest(clues, start, end, lexicon().cities.keys())


def _longest(clues: Clues, start: int, end: int, names: object) -> int | None:
    while end > start:
        if clues.lower[start:end] in names:  # type: ignore[operator]
            return end
        end = max(clues.text.rfind(" ", start, end), clues.text.rfind("-", start, end))
    return None
