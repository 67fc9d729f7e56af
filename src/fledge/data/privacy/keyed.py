"""Values identified by the name of their field: JSON, YAML, TOML, XML, environment files, logs, queries, code.

    "steuer_id": "19-386-205-379"      EMPLOYER_EIN=52-7884336      <passportNo>X1234567</passportNo>
    member.dateOfBirth = '1985-04-03'  dbPassword: "Xy12-3"         ...?ssn=123-45-6789&last_name=Ng

A name is read word by word with the words of `label_words`; other names cost one cache lookup.
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
from fledge.data.privacy.passwords import is_password, trimmed

_FIELD = re.compile(
    r"(?<![^\W_])(?P<key>[A-Za-zÀ-ÿ][\wÀ-ÿ-]{1,40})(?:[\"'`]?\]?\s?(?::=|=>|[:=])\s{0,2}|>)(?P<quote>\\?[\"'`]?)"
    r"(?=[^\s\"'`<>\\])"
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
_PASSWORD = re.compile(
    r"(?:^| )(?:pass ?(?:word|wort|phrase|code|wd)|pwd|pass|psw|pw|kennwort|mot de passe|motdepasse|mdp|contrasena|clave|senha|pin)\d?(?: (?:value|plain|text|1|2|old|new|confirm))?$"
)
_ANY_PASSWORD = re.compile(r"[^\s\"'`\\]{4,64}")
_PASSWORD_VALUE = re.compile(r"[^\s\"'`<>\\]{4,64}")


def find_keyed(clues: Clues) -> Iterator[Finding]:
    """Values of fields."""
    text = clues.text
    if "=" not in text and ":" not in text and "</" not in text:
        return
    for match in _FIELD.finditer(text):
        kind = field_kind(match["key"])
        size = _size(kind, text, match) if kind is not None else 0
        if size:
            entity = kind.entity if isinstance(kind, Label) else str(kind)
            yield Finding(match.end(), match.end() + size, entity, 0.94)


def _date(text: str, start: int) -> re.Match[str] | None:
    return _ISO.match(text, start) or _DIGITS_DATE.match(text, start) or DATE.match(text.lower(), start)


@lru_cache(maxsize=4096)
def field_kind(key: str) -> Label | str | None:
    """The label of a field's name; for dates of birth and passwords, which have none, their entity."""
    words = field_words(key)
    if _BIRTH.search(words):
        return e.DATE_OF_BIRTH
    return e.PASSWORD if _PASSWORD.search(words) else field_label(key)


def _size(kind: Label | str, text: str, field: re.Match[str]) -> int:
    """How many characters after a field's name and sign are of its kind; 0: none."""
    start, quote = field.end(), field["quote"]
    if kind == e.PASSWORD:
        secret = (_PASSWORD_VALUE if text[start - 1] == ">" else _ANY_PASSWORD).match(text, start)
        bare = trimmed(secret[0]) if secret else ""
        named_pin = field["key"].lower() == "pin" and not quote  # handled by the passwords
        return len(bare) if is_password(bare, bool(quote), True) and not named_pin else 0
    if quote:
        value = _QUOTED[quote[-1]].match(text, start)
    else:
        value = _date(text, start) if kind == e.DATE_OF_BIRTH else _NUMBER.match(text, start)
    if value is None:
        return 0
    candidate = value[0].rstrip(" .,-")
    if isinstance(kind, Label):
        return len(candidate) if any(map(str.isdigit, candidate)) and fits(kind, candidate) else 0
    date = _ISO.match(candidate) or DATE.fullmatch(candidate.lower()) or _DIGITS_DATE.fullmatch(candidate)
    return date.end() if date else 0
