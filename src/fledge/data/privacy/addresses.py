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
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.word_lists import read_patterns

_P = read_patterns("streets")
_CAP = rf"(?:[{UPPER}][^\W\d_]{{0,2}}\.|[{UPPER}][^\W\d_]*(?:['’.-][^\W\d_]+)*)"
_NAME = rf"{_CAP}(?: {_CAP}){{0,3}}?"
_NUMBER = r"\d{1,5}(?:[ -]?(?:[a-zA-Z]|bis|ter)(?!\w))?(?:[-/]\d{1,4}[a-z]?)?"
_TOWN = (
    rf"{_CAP}(?:[ -](?:(?:de la|de los|de|da|do|dos|del|la|le|sur|sous|an der|am|im|upon) )?{_CAP}){{0,3}}"
)
_CODE_EN = r"(?:\d{5}(?:-\d{4})?|[A-Z]{1,2}\d[\dA-Z]? ?\d[A-Z]{2}|[A-Z]\d[A-Z] ?\d[A-Z]\d|(?:(?:NSW|VIC|QLD|TAS|ACT),? |(?:SA|WA|NT),? )\d{4}|\d{6})"
_CODE = r"(?:[A-Z]-)?(?:\d{5}(?:-\d{3,4})?|\d{8}|\d{4}-\d{3}|\d{4}(?= [A-ZÀ-Þ])|[A-Z]\d[A-Z] ?\d[A-Z]\d)"
_FLAT_EN = r"(?:,? (?i:apt|apartment|suite|ste|unit|flat|room|floor|#)\.? ?#?\w{1,6})?"
_TAIL_EN = rf"(?P<tail>(?:,?\s{{1,2}}{_TOWN})?(?:,? [A-Z]{{2,3}})?,? {_CODE_EN}(?!\w))?"
_TAIL = rf"(?P<tail>(?:, {_TOWN})?(?:, [A-Z]{{2,5}}\.?)?,?\s{{1,2}}{_CODE}(?!\d)(?:,? (?!Mi |Tel|Tél|O |E ){_TOWN}(?<!\.)(?: ?/ ?[A-Z]{{2}})?)?)?"
_OF = r"(?:(?:de la|de las|de los|de l['’]|de|du|des|del|do|da|dos|das|la|le|les|el|los|aux?|d['’]) ?){0,2}"
_PART = rf"{_OF}{_CAP}(?:[ -](?:(?:de la|de los|de|del|du|des|do|da|dos|das|y|e|et) ){{0,2}}{_CAP}(?![º°])){{0,4}}(?<!\.)"
_HOUSE = r"(?:,? (?:[nN](?:\.? ?[º°]|o|r)\.? ?|# ?|número )?\d{1,5}(?: ?(?:[a-z]|bis|ter)(?!\w))?(?![\w%]|[.,]\d|\s[€$%])|,? [sS]/[nN](?!\w))"
_DOOR = r"(?:,? (?i:piso |apto\.? ?|apartamento |puerta |bloque |andar |ap\. |edif\.? ?|depto\.? ?|int(?:erior)?\.? ?|sala )?\d{1,4}\.?[ºª°]? ?(?:[A-Z]|[iI]zq\.?|[dD]cha\.?|[dD]to\.?|[eE]sq\.?|[fF]te\.?)?(?!\w))"

