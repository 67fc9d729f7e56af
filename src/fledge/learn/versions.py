"""The heads that a server has learnt, in a folder: each with its card, written whole or not at all.

    learned/   000001/   config.json  model.safetensors  checksums.json  card.json
               000002/   ...
               pinned    the number of the version that is to be served, if a person has said so

A version is an ordinary head: `fledge serve TARGET --head learned/000002`. Neither heads nor cards hold a token of the
traffic: a head's draft vocabulary takes a token only if it occurred in several conversations (`student.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fledge.base.disk import write_atomic
from fledge.base.errors import HeadError
from fledge.heads import Head

CARD, PINNED = "card.json", "pinned"


@dataclass(frozen=True)
class Card:
    """Record of a version."""

    number: int
    tau: float  # on the held-out conversations
    before: float  # of the head that served before; 1 without one
    low: float | None  # of the difference, 95 % interval
    high: float | None
    conversations: int  # that were held out
    steps: int  # training steps since learning began
    tokens: int  # taken in by then
    created: float  # seconds since 1970
    parent: int | None = None  # the version that served before
    rolled_back: bool = False  # it was served, and acceptance fell


class Versions:
    """A folder of versions."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def cards(self) -> list[Card]:
        """Cards of all versions, oldest first. Raises a HeadError for one that can't be read."""
        if not self.folder.is_dir():
            return []
        numbers = sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())
        return [self._card(number) for number in numbers]

    def path(self, number: int) -> Path:
        """A version's folder."""
        return self.folder / f"{number:06d}"

    def load(self, number: int) -> Head:
        """A version's head. Raises a HeadError if there is none."""
        if not self.path(number).is_dir():
            known = ", ".join(str(card.number) for card in self.cards()) or "none"
            raise HeadError(f"{self.folder} has no version {number}; it has {known}")
        return Head.load(str(self.path(number)))

    def add(self, head: Head, card: Card) -> Card:
        """Write a version after the last one; return its card, with its number."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".writing-*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        number = max((one.number for one in self.cards()), default=0) + 1
        card = replace(card, number=number, created=time.time())
        writing = self.folder / f".writing-{number:06d}-{os.getpid()}"
        try:
            head.save(str(writing))
            write_atomic(writing / CARD, _json(card))
            writing.rename(self.path(number))
        finally:
            shutil.rmtree(writing, ignore_errors=True)
        return card

    def mark_rolled_back(self, number: int) -> None:
        """A version isn't to be served again."""
        write_atomic(self.path(number) / CARD, _json(replace(self._card(number), rolled_back=True)))

    def prune(self, keep: int, serving: int | None) -> None:
        """Delete all but the newest `keep`, the one that serves and the pinned one."""
        spared = {serving, self.pinned()}
        for card in self.cards()[:-keep]:
            if card.number not in spared:
                gone = self.folder / f".writing-{card.number:06d}-gone"
                self.path(card.number).rename(gone)
                shutil.rmtree(gone, ignore_errors=True)

    def to_serve(self) -> int | None:
        """The version to start with: the pinned one, or the newest that wasn't rolled back."""
        pinned = self.pinned()
        if pinned is not None:
            return pinned
        return next((card.number for card in reversed(self.cards()) if not card.rolled_back), None)

    def pinned(self) -> int | None:
        """The version that a person has pinned."""
        try:
            text = (self.folder / PINNED).read_text("utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not text.isdecimal():
            raise HeadError(
                f"{self.folder / PINNED} holds {text[:20]!r}, no version; delete it, or pin another one"
            )
        return int(text)

    def pin(self, number: int | None) -> None:
        """Serve this version and no other; None: the newest again."""
        if number is None:
            (self.folder / PINNED).unlink(missing_ok=True)
            return
        self.load(number)
        write_atomic(self.folder / PINNED, f"{number}\n".encode())

    def _card(self, number: int) -> Card:
        path = self.path(number) / CARD
        try:
            return Card(**json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise HeadError(f"{path} can't be read ({error}); delete the folder of this version") from error


def _json(card: Card) -> bytes:
    return (json.dumps(asdict(card), indent=2) + "\n").encode()
