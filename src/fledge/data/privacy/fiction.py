"""Invented names and places. None is in the gazetteers, and each contains a stem made up for this purpose.

A family name or a place is stem + ending ("Quillmoor", "Brindlethorpe"), a given name one of a closed list. A text of
only these (and small words between them) is recognised as invented.
"""

from __future__ import annotations

import re

_STEMS = (
    "quill", "brindle", "thrush", "osker", "marl", "fenwil", "tarn", "vesk", "halber", "ormund", "lindar",
    "corwyn", "eskil", "dravel", "belmar", "jorrin", "kestel", "norvin", "ravel", "selwin", "torvel", "ulber",
    "varnel", "wendel", "yarvin", "zelmar", "ambrel", "cindor", "elster", "falmer",
)  # fmt: skip
_FAMILY_ENDINGS = ["moor", "quist", "wick", "dahl", "grave", "lock", "mere"]
_PLACE_ENDINGS = ["stead", "thorpe", "haven", "reach", "firth", "holm", "gate"]
GIVEN = (
    "Aldrel", "Brisvelin", "Cavrin", "Delvina", "Elvanor", "Fendrick", "Galvira", "Hestrin", "Ildora", "Jorvan",
    "Kelvira", "Lorvin", "Mirelda", "Nolvin", "Orvella", "Pelvin", "Quorra", "Rilvan", "Selvira", "Tolvin",
    "Ulvira", "Veldrin", "Wilvara", "Xandrel", "Yelvin", "Zorvina", "Andrel", "Belvora", "Corvina", "Dalvorin",
    "Estrel", "Folvira",
)  # fmt: skip
FAMILY = tuple(stem.capitalize() + ending for stem in _STEMS for ending in _FAMILY_ENDINGS)
PLACES = tuple(stem.capitalize() + ending for stem in _STEMS for ending in _PLACE_ENDINGS)

_ALL = frozenset(word.lower() for word in (*FAMILY, *PLACES, *GIVEN))
_SMALL = frozenset((
    "street", "road", "lane", "avenue", "group", "gmbh", "straße", "rue", "calle", "rua", "de", "the", "of",
    "and", "und", "et", "y", "e", "s", "apt", "saint", "sainte",
))  # fmt: skip
_WORD = re.compile(r"[^\W\d_]+")


def is_fictional_word(word: str) -> bool:
    """True if a word is one of the invented names."""
    return word.lower() in _ALL


def is_fictional(text: str) -> bool:
    """True if the text consists of invented names, numbers and small words alone."""
    words = [word.lower() for word in _WORD.findall(text)]
    return any(word in _ALL for word in words) and all(word in _ALL or word in _SMALL for word in words)
