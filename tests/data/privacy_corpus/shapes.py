"""Random text in given shapes, and hand-written lists, for the corpora."""

from __future__ import annotations

import functools
import random as _random
import re
import string
import unicodedata
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol

HEX = "0123456789abcdef"
WORD = string.ascii_letters + string.digits
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# What `fill` draws from, by the letter behind a length.
_ALPHABETS = {
    "": WORD,
    "h": HEX,
    "d": string.digits,
    "l": string.ascii_letters,
    "c": string.ascii_uppercase + string.digits,
    "A": string.ascii_uppercase + "234567",  # base 32
    "b": WORD + "+/",  # base 64,
    "u": WORD + "-_",  # and as it stands in URLs
    "s": BASE58,
    "w": "023456789acdefghjklmnpqrstuvwxyz",  # base 32 of Bitcoin's addresses
}
MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
}


def shape(rng: _random.Random, form: str) -> str:
    """`#` any digit, `N` 2 to 9, `?` any capital, `*` capital or digit, `_` a space; `\\` keeps the next character."""
    made, literal = "", False
    for sign in form:
        if literal:
            made, literal = made + sign, False
        elif sign == "\\":
            literal = True
        else:
            made += _drawn(rng, sign)
    return made


def _drawn(rng: _random.Random, sign: str) -> str:
    if sign == "#":
        return rng.choice(string.digits)
    if sign == "N":
        return rng.choice("23456789")
    if sign == "?":
        return rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ")
    if sign == "*":
        return rng.choice("ABCDEFGHJKLMNPRSTUVWXYZ0123456789")
    return " " if sign == "_" else sign


def random_text(rng: _random.Random, length: int, alphabet: str = WORD) -> str:
    """So many random characters."""
    return "".join(rng.choices(alphabet, k=length))


def fill(rng: _random.Random, form: str) -> str:
    """Random characters for `{20}`, and of another alphabet than letters and digits for `{20h}`."""
    return re.sub(
        r"\{(\d+)(\w?)\}", lambda found: random_text(rng, int(found[1]), _ALPHABETS[found[2]]), form
    )


def one_filled(rng: _random.Random, forms: str) -> str:
    """All of the forms filled, and one of them chosen."""
    return rng.choice([fill(rng, form) for form in forms.split()])


def ascii_only(text: str) -> str:
    """Without accents, spaces and apostrophes: as it stands in an e-mail address."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return "".join(sign for sign in plain if sign.isalnum() or sign == "-")


def one_of(*forms: str) -> Callable[[_random.Random], str]:
    """Draws one of the forms, filled."""
    return lambda rng: shape(rng, rng.choice(forms))


def valid(number: ModuleType, *forms: str) -> Callable[[_random.Random], str]:
    """One of the forms with a number in it that has the right check digits."""

    def draw(rng: _random.Random) -> str:
        form = rng.choice(forms)
        for _ in range(100_000):
            made = shape(rng, form)
            if number.is_valid(re.sub(r"[ ./-]", "", made)):
                return made
        raise ValueError(f"no valid number has the form {form}; give another one")

    return draw


Value = tuple[
    str | None, Callable[["HasRandom"], str]
]  # the entity, None for what only looks like one; draws it


class HasRandom(Protocol):
    """What values are drawn with."""

    rng: _random.Random


@functools.cache
def numbers(folder: str) -> dict[str, Value]:
    """The slots of the folder's numbers.txt."""
    return {
        slot: (
            entity,
            with_random(valid(import_module(f"stdnum.{check}"), *forms) if check else one_of(*forms)),
        )
        for slot, (entity, check, forms) in number_forms(folder).items()
    }


@functools.cache
def number_forms(folder: str) -> dict[str, tuple[str | None, str | None, list[str]]]:
    """Slot -> entity, python-stdnum's module that checks a number, forms."""
    text = (Path(__file__).parent / folder / "numbers.txt").read_text("utf-8")
    rows = (line.split(" ") for line in text.splitlines() if not line.startswith("#"))
    return {
        slot: (None if entity == "-" else entity, None if check == "-" else check, forms)
        for slot, entity, check, *forms in rows
    }


def with_random(draw: Callable[[_random.Random], str]) -> Callable[[HasRandom], str]:
    """The same for what has a generator."""
    return lambda values: draw(values.rng)


@functools.cache
def lists(folder: str) -> dict[str, list[str]]:
    """`key: a, b, c` lines of the folder's lists.txt."""
    text = (Path(__file__).parent / folder / "lists.txt").read_text("utf-8")
    pairs = (line.split(": ", 1) for line in text.splitlines() if line)
    return {key: [word.strip() for word in words.split(", ")] for key, words in pairs}
