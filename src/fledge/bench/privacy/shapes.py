"""Random text in given shapes, and hand-written lists, for the corpora."""

from __future__ import annotations

import functools
import random as _random
import re
import string
import unicodedata
from collections.abc import Callable
from importlib import resources
from types import ModuleType

HEX = "0123456789abcdef"
WORD = string.ascii_letters + string.digits


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


@functools.cache
def lists(folder: str) -> dict[str, list[str]]:
    """`key: a, b, c` lines of the folder's lists.txt."""
    text = (resources.files("fledge.bench.privacy") / folder / "lists.txt").read_text("utf-8")
    pairs = (line.split(": ", 1) for line in text.splitlines() if line)
    return {key: [word.strip() for word in words.split(", ")] for key, words in pairs}
