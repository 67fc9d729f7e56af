"""Numbers and passwords after a Chinese, Japanese or Korean word: "密码是Xy12-3", "银行卡号 6222 0210 0111 6245 702"."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fledge.data.privacy.clues import Clues
from fledge.data.privacy.entities import Finding
from fledge.data.privacy.word_lists import read_lines

_WIDE = re.compile(r"[\u3040-\u9fff\uac00-\ud7af]")
_NUMBER = r"[+A-Za-z]{0,2}\d(?:[ -]?[\dA-Za-z]){3,30}"


def _read() -> Iterator[tuple[str, re.Pattern[str], re.Pattern[str]]]:
    lines = read_lines("cjk_labels")
    for heading, words in zip(lines[::2], lines[1::2], strict=True):
        entity, form = heading[1:].split("] ", 1)
        value = r"[^\s,，。、]{4,40}" if entity == "PASSWORD" else _NUMBER
        link = r"[是为為はが은는이가:：= 　]{0,4}"
        yield (
            entity,
            re.compile(rf"(?:{'|'.join(words.split('  '))})[^\d\s,，。]{{0,3}}?{link}(?P<value>{value})"),
            re.compile(form),
        )


_LABELS = tuple(_read())


def find_after_wide_labels(clues: Clues) -> Iterator[Finding]:
    """Values after labels in scripts without blanks."""
    if not _WIDE.search(clues.original):
        return
    for entity, pattern, form in _LABELS:
        for match in pattern.finditer(clues.original):
            if form.fullmatch(
                re.sub(r"[ -]", "", match["value"].upper()) if entity != "PASSWORD" else match["value"]
            ):
                yield Finding(*match.span("value"), entity, 0.9)
