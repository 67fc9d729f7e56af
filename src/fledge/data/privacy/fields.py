"""Names and places identified by the key before them, as in JSON, YAML, forms, settings and query strings.

    "last_name": "Okafor"     customerName=Ida+Holm     assignee: Caspian Holloway     'ciudad' => 'Lugo'

A key is sufficient alone ("surname"), or only if a quoted or capitalised value follows ("assignee"), or next to other
keys about people ("nom" near "prenom": alone it may name anything).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import UPPER, Clues
from fledge.data.privacy.cues import NOT_NAMES
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.fiction import is_fictional_word
from fledge.data.privacy.lexicon import lexicon, unaccented
from fledge.data.privacy.word_lists import read_sections

_SEPARATOR = re.compile(r"(?:=>|:=|[:=])[ \t]{0,4}(?P<quote>[\"'`]?)(?=[^\W_])")
_KEY = re.compile(r"[^\W\d_][\w.-]*(?: [^\W\d_][\w-]*){0,2}$")
_PARTS = re.compile(r"[A-ZÀ-Þ]?[a-zà-öø-ÿ]+|[A-ZÀ-Þ]+(?![a-zà-ÿ])")
_CAPITAL = rf"[{UPPER}][^\W\d_]*(?:['’.-][^\W\d_]+)*\.?"
_UNQUOTED = re.compile(
    rf"{_CAPITAL}(?:[ +](?:(?:de la|de los|da|de|do|dos|das|del|van der|van den|van|von|bin|la|le|y|e)[ +])?{_CAPITAL}){{0,4}}(?=\s*(?:[,;|&<>()\n\]}}#\"']|\.?$|\.?\s))"
)
_LISTS = read_sections("field_keys")
_NAME_KEYS = _LISTS["names"]
_OF_PEOPLE = _LISTS["of_people"]
_NAMES = frozenset(["name", "names", "nom", "nombre", "nome"])
_ROLES = _LISTS["roles"]
_TOWNS = _LISTS["towns"]
_STREETS = _LISTS["streets"]
_SIBLING = re.compile(
    r"(?:first|last|sur|full|family|given|vor|nach)_?-?name|pr[ée]nom|apellido|sobrenome|apelido|e-?mail|courriel|correo|birth|naiss|nacimiento|nascimento|\bgeb|\bdob\b|phone|t[ée]l[ée]?f|handy|mobil|ssn|\bdni\b|\bcpf\b|patient"
)
_AROUND = 220  # characters on either side that are searched for a record's other keys
_EVERYDAY = 4.0  # Zipf frequency from which a single word isn't a name, whatever the key


def find_in_fields(clues: Clues) -> Iterator[Finding]:
    """Values with keys that denote a name, a town or a street."""
    text = clues.text
    for match in _SEPARATOR.finditer(text):
        before = text[max(0, match.start() - 34) : match.start()]
        key = _KEY.search(before.rpartition("\n")[2].rstrip(" \t\"'`]"))
        if key is None:
            continue
        entity, sure = _kind(clues, key[0], match.start())
        if entity is None:
            continue
        span = _value(text, match)
        if span is not None and _fits(entity, text[span[0] : span[1]], sure, bool(match["quote"])):
            yield Finding(*span, entity, 0.75)


def _kind(clues: Clues, key: str, at: int) -> tuple[str | None, bool]:
    """What a key denotes, and whether it is unambiguous."""
    parts = [unaccented(part.lower()).replace("ß", "ss") for part in _PARTS.findall(key)]
    if not parts:
        return None, False
    last, joined = parts[-1], "".join(parts[-2:])
    if last in _NAME_KEYS or joined in _NAME_KEYS:
        return e.PERSON, True
    if last in _NAMES or (len(parts) > 1 and parts[0] in _NAMES):
        if any(part in _OF_PEOPLE for part in parts):
            return e.PERSON, True
        near = clues.lower[max(0, at - _AROUND) : at + _AROUND]
        return (e.PERSON, True) if len(parts) == 1 and _SIBLING.search(near) else (None, False)
    if last in _ROLES or (
        parts[0] in _ROLES and last in ("firmante", "justificada", "par", "por", "von", "by")
    ):
        return e.PERSON, False
    if (last in _TOWNS and len(parts) <= 2) or joined == "placeofbirth":
        return e.LOCATION, True
    return (e.STREET_ADDRESS, True) if last in _STREETS else (None, False)


def _value(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    start, quote = match.end(), match["quote"]
    if quote:
        end = text.find(quote, start, start + 90)
        return (start, end) if end > start else None
    value = _UNQUOTED.match(text, start, start + 90)
    return (start, value.end()) if value else None


def _fits(entity: str, value: str, sure: bool, quoted: bool) -> bool:
    """Whether the key's kind is plausible for the value."""
    words = lexicon()
    parts = [part for part in re.split(r"[\s+,.]+", value.lower()) if len(part) > 1]
    if entity == e.STREET_ADDRESS:
        return (
            quoted
            and 2 <= len(parts) <= 10
            and any(map(str.isdigit, value))
            and "@" not in value
            and "//" not in value
        )
    if not parts or len(parts) > 5 or any(is_fictional_word(part) for part in parts):
        return False
    if not all(c.isalpha() or c in " +'’.-," for c in value):
        return False
    rare = [words.common.get(part, 0.0) < _EVERYDAY or words.is_any_name(part) for part in parts]
    if entity == e.LOCATION:
        return (
            value[0].isupper()
            and (quoted or words.is_city(value.lower()) or all(rare))
            and parts[0] not in NOT_NAMES
        )
    if parts[0] in NOT_NAMES or not (
        any(rare) or (sure and quoted and not any(map(words.is_everyday, parts)))
    ):
        return False
    if sure:
        return value[0].isupper() or (quoted and any(map(words.is_any_name, parts)))
    everyday = any(words.is_everyday(part) for part in (parts[0], parts[-1]))
    return value[0].isupper() and not everyday and (len(parts) > 1 or words.is_plain_given(parts[0], 9.0))
