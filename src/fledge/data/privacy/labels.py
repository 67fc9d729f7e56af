"""Numbers made personal only by the words around them: "passport no. X1234567", "12345678 is my account number".

    My order 4711-23 came, my passport is X1234567.       labels found:  order (other)   passport
                                                          values found:  4711-23         X1234567

A value belongs to the nearest label before it, unless another value or the end of a sentence is in between; else to a
label right after it ("12345678 is my account number"); else to the document mentioned ("... our passports. Mine has the
number X1234567, hers Y7654321"). The label `OTHER` claims numbers that aren't personal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from fledge.data.privacy import entities as e
from fledge.data.privacy.births import DATE
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.label_words import NUMBER, OTHER, Label, fold, label_at, labels_in

_VALUE = re.compile(
    r"(?<![\w.])(?:(?:[A-Z]{1,4}-)?\+?\(?[A-Z0-9]*\d[A-Z0-9]*\)?(?:(?: ?[-./] ?| ?\(|\) ?|  ?)(?:[A-Z0-9]*\d[A-Z0-9]*\)?)|-[A-Z]{1,2}(?![\w]))*"
    r"(?:\s?x\d{1,6})?|(?<![0-9a-f]{4}-)(?:[a-z]{1,4}-?\d[a-z0-9]{4,16}|\d[a-z0-9]{5,16})(?!-[0-9a-f]{4}-))(?![\w])"
)
_BIC = re.compile(r"(?<!\w)[A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?(?!\w)")
_ABBREVIATIONS = (
    "nr no num nbr tel ref reg id kto art geb st pol vers pers pat dr mr mrs ms sr sra dra srta cta ct ag lic soc sec ident "
    "nat med mob tlf telf doc exp hist clin hosp apt prof frau hr herr mme mlle nac nasc dat fec steuer mwst ust"
)
_BROKEN = re.compile(
    r"(?<!\.)(?<![^\w]\w)(?<!nr)"
    + "".join(rf"(?<!\b{word})" for word in _ABBREVIATIONS.split())
    + r"[.!?]\s|;\s|\n\s*\n"
    r"|\s[-–—]\s(?!\d*[a-z]*\d)|, (?:and|und|et|y|e) "
)
_AFTER = re.compile(
    r"\s?(?:,(?= ?(?:my|the|our|his|her|mein|das|die|ma|mon|mi|la|el|o|a|meu|minha|which)(?!\w))|\(|\[|-|–|=)?\s?(?:an? valid|is|was|ist|war|lautet|est|es|é|as|als|comme|como|for|fur|pour|para|=|\()?\s?"
    r"(?:my|the|our|his|her|their|your|mein\w?|dein\w?|sein\w?|ihr\w?|die|das|der|ma|mon|sa|son|mi|tu|su|le|la|el|o|a|meu|minha|seu|sua)?\s"
)
# Between two values of one label: "passports X1234567 and Y7654321".
_AND = r"(?:and|und|et|y|e|or|oder|ou|o)"
_ENUMERATED = re.compile(rf"\s?[,;/&+]\s?(?:{_AND}\s)?|\s{_AND}\s")
# "..., hers is Y7654321", "celui de Paul le Y7654321": the same for another person.
_ANOTHERS = re.compile(
    r"(?<!\w)(?:\w+'s|hers?|his|theirs?|mine|yours|ours|has|(?:der|die|das) (?:von|meine\w|seine\w|ihre\w)|mein\w*|sein\w*|ihr\w*|celui|celle|ceux|le mien|la mienne"
    r"|(?:el|la|los|las) (?:de|del|mio|mia|suyo|suya)|(?:o|a|os|as) (?:d[aeo]s?|meu|minha|dele|dela|seu|sua)|while|whereas|tiene|tem|hat)(?!\w)"
)
# A number that counts one of these isn't an identifier: "3269639942 units".
_UNIT = re.compile(
    r"\s?(?:units?|tokens?|bytes?|[kmgt]i?b|bits|rows?|lines?|records?|people|users|items|shares|copies|dollars?|euros?|times|views|requests|inhabitants|seconds|ms"
    r"|stück|zeilen|einheiten|einwohner|sekunden|euro|lignes|unités|habitants|octets|fois|filas|líneas|unidades|habitantes|linhas|veces|vezes|%|€|\$|£|usd|eur|gbp|brl|chf|pesos|reais|entries|members|customers|clients?|kunden|clientes|patients?|einträge|per (?:month|year|week)|pro (?:monat|jahr)|par (?:mois|an)|por m[eê]s|al mes)(?!\w)"
)
_AMOUNT = re.compile(r"\d{1,3}(?:[., ]?\d{3})*[.,]\d{2}|\d+\.\d")
_MONEY = re.compile(r"(?:[€$£]|usd|eur|gbp|chf)\s?$")
_REACH = 45  # maximum characters between a label and its value
_CLOSE = 12  # maximum characters between two labels of one value
_PHONE_REACH = 75  # "let Ms Ng, the form teacher, know on 0171 1234567"
_AT_NUMBER = re.compile(
    r"(?<!\w)(?:on|at|under|unter|auf|au|al|en el|pelo|no|ao|para o|to)(?: (?:number|num(?:ero)?|nummer|tel|der|die))?\.?:? ?$"
)
_TOPIC_REACH = 200  # maximum characters between the mention of a document and "mine has the number"
_TOPICS = frozenset(
    (e.PASSPORT, e.DRIVER_LICENSE, e.NATIONAL_ID, e.TAX_ID, e.MEDICAL_ID, e.INSURANCE_ID, e.BANK_ACCOUNT, e.CREDIT_CARD)
)  # fmt: skip

Value = tuple[re.Match[str], Label]


class _Place(NamedTuple):
    """A label in the text."""

    start: int
    end: int
    label: Label


def find_labelled(clues: Clues) -> Iterator[Finding]:
    """Numbers with a label."""
    if clues.digits:
        for match, label in _labelled_values(clues):
            start, end = match.span()
            if label.entity not in (OTHER, NUMBER) and not counts(clues, end) and fits(label, match[0]):
                yield Finding(start, end, label.entity, 0.92)
    yield from _bank_codes(clues)


def fits(label: Label, value: str) -> bool:
    """Whether a value has the form the label requires and isn't a date."""
    compact = re.sub(r"[^0-9A-Z+]", "", value.upper())
    if label.value.fullmatch(compact) is None or _AMOUNT.fullmatch(value):
        return False
    return label.entity == e.BANK_ROUTING or DATE.fullmatch(value.lower()) is None


