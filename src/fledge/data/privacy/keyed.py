"""Values whose kind the name of their field says: JSON, YAML, TOML, XML, environment files, logs, queries, code.

    "steuer_id": "19-386-205-379"      EMPLOYER_EIN=52-7884336      <passportNo>X1234567</passportNo>
    member.dateOfBirth = '1985-04-03'  dbPassword: "Xy12-3"         ...?ssn=123-45-6789&last_name=Ng

A name is read word by word with the words of `label_words`; what is no name of personal data costs one look in a cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from fledge.data.privacy import entities as e
from fledge.data.privacy.births import DATE
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.label_words import Label, field_label, field_words
from fledge.data.privacy.labels import fits

_FIELD = re.compile(
    r"(?<![^\W_])(?P<key>[A-Za-zÀ-ÿ][\wÀ-ÿ-]{1,40})(?:[\"'`]?\]?\s?(?::=|=>|[:=])\s{0,2}|>)(?P<quote>\\?[\"'`]?)"
    r"(?=[\w+(*])"
)
_QUOTED = {mark: re.compile(rf"[^{mark}\n\\]{{2,80}}(?=\\?{mark})") for mark in "\"'`"}
_NUMBER = re.compile(
    r"\+?\(?[A-Za-z]{0,6}[ -]?\d[\dA-Za-z]*\)?(?:[ ./-]{1,2}\(?(?:\d[\dA-Za-z]*|[A-Z]{1,2}(?!\w))\)?)*"
)
_DIGITS_DATE = re.compile(r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])(?!\w)")
_ISO = re.compile(r"(?:19|20)\d\d-\d\d-\d\d(?=[T ]\d)")
_BIRTH = re.compile(
    r"birth(?: ?day| ?date)?$|date (?:of|de) (?:birth|naissance)|\bdob\b|\bbday\b|geburtsdatum|geburtstag|\bgeb\b(?: ?dat\w*)?|geboren(?: am)?$|naissance$|nacimiento$|nascimento$|\b(?:fecha|data|dt|f)? ?na[cs]c?$"
)
_PERSON = frozenset((
    "first name", "last name", "full name", "given name", "family name", "middle name", "maiden name", "surname",
    "firstname", "lastname", "fullname", "vorname", "nachname", "familienname", "prenom", "nom de famille",
    "apellido", "apellidos", "primer apellido", "segundo apellido", "nombre completo", "nome completo",
    "sobrenome", "apelido", "ultimo nome", "primeiro nome", "nom complet", "nom prenom",
))  # fmt: skip
_PERSON_VALUE = re.compile(r"[A-ZÀ-ÖØ-Þ][^\W\d_]+(?:[ '’-]{1,2}[^\W\d_]+){0,4}\.?")


def find_keyed(clues: Clues) -> Iterator[Finding]:
    """Values of fields."""
    text = clues.text
    if "=" not in text and ":" not in text and "</" not in text:
        return
    for match in _FIELD.finditer(text):
        key = match["key"]
        kind = field_kind(key)
        if kind is None:
            continue
        start = match.end()
        if match["quote"]:
            value = _QUOTED[match["quote"][-1]].match(text, start)
        elif kind == e.PERSON:
            continue
        else:
            value = _date(text, start) if kind == e.DATE_OF_BIRTH else _NUMBER.match(text, start)
        if value is None:
            continue
        size = _size(kind, value[0].rstrip(" .,-"))
        if size:
            yield Finding(start, start + size, kind if isinstance(kind, str) else kind.entity, 0.94)


def _date(text: str, start: int) -> re.Match[str] | None:
    return _ISO.match(text, start) or _DIGITS_DATE.match(text, start) or DATE.match(text.lower(), start)


@lru_cache(maxsize=4096)
def field_kind(key: str) -> Label | str | None:
    """The label of a field's name; PERSON, DATE_OF_BIRTH and nothing else without one."""
    words = field_words(key)
    if words in _PERSON:
        return e.PERSON
    if _BIRTH.search(words):
        return e.DATE_OF_BIRTH
    return field_label(key)


def _size(kind: Label | str, value: str) -> int:
    """How many characters of a field's value are what its name says; 0: none."""
    if kind == e.PERSON:
        return len(value) if _PERSON_VALUE.fullmatch(value) else 0
    if isinstance(kind, str):
        date = _ISO.match(value) or DATE.fullmatch(value.lower()) or _DIGITS_DATE.fullmatch(value)
        return date.end() if date else 0
    if any(character.isdigit() for character in value) and fits(kind, value):
        return len(value)
    return 0