# Of each: the words, one of which a text in lower case must hold; the pattern; whether it is evidence enough without a
# postal code. (Without a word it must have one.)
_PATTERNS = tuple(
    (re.compile(rf"(?<![^\W_])(?:{needs})") if needs else None, re.compile(pattern), sure)
    for needs, pattern, sure in (
        (_P["english"], rf"(?<![\w.,$€£-])\d{{1,6}}(?:[A-Za-z]|[/-]\d{{1,4}})?,? (?:[NSEW]{{1,2}}\.? )?(?:{_NAME}|\d{{1,3}}(?:st|nd|rd|th)) (?i:{_P['english']})(?![\w'’])\.?(?: [NSEW]{{1,2}}(?!\w))?{_FLAT_EN}{_TAIL_EN}", True),
        ("", rf"(?<![\w.,$€£-])\d{{1,6}}[A-Za-z]?,? {_CAP}(?: {_CAP}){{0,3}}\.?{_FLAT_EN}{_TAIL_EN[:-1]}", False),
        ("apt|suite|unit|flat", rf"(?<![\w.,$€£-])(?:\d{{1,6}} )?{_CAP}(?: {_CAP}){{0,3}}(?: \d{{1,4}})?,?\s(?P<tail>(?:Apt|Suite|Unit|Flat)\.? \d{{1,4}}\w?)(?!\w)", False),
        ("unit|flat|apartment|suite|studio|shop|level", rf"(?<!\w)(?:Unit|Flat|Apartment|Suite|Studio|Shop|Level) \d{{1,4}}\w?(?:,? |/)(?:\d{{1,5}} )?{_CAP}(?: {_CAP}){{0,4}}\.?{_TAIL_EN}", False),
        ("h|house|plot|door|flat|shop", rf"(?<!\w)(?:H\.? ?No|House No|Plot No|Door No|Flat No|Shop No)\.? ?\d{{1,4}}[\w/-]{{0,6}},? {_CAP}(?: {_CAP}){{0,3}}{_TAIL_EN}", True),
        ("p|psc|unit|usn\w*|usc\w*|postfach|boîte|apartado|apdo|caixa|casilla", rf"(?<!\w)(?:P\.? ?O\.? Box|(?i:{_P['boxes']})|(?:PSC|Unit) \d{{3,5}},? Box)(?: n\.? ?[º°]| Nr\.| no\.)? \d{{1,6}}(?: \d{{2,3}}){{0,2}}(?!\d){_TAIL}", True),
        ("psc|unit|usn\w*|usc\w*", r"(?<!\w)(?:PSC \d{3,5}, Box \d{3,5}|Unit \d{3,5} Box \d{3,5}|USNS? \w+|USC?G?[SC] \w+),?\s(?:[AFD]PO) A[AEP] \d{5}", True),
        ("", rf"(?<!\w)(?P<street>(?:{_CAP}[ -]){{0,2}}?[{UPPER}]?[^\W\d_]*(?:{_P['german']})) {_NUMBER}(?!\w|[.,]\d){_TAIL}", True),
        (_P["before german"], rf"(?<!\w)(?i:{_P['before german']}) (?:{_CAP} ?){{1,2}}(?<= )\d{{1,3}}(?: ?[a-h])?(?![\w%€°]|[.,:]\d| [{UPPER}]| uhr){_TAIL}", False),
        (_P["french"], rf"(?<![\w.,])(?:{_NUMBER},? (?i:{_P['french']}) ?{_PART}{_HOUSE}?|(?i:{_P['french']}) ?{_PART}{_HOUSE}){_TAIL}", True),
        (f"{_P['french']}|{_P['weak french']}", rf"(?<![\w.,])(?:{_NUMBER},? )?(?i:{_P['french']}|{_P['weak french']}) ?{_PART}{_HOUSE}?{_TAIL}", False),
        ("address|lives|adresse|anschrift|dirección|endereço|domicil\w+", rf"(?<!\w)(?i:address|lives at|adresse|anschrift|dirección|endereço|domicil\w+)(?: is| ist| est| es| é)?[:,]?\s+(?P<value>(?:\d{{1,6}} )?(?=[{UPPER}]\w*[a-zß-ÿ]){_CAP}(?: {_CAP}){{0,3}} \d{{1,4}})(?!\w|[-.,/]\d)", True),
        (_P["iberian"], rf"(?<!\w)(?i:{_P['iberian']}) ?(?:\d{{1,2}} de )?{_PART}{_HOUSE}{_DOOR}{{0,2}}{_TAIL}", True),
        (f"{_P['iberian']}|{_P['weak iberian']}", rf"(?<!\w)(?i:{_P['iberian']}|{_P['weak iberian']}) ?(?:\d{{1,2}} de )?{_PART}{_HOUSE}?{_DOOR}{{0,2}}{_TAIL}", False),
        ("calle|carrera|cl|cra?|kr|avenida|av|transversal|diagonal", rf"(?<!\w)(?i:calle|carrera|cl|cra?|kr|avenida|av|transversal|tv|diagonal|dg)\.? \d{{1,3}}\w?(?: (?i:bis|sur|norte|este|oeste))? (?:#|[nN]o?\.?[°º]?\.?) ?\d{{1,3}}\w? ?[-–] ?\d{{1,3}}(?: (?i:sur|norte|este|oeste))?(?!\w){_TAIL}", True),
    )
)  # fmt: skip
# In lower case, with the number on its side and nothing counted after it: "i live at 14 maple road", "hauptstraße 3".
_LOWER = (
    r"(?<![\w.,])\d{1,5}[a-z]? [a-z]{3,14}(?: [a-z]{3,14})? (?:street|road|avenue|ave|lane|drive|court|crescent|close|boulevard)(?![\w'’])(?:,? (?:apt|flat|unit)\.? ?\w{1,4}(?!\w))?",
    r"(?<!\w)[a-zäöüß]{3,20}(?:straße|strasse|str\.|weg|gasse|allee|platz) \d{1,3}(?: ?[a-h])?(?![\w]|[.,:]\d)",
    r"(?<!\w)(?:calle|avenida|plaza|paseo|rua|travessa|praça) (?:(?:de la|del|de|da|do) )?[a-zà-ÿ]{3,15}(?: [a-zà-ÿ]{2,15}){0,2},? (?:número |n\.? ?º ?)?\d{1,4}(?!\w)",
    r"(?<![\w.,])\d{1,3}(?: bis| ter)?,? (?:rue|chemin|allée|impasse|avenue|boulevard) (?:(?:de la|du|des|de|d['’]|de l['’]) ?)?[a-zà-ÿ]{3,15}(?!\w)",
)
_LOWERS = tuple(map(re.compile, _LOWER))
_SENT = re.compile(
    rf"(?<![^\W_])(?:{_P['before']})(?: [\w'’-]+){{0,4}}[ :,.]{{0,3}}\n? ?(?:n[oa]s? |[aà] |en )?$"
)
# What may follow: ", Town", ", TX 75001", and in lines of their own.
_MORE = re.compile(
    rf"(?:,\s?|[ ,]*\n\s*|(?<=[A-Z]) )(?P<part>{_TOWN}|[A-Z]{{2}}|\d{{4,6}}(?:-\d{{3,4}})?)(?!\w|[.,]\d)"
)


