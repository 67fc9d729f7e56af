"""Tokens that are sent to a server that learns, and looked for wherever they mustn't be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

PLANTED = (311, 47, 205, 499, 12, 388, 130, 276, 64, 441)


def files_below(folder: Path) -> list[bytes]:
    """The contents of all files, those that a killed process left, too."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def assert_none_holds(contents: Iterable[bytes], ids: Sequence[int], text: str | None = None) -> None:
    """No content has the tokens, as numbers of any form, or their text."""
    forms = [b"".join(token.to_bytes(size, "little") for token in ids) for size in (2, 4, 8)]
    forms += [
        ", ".join(map(str, ids)).encode(),
        ",".join(map(str, ids)).encode(),
        " ".join(map(str, ids)).encode(),
    ]
    forms += [text.encode()] if text else []
    for content in contents:
        assert not any(form in content for form in forms)
