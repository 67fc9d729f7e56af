"""Street addresses in the conventions of five languages, with flat, postal code and town if they follow.

A word such as "street" between a capital and a number is evidence enough. Words that are also others ("place", "ring",
"via", "spring") need a postal code or a town behind them, or a word of living or sending before.

    221B Baker Street, Flat 2, London NW1 6XE      Hauptstraße 12a, 80331 München     12 bis, rue de la Paix, 75002 Paris
    Calle de Alcalá 45, 3º B, 28014 Madrid         Rua Augusta, 1500                  Calle 45 # 12-30 Sur
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import NOT_NAMES
from fledge.data.privacy.entities import WEAK, Finding
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.word_lists import read_patterns

_P = read_patterns("streets")
_CAP = rf"(?:[{UPPER}][^\W\d_]{{0,2}}\.|[{UPPER}][^\W\d_]*(?:['’.-][^\W\d_]+)*)"
_OF = r"(?:(?:de la|de las|de los|de l['’]|de|du|des|del|do|da|dos|das|la|le|les|el|los|aux?|d['’]) ?){0,2}"
_NAME = rf"{_CAP}(?: {_CAP}){{0,3}}"
_PART = rf"(?:\d{{1,2}} )?{_OF}{_CAP}(?:[ -]{_OF}(?:(?:y|e|et) )?{_CAP}(?![º°])){{0,4}}(?<!\.)"
_NUMBER = r"\d{1,5}(?:[ -]?(?:[a-zA-Z]|bis|ter)(?!\w))?(?:[-/]\d{1,4}[a-z]?)?"
_FLAT = r"(?:,? (?i:apt|apartment|suite|ste|unit|flat|room|floor|#)\.? ?#?\w{1,6})?"
_HOUSE = r"(?:,? (?:[nN](?:\.? ?[º°]|o|r)\.? ?|# ?|número )?\d{1,5}(?: ?(?:[a-z]|bis|ter)(?!\w))?(?![\w%]|[.,]\d|\s[€$%])|,? [sS]/[nN](?!\w))"
_DOOR = rf"(?:,? (?i:(?:{_P['door']})\.? ?)?\d{{1,4}}\.?[ºª°]? ?(?:[A-Z]|[iI]zq\.?|[dD]cha\.?|[dD]to\.?|[eE]sq\.?)?(?!\w))"
_ALONE, _PLACED, _CODED = (
    1,
    2,
    3,
)  # evidence a pattern needs: none; a code, a town or a word of living; a code

# Each row: words, one of which the lower-case text must contain; the pattern; the evidence it needs.
_PATTERNS = tuple(
    (re.compile(rf"(?<![^\W_])(?:{words})" if words else ""), re.compile(rf"(?<![\w.,$€£-]){pattern}"), needs)
    for words, pattern, needs in (
        (_P["english"], rf"\d{{1,6}}(?:[A-Za-z]|[/-]\d{{1,4}})?,? (?:[NSEW]{{1,2}}\.? )?(?:{_NAME}?|\d{{1,3}}(?:st|nd|rd|th)) (?i:{_P['english']})(?![\w'’])\.?(?: [NSEW]{{1,2}}(?!\w))?{_FLAT}", _ALONE),
        ("", rf"\d{{1,6}}[A-Za-z]?,? {_NAME}\.?{_FLAT}", _CODED),
        (_P["unit"], rf"(?:\d{{1,6}} )?{_NAME}(?: \d{{1,4}})?,?\s(?:Apt|Suite|Unit|Flat)\.? \d{{1,4}}\w?(?!\w)", _CODED),
        (_P["unit"], rf"(?:Unit|Flat|Apartment|Suite|Shop|Level) \d{{1,4}}\w?(?:,? |/)(?:\d{{1,5}} )?{_CAP}(?: {_CAP}){{0,4}}\.?", _CODED),
        ("h|house|plot|door|flat", rf"(?:H\.? ?No|(?:House|Plot|Door|Flat) No)\.? ?\d{{1,4}}[\w/-]{{0,6}},? {_NAME}", _ALONE),
        (f"p|{_P['boxes']}", rf"(?:P\.? ?O\.? Box|(?i:{_P['boxes']}))(?: n\.? ?[º°]| Nr\.| no\.)? \d{{1,6}}(?: \d{{2,3}}){{0,2}}(?!\d)", _ALONE),
        ("psc|unit|usn\\w*", r"(?:(?:PSC|Unit) \d{3,5},? Box \d{3,5}|USNS? \w+),?\s(?:[AFD]PO) A[AEP] \d{5}", _ALONE),
        ("", rf"(?P<street>(?:{_CAP}[ -]){{0,2}}?(?=[{UPPER}])[^\W\d_]*(?:{_P['german']})) {_NUMBER}(?!\w|[.,]\d)", _ALONE),
        (_P["before german"], rf"(?i:{_P['before german']}) (?:(?!\w+(?:{_P['german']}) ){_CAP} ?){{1,2}}(?<= )\d{{1,3}}(?: ?[a-h])?(?![\w%€°]|[.,:]\d| [{UPPER}]| uhr)", _PLACED),
        (_P["romance"], rf"(?:{_NUMBER},? )?(?i:{_P['romance']})(?!\w) ?{_PART}{_HOUSE}?{_DOOR}{{0,2}}", _ALONE),
        (_P["weak romance"], rf"(?:{_NUMBER},? )?(?i:{_P['weak romance']})(?!\w) ?{_PART}{_HOUSE}?{_DOOR}{{0,2}}", _PLACED),
        (_P["grid"], rf"(?i:{_P['grid']})\.? \d{{1,3}}\w?(?: (?i:bis|sur|norte|este|oeste))? (?:#|[nN]o?\.?[°º]?\.?) ?\d{{1,3}}\w? ?[-–] ?\d{{1,3}}(?: (?i:sur|norte|este|oeste))?(?!\w)", _ALONE),
    )
)  # fmt: skip
_ANY_WORD = re.compile("|".join(words.pattern for words, _, _ in _PATTERNS if words.pattern))
_SENT = re.compile(
    rf"(?<![^\W_])(?:{_P['before']})(?: [\w'’-]+){{0,4}}[ :,.]{{0,3}}\n? ?(?:n[oa]s? |[aà] |en )?$"
)
_TOWN = rf"{_CAP}(?:[ -](?:(?:{_P['of towns']}) )?{_CAP}){{0,3}}"
_CODE = r"(?:[A-Z]{1,2}-)?\d{5}(?:-\d{3,4})?|(?:[A-Z]{1,2}-)?\d{4}(?:-\d{3}|(?= [A-ZÀ-Þ]))|\d{8}|[A-Z]{1,2}\d[\dA-Z]? ?\d[A-Z]{2}|[A-Z]\d[A-Z] ?\d[A-Z]\d"
# Continuations of an address: ", Town", ", TX 75001", " 80331 München", and in lines of their own.
_MORE = re.compile(
    rf"(?P<comma>,\s{{0,2}}|[ ,]*\n\s*)? ?(?:(?P<code>{_CODE})|(?P<town>[A-Z]{{2,3}}(?![^\W\d_])|{_TOWN}))(?!\w|[.,]\d)"
)


_CODED_TOWN = re.compile(
    rf",?\s{{0,2}}(?:{_TOWN})?(?:(?:,? [A-Z]{{2,3}})?,? (?:{_CODE})|,? [A-Z]{{2,3}},? \d{{4}})(?![\w.])"
)


def find_street_addresses(clues: Clues) -> Iterator[Finding]:
    """Street addresses: all of them have a number."""
    if not (clues.digits and clues.capitals):
        return
    first = _ANY_WORD.search(clues.lower)
    for words, pattern, needs in _PATTERNS:
        hinted = not words.pattern or (first and words.search(clues.lower, first.start()))
        for match in pattern.finditer(clues.text) if hinted else ():
            if not any(map(str.isdigit, match[0])):
                continue
            end, coded = _rest(clues, match.end())
            street = (match.groupdict().get("street") or "").rpartition(" ")[2].lower()  # Parkplatz 3, Ring 2
            placed = end > match.end() or _sent_to(clues, match.start())
            if coded or (needs == _ALONE and street not in lexicon().common) or (needs != _CODED and placed):
                yield Finding(match.start(), end, e.STREET_ADDRESS, 0.91 if needs == _ALONE else 0.9)
            elif needs != _CODED and NOT_NAMES.isdisjoint(match[0].lower().split()):  # Am Montag 12
                yield Finding(match.start(), end, e.STREET_ADDRESS, WEAK)


def _sent_to(clues: Clues, start: int) -> bool:
    """True if a word for living, sending or an address stands before."""
    return _SENT.search(clues.lower, max(0, start - 60), start) is not None


def _rest(clues: Clues, end: int) -> tuple[int, bool]:
    """Where the town, state, country and code that follow a street end, and whether there is a code."""
    near = _CODED_TOWN.match(clues.text, end)
    coded = after_code = near is not None
    end = near.end() if near else end
    while more := _MORE.match(clues.text, end):
        if more["code"]:
            coded = after_code = True
            end = more.end()
            continue
        place = _place(more["town"], after_code)
        if not place or not (more["comma"] or after_code or len(place) == 2):
            break
        end, after_code = more.start("town") + len(place), False
    return end, coded


def _place(words: str, after_code: bool) -> str:
    """The town, state or country that the words begin with: any unusual word after a postal code."""
    lists, first = lexicon(), words.split(" ")[0]
    while words and words not in lists.state_codes:
        if words.lower() in lists.regions or words.lower() in lists.cities:
            return words
        words = words.rpartition(" ")[0]
    return words or (first if after_code and first.lower() not in lists.common else "")
