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
from fledge.data.privacy.word_lists import read_patterns, read_sections

_VALUE = re.compile(
    r"(?<![\w.])(?:(?:[A-Z]{1,4}-)?\+?\(?[A-Z0-9]*\d[A-Z0-9]*\)?(?:(?: ?[-./] ?| ?\(|\) ?|  ?)(?:[A-Z0-9]*\d[A-Z0-9]*\)?)|-[A-Z]{1,2}(?![\w]))*"
    r"(?:\s?x\d{1,6})?|(?<![0-9a-f]{4}-)(?:[a-z]{1,4}-?\d[a-z0-9]{4,16}|\d[a-z0-9]{5,16})(?!-[0-9a-f]{4}-))(?![\w])"
)
_BIC = re.compile(
    r"(?i:\b(?:swift|bic))(?i:[ /]bic)?(?i: code)?[: ]{1,3}(?P<value>[A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?)(?!\w)"
)  # needs no digit
_LISTS, _P = read_sections("number_words"), read_patterns("number_words")
# "plate 788 BBS": groups of capitals and digits, at least two digits and a letter; not "placa RTX 4090".
_PLATE = re.compile(
    rf"(?<![^\W_])(?i:{_P['plates']})(?:\s?[:=#,(«\"'-]|\s(?i:{_P['plate links']}))*\s?[\"'«(]?"
    r"(?P<value>(?!(?:[RG]TX?|[RH]X|[AH]GP|USB|DDR|SSD|PCI|ATX)\b)(?=(?:[A-Z -]*\d){2})(?=[\d -]*[A-ZÄÖÜ])"
    r"[A-ZÄÖÜ\d]{1,8}(?:[ ·.-]{1,2}[A-ZÄÖÜ\d]{1,4}){0,3})(?![\w]|[.,-]\d)"
)
_BROKEN = re.compile(
    r"(?<!\.)(?<![^\w]\w)(?<!nr)"
    + "".join(rf"(?<!\b{word})" for word in _LISTS["abbreviations"])
    + r"[.!?]\s|;\s|\n\s*\n"
    r"|\s[-–—]\s(?!\d*[a-z]*\d)|, (?:and|und|et|y|e) "
)
_AFTER = re.compile(  # ", my", " is the", " (", " as my"
    rf"\s?(?:,(?= ?(?:{_P['whose']}|which)(?!\w))|[(\[–=-])?\s?(?:(?:an? valid|{_P['is']})(?!\w)|=|\()?\s?(?:{_P['whose']})?\s"
)
# Between two values of one label: "passports X1234567 and Y7654321".
_AND = r"(?:and|und|et|y|e|or|oder|ou|o)"
_ENUMERATED = re.compile(rf"\s?[,;/&+]\s?(?:{_AND}\s)?|\s{_AND}\s")
_ANOTHERS = re.compile(rf"(?<!\w)(?:{_P['anothers']})(?!\w)")
# A number that counts one of these isn't an identifier: "3269639942 units".
_UNIT = re.compile(rf"\s?(?:{_P['units']}|[%€$£])(?!\w)")
_AMOUNT = re.compile(r"\d{1,3}(?:[., ]?\d{3})*[.,]\d{2}|\d+\.\d")
_MONEY = re.compile(r"(?:[€$£]|usd|eur|gbp|chf)\s?$")
_REACH = 45  # maximum characters between a label and its value
_ALIKE = 5  # how much longer or shorter the next value of an enumeration may be
_CLOSE = 12  # maximum characters between two labels of one value
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
    for match in _BIC.finditer(clues.text):
        yield Finding(*match.span("value"), e.BANK_ROUTING, 0.8)
    for match in _PLATE.finditer(clues.text) if clues.digits else ():
        if 4 <= sum(map(str.isalnum, match["value"])) <= 9:
            yield Finding(*match.span("value"), e.VEHICLE_ID, 0.93)


def fits(label: Label, value: str) -> bool:
    """True if a value has the form the label requires and isn't a date."""
    compact = re.sub(r"[^0-9A-Z+]", "", value.upper())
    if label.value.fullmatch(compact) is None or _AMOUNT.fullmatch(value):
        return False
    return label.entity == e.BANK_ROUTING or DATE.fullmatch(value.lower()) is None


def counts(clues: Clues, end: int) -> bool:
    """True if the number that ends there is a count of something."""
    return _UNIT.match(clues.lower, end) is not None


def belongs_to_other(clues: Clues, start: int, end: int) -> bool:
    """True if the words around a number mark it as an order, an invoice, a version or similar."""
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
            near = _topic(places, past, start) or near
        if near is None and label is not None and abs(digits - size) <= _ALIKE:
            near = label if _same_again(folded, label, past, match) else None
        label = near or _behind(folded, end)
        if label is not None:
            values.append((match, label))
        past, size = end, digits
    return values


def _applies(label: Label, folded: str) -> bool:
    return label.context is None or label.context.search(folded) is not None


def _before(folded: str, places: list[_Place], past: int, value: re.Match[str]) -> Label | None:
    """The nearest label before a value that doesn't belong to another value."""
    if not places or places[-1].start < past - 1:
        return None
    last, start = places[-1], value.start()
    # "Führerschein Klasse B (Nr. 1234)", "Medicare card 2428": the more specific label stands before a general word.
    vague = last.label.entity == NUMBER or (last.label.entity != OTHER and not fits(last.label, value[0]))
    if vague and len(places) > 1 and past - 1 <= places[-2].start and start - places[-2].end <= _REACH:
        earlier = places[-2]
        close = last.label.entity == NUMBER or last.start - earlier.end <= _CLOSE
        if close and not _BROKEN.search(folded, earlier.end, last.start):
            last = _Place(earlier.start, last.end, earlier.label)
    if start - last.end > _REACH:
        return None
    dotted = last.end - last.start <= 6 and folded.startswith(".", last.end)  # "Tel. 030 ..."
    if _BROKEN.search(folded, last.end + dotted, start) or _MONEY.search(folded, last.end, start):
        return None
    return last.label


def _topic(places: list[_Place], past: int, start: int) -> Label | None:
    """The document mentioned, if a value is called a number: "my passport is old, but its number is X1234567"."""
    topic = next((place for place in reversed(places) if place.label.entity != NUMBER), None)
    if topic is None or topic.label.entity not in _TOPICS or start - topic.end > _TOPIC_REACH:
        return None
    from_here = max(past, topic.end, start - _REACH)
    named = any(place.label.entity == NUMBER and place.start >= from_here for place in places[-2:])
    return topic.label if named else None


def _same_again(folded: str, label: Label, past: int, value: re.Match[str]) -> bool:
    """True if a value without a label is another of the previous kind: "X1234567 and Y7654321", "hers is Y76..."."""
    if _ENUMERATED.fullmatch(folded, past, value.start()):
        return True
    near = label.entity in _TOPICS and value.start() - past <= _REACH and fits(label, value[0])
    return near and _ANOTHERS.search(folded, past, value.start()) is not None


def _behind(folded: str, end: int) -> Label | None:
    """The label right after a value."""
    link = _AFTER.match(folded, end)
    label = label_at(folded, link.end()) if link else None
    return label if label is not None and _applies(label, folded) and label.entity != NUMBER else None
