"""Beginnings of user turns: a category, a few neutral words, and random words to fill them in. Stored in openings.yaml.

A small target left alone writes few kinds of prompts. A short opening steers the kind and a random word the subject;
the target writes the rest.
"""

from __future__ import annotations

from importlib import resources

import yaml

from fledge.data.options import Opening

_SHIPPED = yaml.safe_load((resources.files("fledge.data") / "openings.yaml").read_text("utf-8"))
# Word problems end with their question; otherwise a small target continues with the answer.
_ENDS = {"math": "?"}
_NOT_A_QUESTION = ("Solve", "Calculate", "Find")

DEFAULT_MIX: dict[str, float] = _SHIPPED["mix"]
DEFAULT_OPENINGS: tuple[Opening, ...] = (
    *(
        Opening(
            category=category,
            text=text,
            until=None if text.startswith(_NOT_A_QUESTION) else _ENDS.get(category),
        )
        for category, texts in _SHIPPED["openings"].items()
        for text in texts
    ),
    *(
        Opening(category="code", text=text, until="'''" if "'''" in text else '"""', weight=2.0)
        for text in _SHIPPED["functions"]
    ),
)
# Replacements for `{name}` and the like in an opening.
PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    name: tuple(words.split(", ")) for name, words in _SHIPPED["words"].items()
}
PLACEHOLDERS["signature"] = tuple(_SHIPPED["signatures"].splitlines())
PLACEHOLDERS["function"] = tuple(signature.split("(")[0] for signature in PLACEHOLDERS["signature"])
