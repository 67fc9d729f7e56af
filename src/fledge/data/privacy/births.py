"""Dates of birth: a date after a word such as "born", in any date format of the five languages.

born on the 3rd of April 1985     geb. 3.4.85     né le 1er avril 1985     nacida el 3 de abril del 85
DOB 04/03/1985                    3. April 1985 in Ulm geboren             "birthDate": "1985-04-03T00:00"
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.label_words import fold

REACH = 45  # maximum characters between the word and the date
_BESIDE = 3  # the same where the date can't belong to another label

_MONTHS = (
    "jan(?:uary|uar|vier|eiro|v)?|janner|enero|ene|feb(?:ruary|ruar|rero)?|fev(?:r(?:ier)?|ereiro)?|mar(?:ch|s|zo|co)?|marz|mrz|apr(?:il)?|avr(?:il)?|abr(?:il)?|may|mai"
    "|mayo|maio|jun(?:e|i|io|ho)?|juin|jul(?:y|i|io|ho|il)?|juil(?:let)?|aug(?:ust)?|aout|ago(?:sto)?|sep(?:t|tember|tembre|tiembre)?|set(?:embro|iembre)?"
    "|oct(?:ober|obre|ubre)?|okt(?:ober)?|out(?:ubro)?|nov(?:ember|embre|iembre|embro)?|dec(?:ember|embre)?|dez(?:ember|embro)?|dic(?:iembre)?"
)
_YEAR = r"(?:1[89]|20)\d\d"
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_MONTH = r"(?:0?[1-9]|1[0-2])"
_SHORT = r"['´`]?\d\d"
_ORDINAL = (
    r"(?:twenty|thirty)[ -](?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth)|(?:thir|four|fif|six|seven|eigh|nine)teenth|first|second|third|fourth|fifth|sixth|seventh|eighth"
    r"|ninth|tenth|eleventh|twelfth|twentieth|thirtieth|premier|primero|primeiro|uno|(?:ers|zwei|drit|vier|funf|sechs|sieb|ach|neun|zehn|elf|zwolf)ten"
)
_LINK = r"[ ./-]{1,2}"
DATE = re.compile(
    rf"(?<!\w)(?:{_YEAR}(?P<s>[-/. ]){_MONTH}(?P=s){_DAY}(?:t\d\d:\d\d(?::\d\d(?:\.\d+)?)?z?)?"
    rf"|(?:{_DAY}{_LINK}{_MONTH}|{_MONTH}{_LINK}{_DAY}){_LINK}(?:{_YEAR}|{_SHORT})"
    rf"|{_DAY}[ ./-]{{1,2}}(?:i{{1,3}}|iv|vi{{0,3}}|ix|xi{{0,2}})[ ./-]{{1,2}}{_YEAR}"
    rf"|{_DAY}(?:st|nd|rd|th|er|\.|[ºª°])?[ ./-]{{0,2}}(?:de |of |d.|dia )?(?:{_MONTHS})(?:\.|,)?[ ./-]{{0,2}}(?:de |del |do |of |del ano )?(?:{_YEAR}|{_SHORT})"
    rf"|(?:{_MONTHS})\.?[ ./-]{{0,2}}(?:the )?{_DAY}(?:st|nd|rd|th)?(?:,|\.)?[ ./-]{{0,2}}(?:{_YEAR}|(?<=[,/-]){_SHORT}|(?<=[,/-] ){_SHORT})"
    rf"|(?:{_ORDINAL})(?: of| de)? (?:{_MONTHS}),? (?:de |del )?{_YEAR}|(?:{_MONTHS}) (?:the )?(?:{_ORDINAL}),? {_YEAR}"
    rf"|{_YEAR}[ ./-](?:{_MONTHS})\.?[ ./-]{_DAY})(?!\w)"
)  # fmt: skip
_BORN = re.compile(
    r"(?<![^\W_])(?=[abcdfgnlvz])(?:date (?:of|de) (?:birth|naissance)|birth[ _-]?(?:dates?|day)|b-?day|birthed|dob|d\.o\.b|d\.d\.n|ddn|dn(?=[ :.]{1,3}\d)|born|gebore[nr]?e?|gebur\w*|geb(?![^\W_])|ge?b\.?-?(?:dat|tag)\w*"
    r"|nee?s?(?:\(e?s?\)|[·./-]e?s?)?(?![^\W_])(?=\s?:?\s(?:le|la|un|en|a|au|the|d)(?![^\W_])|\s?[(:,]?\s?\d)|naissance|anniversaire|naquit|nacid[oa]s?|nacio|naci(?![^\W_])|nac\.?(?![^\W_])|fe?ch?a?\.? (?:de )?na[cs]\w*|f\.? ?nac\w*|nacimiento|cumpleanos|nascid[oa]s?|nasci(?![^\W_])|nasceu|nasc\.?(?![^\W_])"
    r"|(?:data|dt)\.? (?:de )?nasc\w*|nascimento|aniversario(?= (?:e|:))|fdn(?![^\W_])|came into the world|zur welt|auf die welt|licht der welt|vu(?:e|es|s)? le jour|n\.(?= ?\d{1,2}[./-])(?<=[,(;] n\.)|b\.(?= ?\d{1,2}[./ -])(?<=[(;]b\.)|b\.(?= ?\d{1,2}[./ -])(?<=[,(;] b\.))"
)
_STAR = re.compile(r"(?<=[(,;\s])\* ?(?=\d{1,2}\.)")  # German and genealogical: "* 3.4.1985"
_DIGITS_DATE = re.compile(
    r"[^\w\n]{0,6}\s?((?:19[2-9]\d|20[0-2]\d)(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])|(?:0[1-9]|[12]\d|3[01])(?:0[1-9]|1[0-2])(?:19[2-9]\d|20[0-2]\d))(?!\d)"
)
# Another event's date: "DOB 4/5/81 / issued 3/2/2010".
_OTHER_EVENT = re.compile(
    r"(?<![^\W_])(?:issued?|expir\w*|valid|admi\w+|discharg\w+|seen|visit\w*|died|deceased|since|hired|joined|married|ausgestellt|gultig|aufgenommen|gestorben|verstorben"
    r"|seit|delivr\w*|expire|deced\w*|depuis|expedid\w*|caduca|vence|fallec\w*|desde|emitid\w*|valid\w*|falec\w*|mrn|und (?:hat|ist|war|wurde)|and (?:has|had|was|is|moved|got)|et a|y (?:se|ha|fue)|e (?:foi|se)|appointment|due|rendez|termin|cita)(?![^\W_])"
)
# German: "am 4.5.1981 in Ulm geboren"; others put it there less often, and then close: "on 4 May 1981 she was born"
_VERB_LAST = re.compile(r"(?<![^\W_])(?:geb(?:oren|\.)|(?:zur|auf die) welt(?![^\W_])|geburtstag)")
_VERB_CLOSE = re.compile(
    r"[^\d.;:!?\n]{1,20}?(?<![^\W_])(?:born|came into the world|vu le jour|naquit|naci|nacio|nasceu|nasci|v(?:ino|eio) a(?:l|o) mundo)(?![^\W_])(?![^.;!?\n]{0,30}\d)"
)
# "4/5/1981 (DOB)", "4.5.1981 is my birthday"
_NOUN_LAST = re.compile(
    r"\s?(?:[(,]|is|ist|est|es|e|=|as|als|comme|como)?\s?(?:my|his|her|their|mein\w*|sein\w*|ihr\w*|ma|sa|mi|su|a|minha|sua|la|das|the)?\s?"
    r"(?:dob|date of birth|birth ?(?:day|date)|geburtsdatum|geburtstag|date de naissance|fecha de nacimiento|cumpleanos|data de nascimento|aniversario)(?![^\W_])"
)
_NEXT = re.compile(r"[!?;]\s|\n\s*\n|(?<!\bgeb)(?<!\bnac)(?<!\bnasc)(?<!\bdat)\.\s+[A-ZÀ-Þ]")

Span = tuple[int, int]


def find_births(clues: Clues) -> Iterator[Finding]:
    """Dates of birth."""
    folded = fold(clues.lower)
    born = [match.span() for match in _BORN.finditer(folded)]
    if "*" in folded:
        born += [match.span() for match in _STAR.finditer(folded)]
        born.sort()
    if not born:
        return
    for _, end in born:
        plain = _DIGITS_DATE.match(folded, end)
        if plain:
            yield Finding(plain.start(1), plain.end(1), e.DATE_OF_BIRTH, 0.93)
    last = None  # end of the previous date of birth
    for match in DATE.finditer(folded):
        span = match.span()
        after = _after(clues, folded, born, span, last)
        if after:
            last = match.end()
        if after or _before(clues, folded, span):
            beside = any(0 <= span[0] - end <= _BESIDE for _, end in born)
            yield Finding(*span, e.DATE_OF_BIRTH, 0.93 if beside else 0.85)


def _after(clues: Clues, folded: str, born: list[Span], date: Span, last: int | None) -> bool:
    """Whether the date follows a word of birth with nothing else in between."""
    after = any(
        0 <= date[0] - end <= REACH
        and not _NEXT.search(clues.text, end, date[0])
        and not _OTHER_EVENT.search(folded, end, date[0])
        for _, end in born
    )
    # One date belongs to a label, the first, unless the next follows at once: "born 3/4/81, 5/6/79 and 1/2/90".
    return after and not (
        last is not None and date[0] - last > 6 and not any(last <= start < date[0] for start, _ in born)
    )


def _before(clues: Clues, folded: str, date: Span) -> bool:
    if _NOUN_LAST.match(folded, date[1]) or _VERB_CLOSE.match(folded, date[1]):
        return True
    verb = _VERB_LAST.search(folded, date[1], date[1] + REACH)
    return verb is not None and not _NEXT.search(clues.text, date[1], verb.start())
