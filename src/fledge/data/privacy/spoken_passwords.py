"""Passwords recognised by their look, in a sentence that mentions one, without fixed words in between.

I always use Xy12-3qT for that password        das WLAN, also Sommer-Tisch-402, läuft        le mdp ? Azerty2024!

A password-like token mixes capitals, lower-case letters and digits as no word does, or ends in a digit and a mark.
Names in code, versions, files and order numbers don't count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy import entities as e
from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.labels import belongs_to_other
from fledge.data.privacy.passwords import is_code
from fledge.data.privacy.word_lists import read_sections

_LISTS = read_sections("password_words")
_SPEAKS, _HINTS = _LISTS["passwords"], _LISTS["hints"]
_NEAR, _NEARER = 70, 40  # characters between the password and a word that means one, or that hints at one
_WORD = re.compile(r"[^\W_]+")
_TOKEN = re.compile(r"(?<![^\s\"'`«“„(\[:=])[^\s\"'`«»<>“”„()\[\]{}=/\\,;|]{6,64}(?![^\s\"'`»”“.,;:!?)\]|])")
_END = re.compile(r"[.!?]\s+[A-ZÀ-Þ¿¡]|\n\s*\n|\n[-*•]")
_MARKS = "!#$%&*+?^~@"
# Sommer2024!, hallo_42#; rot-tisch-402; bLUMEN_12, xY7qPw2
_MARKED = re.compile(rf"(?=.*[^\W\d_])(?=.*\d).*[{re.escape(_MARKS)}].*")
_PHRASE = re.compile(r"[^\W\d_]{3,}(?:-[^\W\d_]{3,})+-\d{2,4}|(?=.*[A-Z].*\d)[^\W\d_]{3,}-\d{2,4}[^\W\d_]*")
_MIXED = re.compile(r"(?=.*[a-zß-ÿ])(?=.*[A-ZÀ-Þ])(?=.*\d)[\w.-]{8,}")
_DOTTED = re.compile(r"[^\W\d_]{4,}\.(?=\w*[a-zß-ÿ][A-Z]|\w*[A-Z]{2})\w{4,8}")  # tisch.KxeK
# What only looks like one.
_NONE = re.compile(
    "|".join(
        (
            r"[A-ZÀ-Þ]?[a-zß-ÿ]+\d+",  # Windows11
            r"(?:[A-Z]?[a-z]+\d{0,3}|[A-Z]{2,5}\d{0,3})(?:[._-]?(?:[A-Z][a-z]+\d{0,3}|[A-Z]{2,4}))+\d{0,3}",  # sha256Sum
            r"(?=(?:\D*\d){1,2}\D*$)(?=.*(?:[A-Z][a-z]{3,}|[a-z]{4,}))[A-Za-z\d]+",  # OAuth2Token
            r"[A-Z]?[a-z]+[\d.]+[A-Z]*",  # Ubuntu22.04LTS
            r"[A-Z]{2,5}-\d[\w-]*|[A-Z]\+\w+",  # UX-1182b, U+FE6A
            r"(?:\w+\.){2,}\w+",  # a.module.v2
            r"[0-9a-f-]+|[0-9A-F-]+|[\d.,]+\W?\w{0,3}",  # hexadecimal, sums
            r"\S+@[\w-]+\.\w.*",  # e-mail
            r".*\.(?:py|js|ts|json|ya?ml|txt|md|csv|html?|php|java|go|rs|pdf|docx?|xlsx?|png|jpe?g|zip|log|env|ini|conf|sh|exe)",
            r"%\w+%|\$\w+|&\w+|\*+\S*|#\S*|--?\w.*|\w+\+\+?",  # variables, marks of Markdown, options, C++
        )
    )
)


def find_spoken_passwords(clues: Clues) -> Iterator[Finding]:
    """Passwords without a fixed connection to the word that names them."""
    if _SPEAKS.isdisjoint(clues.words) and _HINTS.isdisjoint(clues.words):
        return
    tokens = [match for match in _TOKEN.finditer(clues.text) if _looks_like_one(_bare(match[0]))]
    if not tokens:
        return
    for word in _WORD.finditer(clues.lower):
        reach = _NEAR if word[0] in _SPEAKS else _NEARER if word[0] in _HINTS else 0
        if reach:
            token = _nearest(clues, word.span(), tokens, reach)
            if token is not None:
                size = len(_bare(token[0]))
                yield Finding(token.start(), token.start() + size, e.PASSWORD, 0.6)


def _nearest(
    clues: Clues, word: tuple[int, int], tokens: list[re.Match[str]], reach: int
) -> re.Match[str] | None:
    """The nearest of the tokens around a word in the same sentence that isn't another kind of number."""
    near = []
    for token in tokens:
        start, end = (word[1], token.start()) if token.start() >= word[1] else (token.end(), word[0])
        if 0 <= end - start <= reach and not _END.search(clues.text, start - (start > word[1]), end + 1):
            near.append((end - start, token.start(), token))
    for _, _, token in sorted(near, key=lambda one: one[:2]):
        if not belongs_to_other(clues, token.start(), token.end()):
            return token
    return None


def _bare(token: str) -> str:
    """Without the sentence's punctuation; a mark after a digit may belong to the password."""
    bare = re.sub(r"(?<=\d[!?])[!?]+$", "", token.rstrip(".,;:"))
    return bare if bare[-2:-1].isdigit() else bare.rstrip(".,;:!?")


def _looks_like_one(token: str) -> bool:
    if (
        len(token) < 6
        or _NONE.fullmatch(token)
        or ("." in token and token[0].isalpha() and is_code(token, True))
    ):
        return False
    return any(form.fullmatch(token) for form in (_MARKED, _PHRASE, _MIXED, _DOTTED))
