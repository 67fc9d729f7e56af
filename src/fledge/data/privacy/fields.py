"""Values identified by the name of their field: JSON, YAML, XML, forms, settings, queries, code, tables.

    "steuer_id": "19-386-205-379"      EMPLOYER_EIN=52-7884336      <passportNo>X1234567</passportNo>
    "last_name": "Okafor"     customerName=Ida+Holm     assignee: Caspian Holloway     'ciudad' => 'Lugo'

    id;Nachname;PLZ;Ort              INSERT INTO patients (name, mrn) VALUES ('Ng', '529461')
    1;Börner;64080;Regensburg        | Name | City |
                                     | Ng   | Cork |

A table's header needs two columns with known names; a row has as many cells as the header, and the first line with
another number ends the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from fledge.data.privacy import entities as e
from fledge.data.privacy.births import DATE
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import NOT_NAMES
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.label_words import Label, field_label, field_words
from fledge.data.privacy.labels import fits
from fledge.data.privacy.lexicon import lexicon
from fledge.data.privacy.passwords import is_password, trimmed
from fledge.data.privacy.word_lists import read_sections

_LISTS = read_sections("field_keys")
_SIGN = re.compile(r"(?:=>|:=|[:=]|(?<=\w)>)\s{0,4}(?P<quote>\\?[\"'`]?)(?=[^\s\"'`<>\\])")
_KEY = re.compile(r"(?P<tag><)?[^\W\d_][\w.-]*(?: [^\W\d_][\w-]*){0,2}$")
_LONGEST_KEY = 40
_QUOTED = {mark: re.compile(rf"[^{mark}\n\\]{{2,90}}(?=\\?{mark})") for mark in "\"'`"}
_NUMBER = re.compile(
    r"\+?\(?[A-Za-z]{0,6}[ -]?\d[\dA-Za-z]*\)?(?:[ ./-]{1,2}\(?(?:\d[\dA-Za-z]*|[A-Z]{1,2}(?!\w))\)?)*"
)
_CAPITAL = rf"[{UPPER}][^\W\d_]*(?:['’.-][^\W\d_]+)*\.?"
_PARTICLE = r"(?:(?:de la|de los|da|de|do|dos|das|del|van der|van den|van|von|bin|la|le|y|e)[ +])?"
_NAME = re.compile(
    rf"{_CAPITAL}(?:[ +]{_PARTICLE}{_CAPITAL}){{0,4}}(?=\s*(?:[,;|&<>()\n\]}}\#\"']|\.?$|\.?\s))"
)
_DATES = (re.compile(r"(?:19|20)\d\d-\d\d-\d\d(?=[Tt ]\d)"), re.compile(r"(?:19|20)\d{6}(?!\w)"), DATE)
_BIRTH = re.compile(
    r"birth(?: ?day| ?date)?$|date (?:of|de) (?:birth|naissance)|\b(?:dob|bday)\b|geburts(?:datum|tag)|\bgeb\b|geboren"
    r"|na[ic]ssance$|nacimiento$|nascimento$|\b(?:fecha|data|dt|f)? ?na[cs]c?$"
)
_PASSWORD = re.compile(
    r"(?:^| )(?:pass ?(?:word|wort|phrase|code|wd)?|pwd|psw|pw|kennwort|mot de passe|mdp|contrasena|clave|senha|pin)\d?"
    r"(?: (?:value|plain|text|old|new|confirm))?$"
)
_ANY_PASSWORD = re.compile(r"[^\s\"'`\\]{4,64}")
_SIBLING = re.compile(
    r"(?:first|last|sur|full|family|given|vor|nach)_?-?name|pr[ée]nom|apellido|sobrenome|apelido|e-?mail|courriel|correo"
    r"|birth|naiss|nacimiento|nascimento|\bgeb|\bdob\b|phone|t[ée]l[ée]?f|handy|mobil|ssn|\bdni\b|\bcpf\b|patient"
)
_AROUND = 220  # characters on either side that are searched for a record's other keys
_EVERYDAY = 4.0  # Zipf frequency from which a single word isn't a name, whatever the key

_CELL = {mark: re.compile(rf'"[^"\n]*"|[^{re.escape(mark)}\n]*') for mark in ",;\t|"}
_INSERT = re.compile(r"insert\s+into\s+[\w.\"`]{1,60}\s*\((?P<head>[^()\n]{3,400})\)\s*values", re.IGNORECASE)
_ROW = re.compile(r"\s*,?\s*\((?P<row>[^()\n]{3,600})\)")
_SQL_CELL = re.compile(r"'(?:[^'\n]|'')*'|\"[^\"\n]*\"|[^,\n]*")
_EMPTY = _LISTS["empty"]
_LONGEST_LINE = 500  # characters of a line that could be a table's

Span = tuple[int, int]


class Kind(NamedTuple):
    """Kind of value that a key announces."""

    entity: str
    label: Label | None = None  # the form the value must have
    sure: bool = True  # False: a role such as "author", so the value must look like a name


@lru_cache(maxsize=4096)
def kinds_of(key: str) -> tuple[Kind, ...]:
    """Kinds the key may denote, likeliest first: "passengerPassport" a passport, "account holder" an account or a name."""
    words = field_words(key)
    if _BIRTH.search(words):
        return (Kind(e.DATE_OF_BIRTH),)
    if _PASSWORD.search(words):
        return (Kind(e.PASSWORD),)
    if words in _LISTS["email"]:
        return (Kind(e.EMAIL_ADDRESS),)
    label, named = field_label(key), _named(words.split())
    return tuple(kind for kind in (Kind(label.entity, label) if label else None, named) if kind)


def _named(parts: list[str]) -> Kind | None:
    """A person, a town or a street."""
    if not parts:
        return None
    last, joined = parts[-1], "".join(parts[-2:])
    if last in _LISTS["names"] or joined in _LISTS["names"]:
        return Kind(e.PERSON)
    if last in _LISTS["name"] or parts[0] in _LISTS["name"]:
        if any(part in _LISTS["of_people"] for part in parts):
            return Kind(e.PERSON)
        return Kind(e.PERSON) if len(parts) == 1 else None
    if last in _LISTS["roles"] or (parts[0] in _LISTS["roles"] and last in ("by", "von", "por", "par")):
        return Kind(e.PERSON, sure=False)
    if (last in _LISTS["towns"] and len(parts) <= 2) or joined == "placeofbirth":
        return Kind(e.LOCATION)
    return Kind(e.STREET_ADDRESS) if last in _LISTS["streets"] else None


def find_in_fields(clues: Clues) -> Iterator[Finding]:
    """Values after a key and a sign."""
    text = clues.text
    for sign in _SIGN.finditer(text):
        before = text[max(0, sign.start() - _LONGEST_KEY) : sign.start()].rpartition("\n")[2]
        key = _KEY.search(before.rstrip(" \t\"'`]\\"))
        if key is None or (sign[0][0] == ">" and not key["tag"]):
            continue
        for kind in kinds_of(key[0].lstrip("<")):
            size = _size(clues, kind, key[0], sign)
            if size:
                yield Finding(
                    sign.end(), sign.end() + size, kind.entity, 0.75 if kind.entity in e.NAMES else 0.94
                )
                break


def _size(clues: Clues, kind: Kind, key: str, sign: re.Match[str]) -> int:
    """Number of characters after a key's sign that are of its kind; 0: none."""
    text, start, quote = clues.text, sign.end(), sign["quote"]
    if kind.entity == e.PASSWORD:
        secret = _ANY_PASSWORD.match(text, start)
        bare = trimmed(secret[0]) if secret else ""
        named_pin = key.lower().endswith("pin") and not quote  # handled by the passwords
        return len(bare) if is_password(bare, bool(quote), True) and not named_pin else 0
    if quote:
        value = _QUOTED[quote[-1]].match(text, start)
    elif kind.entity == e.EMAIL_ADDRESS:
        return 0  # found by its form
    elif kind.entity == e.DATE_OF_BIRTH:
        value = _date(clues.lower, start)
    else:
        value = (_NAME if kind.entity in e.NAMES else _NUMBER).match(text, start)
    if value is None:
        return 0
    if kind.entity in e.NAMES:
        if kind.entity == e.STREET_ADDRESS and not quote:
            return 0
        if key.lower() in _LISTS["name"] and not _SIBLING.search(
            clues.lower, max(0, start - _AROUND), start + _AROUND
        ):
            return 0  # "nom" near "prenom" is somebody's; alone it may name anything
        return len(value[0]) if _is_name(kind, value[0], bool(quote)) else 0
    candidate = value[0].rstrip(" .,-")
    if kind.label:
        return len(candidate) if any(map(str.isdigit, candidate)) and fits(kind.label, candidate) else 0
    date = _date(candidate.lower(), 0)
    return date.end() if date else 0