def counts(clues: Clues, end: int) -> bool:
    """Whether the number that ends there is a count of something."""
    return _UNIT.match(clues.lower, end) is not None


def belongs_to_other(clues: Clues, start: int, end: int) -> bool:
    """Whether the words around a number mark it as an order, an invoice, a version or similar."""
    return any(
        label.entity == OTHER and match.start() < end and start < match.end()
        for match, label in _labelled_values(clues)
    )


@lru_cache(maxsize=4)
def _labelled_values(clues: Clues) -> list[Value]:
    """Values, each with its label."""
    text, folded = clues.text, fold(clues.lower)
    values: list[Value] = []
    places: list[_Place] = []  # labels so far; only the neighbourhood of values is searched
    past = 0  # end of the previous value
    read = 0  # how far labels have been searched for
    size, label = 0, None  # of the previous value
    for match in _VALUE.finditer(text):
        start, end = match.span()
        window = max(past - 1, start - _TOPIC_REACH, read)
        places += [
            _Place(*place)
            for place in labels_in(folded, window, start + 4)
            if place[1] <= start and _applies(place[2], folded)
        ]
        read = max(read, past - 1, places[-1].end if places else 0)
        digits = sum(character.isalnum() for character in match[0])
        near = _before(folded, places, past, match)
        if near is None or near.entity == NUMBER:
            near = _topic(folded, places, past, start) or near
        if (
            near is None
            and label is not None
            and _same_again(folded, label, past, start, digits - size, match[0])
        ):
            near = label
        label = near or _behind(folded, end)
        if label is not None:
            values.append((match, label))
            if near is not None and near.entity not in (OTHER, NUMBER) and _waits(near, match[0], digits):
                continue  # "the passport that ends in 103, in full X1234567": the label waits for its value
        past, size = end, digits
    return values


