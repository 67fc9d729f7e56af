"""What sources are made of: stored rows in a fixed order, and what is taken from each, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Unusable:
    """A row that can't become a prompt. Only the reason is kept."""

    row: int  # counted from 0 over the whole source, unusable rows included
    reason: str  # "not_json", "encoding", "too_large", "shape", "no_user_turn", "no_text"


@dataclass(frozen=True)
class Record:
    """What is taken from a row: never an answer."""

    row: int
    turns: tuple[str, ...]  # the user's, in order
    system: str | None
    category: str


class RowSource(Protocol):
    """Rows as they are stored: the same ones in the same order every time."""

    def rows(self, skip: int = 0) -> Iterator[Any]:
        """Values (mappings or texts) or `BadRow`s, without the first `skip`."""
        ...

    def digest(self) -> str:
        """Changes when the rows may have changed."""
        ...


@dataclass(frozen=True)
class BadRow:
    """A row that couldn't be read."""

    reason: str