def _date(lower: str, start: int) -> re.Match[str] | None:
    return next((match for date in _DATES if (match := date.match(lower, start))), None)


def _is_name(kind: Kind, value: str, quoted: bool) -> bool:
    """True if a value may be the name of a person, a town or a street."""
    words = lexicon()
    parts = [part for part in re.split(r"[\s+,.]+", value.lower()) if len(part) > 1]
    if kind.entity == e.STREET_ADDRESS:
        return 2 <= len(parts) <= 10 and any(map(str.isdigit, value)) and not {"@", "//"} & set(value)
    plain = all(c.isalpha() or c in " +'’.-," for c in value)
    if not plain or not 1 <= len(parts) <= 5 or parts[0] in NOT_NAMES or any(map(is_fictional_word, parts)):
        return False
    rare = [words.common.get(part, 0.0) < _EVERYDAY or words.is_any_name(part) for part in parts]
    if kind.entity == e.LOCATION:
        return value[0].isupper() and (quoted or value.lower() in words.cities or all(rare))
    if not any(rare) and not (kind.sure and quoted and not any(map(words.is_everyday, parts))):
        return False
    if kind.sure:
        return value[0].isupper() or (quoted and any(map(words.is_any_name, parts)))
    everyday = any(words.is_everyday(part) for part in (parts[0], parts[-1]))
    return value[0].isupper() and not everyday and (len(parts) > 1 or words.is_plain_given(parts[0], 9.0))