def _waits(label: Label, value: str, size: int) -> bool:
    """Whether a label's value is still to come: what follows is a date or too short."""
    return (size < 5 or DATE.fullmatch(value.lower()) is not None) and not fits(label, value)


def _applies(label: Label, folded: str) -> bool:
    return label.context is None or label.context.search(folded) is not None


def _before(folded: str, places: list[_Place], past: int, value: re.Match[str]) -> Label | None:
    """The nearest label before a value that doesn't belong to another value."""
    if not places or places[-1].start < past - 1:
        return None
    last, start = places[-1], value.start()
    # "Führerschein Klasse B (Nr. 1234)", "Medicare card 2428": what stands before a word that says less.
    vague = last.label.entity == NUMBER or (last.label.entity != OTHER and not fits(last.label, value[0]))
    if vague and len(places) > 1 and past - 1 <= places[-2].start and start - places[-2].end <= _REACH:
        earlier = places[-2]
        close = last.label.entity == NUMBER or last.start - earlier.end <= _CLOSE
        if close and not _BROKEN.search(folded, earlier.end, last.start):
            last = _Place(earlier.start, last.end, earlier.label)
    reach = _REACH
    if last.label.entity == e.PHONE_NUMBER and _AT_NUMBER.search(folded, last.end, start):
        reach = _PHONE_REACH
    if start - last.end > reach:
        return None
    dotted = last.end - last.start <= 6 and folded.startswith(".", last.end)  # "Tel. 030 ..."
    if _BROKEN.search(folded, last.end + dotted, start) or _MONEY.search(folded, last.end, start):
        return None
    return last.label


def _topic(folded: str, places: list[_Place], past: int, start: int) -> Label | None:
    """The document mentioned, if a value is called a number or someone's: "Mine is X1234567"."""
    topic = next((place for place in reversed(places) if place.label.entity != NUMBER), None)
    if topic is None or topic.label.entity not in _TOPICS or start - topic.end > _TOPIC_REACH:
        return None
    from_here = max(past, topic.end, start - _REACH)
    named = any(place.label.entity == NUMBER and place.start >= from_here for place in places[-2:])
    return topic.label if named or _ANOTHERS.search(folded, from_here, start) else None


def _same_again(folded: str, label: Label, past: int, start: int, longer: int, value: str) -> bool:
    """Whether a value without a label is another one of the previous kind."""
    if label.entity == NUMBER:
        return False
    if abs(longer) <= (5 if label.entity == e.PHONE_NUMBER else 1) and _ENUMERATED.fullmatch(
        folded, past, start
    ):
        return True
    if label.entity not in _TOPICS or abs(longer) > 1 or start - past > _REACH:
        return False
    return _ANOTHERS.search(folded, past, start) is not None and fits(label, value)


def _behind(folded: str, end: int) -> Label | None:
    """The label right after a value."""
    link = _AFTER.match(folded, end)
    label = label_at(folded, link.end()) if link else None
    return label if label is not None and _applies(label, folded) and label.entity != NUMBER else None


def _bank_codes(clues: Clues) -> Iterator[Finding]:
    """BIC codes need no digit."""
    for label in re.finditer(r"(?<![^\W_])(?:swift|bic)(?![^\W_])", clues.lower):
        match = _BIC.search(clues.text, label.end(), label.end() + _REACH)
        if match:
            yield Finding(match.start(), match.end(), e.BANK_ROUTING, 0.8)