def find_street_addresses(clues: Clues) -> Iterator[Finding]:
    """Street addresses: all of them have a number."""
    if not clues.digits:
        return
    for pattern in _LOWERS:
        for match in pattern.finditer(clues.text):
            if _sent_to(clues, match.start()):
                yield Finding(match.start(), match.end(), e.STREET_ADDRESS, 0.7)
    if not clues.capitals:
        return
    for needs, pattern, sure in _PATTERNS:
        for match in pattern.finditer(clues.text) if needs is None or needs.search(clues.lower) else ():
            value, groups = match[0].lower(), match.groupdict()
            if not any(map(str.isdigit, value)):
                continue
            word = (groups.get("street") or "").rpartition(" ")[2].lower()  # Parkplatz 3, Ring 2
            known = (
                (sure and word not in lexicon().common)
                or groups.get("tail")
                or _sent_to(clues, match.start())
            )
            if known or NOT_NAMES.isdisjoint(value.split()):  # Am Montag 12
                start, end = match.span("value" if "value" in groups else 0)
                score = (0.91 if sure else 0.9) if known else e.WEAK
                yield Finding(start, _town_after(clues, end), e.STREET_ADDRESS, score)


def _sent_to(clues: Clues, start: int) -> bool:
    """Whether a word of living, sending or an address stands before."""
    return _SENT.search(clues.lower, max(0, start - 60), start) is not None


def _town_after(clues: Clues, end: int) -> int:
    """The end of the town, state, country and code that follow a street, or the end of the street."""
    lists = lexicon()
    while more := _MORE.match(clues.text, end):
        part, stop = more["part"], more.end()
        while part and not (
            part[0].isdigit()
            or part in lists.state_codes
            or part.lower() in lists.regions
            or lists.is_city(part.lower())
        ):
            part = part.rpartition(" ")[0]
            stop = more.start("part") + len(part)
        if not part:
            break
        end = stop
    return end