def find_in_columns(clues: Clues) -> Iterator[Finding]:
    """Cells of columns that hold personal data."""
    text = clues.text
    for match in _INSERT.finditer(text):
        kinds = _heads(text, _cells(_SQL_CELL, text, *match.span("head")))
        at = match.end()
        while kinds and (row := _ROW.match(text, at)):
            yield from _row(text, kinds, _cells(_SQL_CELL, text, *row.span("row")))
            at = row.end()
    if "\n" in text:
        yield from _tables(text)


def _tables(text: str) -> Iterator[Finding]:
    kinds: list[Kind | None] = []
    mark, at = "", 0
    for line in text.split("\n"):
        start, at = at, at + len(line) + 1
        end = at - 1
        cells = _cells(_CELL[mark], text, start, end) if kinds else []
        if kinds and len(cells) == len(kinds):
            yield from _row(text, kinds, cells)
            continue
        kinds = []
        for mark in _CELL if len(line) <= _LONGEST_LINE else ():
            kinds = kinds or (_heads(text, _cells(_CELL[mark], text, start, end)) if mark in line else [])
            if kinds:
                break


def _cells(cell: re.Pattern[str], text: str, start: int, end: int) -> list[Span]:
    """The spans of a line's cells, between the separators, including empty ones."""
    cells = []
    while start <= end:
        match = cell.match(text, start, end)
        stop = match.end() if match else end
        cells.append((start, stop))
        start = stop + 1
    return cells


def _heads(text: str, heads: Sequence[Span]) -> list[Kind | None]:
    """Kind of each column; empty if fewer than two are known, or a cell is too long for a header."""
    names = [text[start:end] for start, end in heads]
    if max(map(len, names)) > _LONGEST_KEY:
        return []
    kinds = [next(iter(kinds_of(name)), None) for name in names]
    return kinds if sum(kind is not None for kind in kinds) >= 2 else []


def _row(text: str, kinds: Sequence[Kind | None], cells: Sequence[Span]) -> Iterator[Finding]:
    for kind, (start, end) in zip(kinds, cells, strict=False):
        bare = text[start:end].strip(" \t\r\"'`*")
        if kind is not None and _is_cell(kind, bare):
            at = text.index(bare, start)
            yield Finding(at, at + len(bare), kind.entity, 0.95)


def _is_cell(kind: Kind, value: str) -> bool:
    """True if a cell could hold a value of this kind."""
    digits, words = sum(map(str.isdigit, value)), len(value.split())
    if not 2 <= len(value) <= 120 or value.lower() in _EMPTY or value[0] in "<{[$%":
        return False
    if kind.label:
        return digits > 2 and fits(kind.label, value)
    if kind.entity == e.PERSON:
        return digits == 0 and words <= 5 and value[0].isalpha() and "@" not in value
    if kind.entity == e.LOCATION:
        return words <= 5 and value[0].isalnum() and (digits >= 3 or digits == 0)
    return words > 1 and digits > 0 if kind.entity == e.STREET_ADDRESS else len(value) >= 4
