"""Invented replacements of personal data: the same original gets the same value throughout one conversation.

Values are drawn in the order in which originals appear, from a generator seeded by the recipe and the conversation.
A value depends on the original's shape, not on its letters. All values come from ranges that are reserved (`reserved`),
so none is the original or belongs to another person.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from fledge.data.privacy import entities as e
from fledge.data.privacy import fiction
from fledge.data.seeds import derive_seed

_PARTICLE = re.compile(r"[a-zà-ÿ]")


class Surrogates:
    """The invented values of one conversation."""

    def __init__(self, seed: int, conversation: str, language: str = "en") -> None:
        self._rng = random.Random(derive_seed(seed, "surrogate", conversation))
        self._language = language
        self._values: dict[tuple[str, str], str] = {}
        self._used: set[str] = set()

    def replace(self, entity: str, value: str) -> str:
        """The replacement for an original."""
        if entity == e.PERSON:
            return self._person(value)
        key = entity, re.sub(r"[\W_]+", "", value).casefold() or value
        if key not in self._values:
            make = _MAKERS.get(entity, _zeros)
            self._values[key] = self._unused(lambda: make(self._rng, value, self._language))
        return self._values[key]

    def _person(self, value: str) -> str:
        """Word by word, so that "Ana Ruiz", "Ana" and "Ms Ruiz" stay the same person."""
        parts = [word for word in re.split(r"[\s,]+", value) if word]
        words = [word for word in parts if not _PARTICLE.match(word)] or parts
        return " ".join(
            self._name(word, last=len(words) > 1 and i == len(words) - 1) for i, word in enumerate(words)
        )

    def _name(self, word: str, last: bool) -> str:
        key = e.PERSON, word.strip(".'’,").casefold()
        if key not in self._values:
            pool = fiction.FAMILY if last else fiction.GIVEN
            self._values[key] = self._unused(lambda: self._rng.choice(pool))
        return self._values[key]

    def _unused(self, make: Callable[[], str]) -> str:
        for _ in range(50):  # a small pool runs out in a long conversation; then two originals share a value
            value = make()
            if value not in self._used:
                break
        self._used.add(value)
        return value


def _zeros(rng: random.Random, value: str, language: str) -> str:
    """Zeros in the shape of the original, except two digits: X12-345-678 becomes X00-000-017."""
    number = f"{rng.randint(1, 99):02d}"
    places = [i for i, character in enumerate(value) if character.isdigit()]
    if len(places) < 4:
        return f"PLACEHOLDER-{number}"
    made = ["X" if character.isalpha() else "0" if character.isdigit() else character for character in value]
    for place, digit in zip(places[-2:], number, strict=True):
        made[place] = digit
    return "".join(made)


def _street(rng: random.Random, value: str, language: str) -> str:
    """A street with a number, in the language's format."""
    name, number = rng.choice(fiction.PLACES), rng.randint(1, 99)
    return {
        "de": f"{name} Straße {number}",
        "fr": f"{number} rue {name}",
        "es": f"Calle {name} {number}",
        "pt": f"Rua {name} {number}",
    }.get(language, f"{number} {name} Street")


def _email(rng: random.Random, value: str, language: str) -> str:
    return f"{rng.choice(fiction.GIVEN)}.{rng.choice(fiction.FAMILY)}@mail.example".lower()


def _phone(rng: random.Random, value: str, language: str) -> str:
    if language == "de":
        return f"+49 30 23125 {rng.randint(0, 999):03d}"
    if language == "fr":
        return f"+33 1 99 00 {rng.randint(0, 99):02d} {rng.randint(0, 99):02d}"
    return f"+1 {rng.randint(2, 9)}{rng.randint(0, 9)}{rng.randint(1, 9)}-555-01{rng.randint(0, 99):02d}"


def _birth(rng: random.Random, value: str, language: str) -> str:
    """A day of 1900, in the original's order."""
    day, month = rng.randint(1, 28), rng.randint(1, 12)
    if re.match(r"\d{4}\D", value):
        return f"1900-{month:02d}-{day:02d}"
    return f"{day}.{month}.1900" if language == "de" else f"{day:02d}/{month:02d}/1900"


def _ip(rng: random.Random, value: str, language: str) -> str:
    return f"2001:db8::{rng.randint(1, 65535):x}" if ":" in value else f"192.0.2.{rng.randint(1, 254)}"


def _secret(rng: random.Random, value: str, language: str) -> str:
    return f"PLACEHOLDER-{rng.randint(0, 9999):04d}"


_MAKERS: dict[str, Callable[[random.Random, str, str], str]] = {
    e.LOCATION: lambda rng, value, language: rng.choice(fiction.PLACES),
    e.STREET_ADDRESS: _street,
    e.ORGANIZATION: lambda rng, value, language: f"{rng.choice(fiction.FAMILY)} Group",
    e.EMAIL_ADDRESS: _email,
    e.PHONE_NUMBER: _phone,
    e.DATE_OF_BIRTH: _birth,
    e.IP_ADDRESS: _ip,
    e.MAC_ADDRESS: lambda rng, value, language: f"00:00:5e:00:53:{rng.randint(0, 255):02x}",
    e.URL_CREDENTIALS: lambda rng, value, language: f"https://host{rng.randint(1, 999)}.example/",
    e.API_KEY: _secret,
    e.PRIVATE_KEY: _secret,
    e.PASSWORD: _secret,
    e.CRYPTO: _secret,
}
