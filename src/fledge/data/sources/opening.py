"""From a recipe's source to its records: check terms, read rows, detect the shape, extract user turns."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from fledge.base.errors import DataError
from fledge.data.sources.files import BadRow, FileRows, has_surrogate
from fledge.data.sources.hub import HubRows
from fledge.data.sources.messages import ToolResult
from fledge.data.sources.options import SourceOptions
from fledge.data.sources.shapes import (
    SHAPES,
    UserTurns,
    detect_shape,
    is_prompts_row,
    thread_of,
    user_turns,
)
from fledge.data.sources.terms import Terms, check_terms

_SHAPE_ROWS = 100  # rows that decide the shape
DEFAULT_CATEGORY = "general"


@dataclass(frozen=True)
class Unusable:
    """A row that can't become a prompt. Only the reason is stored."""

    row: int  # counted from 0 over the whole source, unusable rows included
    reason: str  # "not_json", "encoding", "too_large", "shape", "no_user_turn", "no_text", "answer", ...


@dataclass(frozen=True)
class Record:
    """The parts of a row that are used: never an answer."""

    row: int
    turns: tuple[str, ...]  # the user's, in order
    system: str | None
    category: str
    tools: str = ""  # JSON
    template_options: str = ""  # JSON
    results: tuple[tuple[ToolResult, ...], ...] = ()  # of tools, after each turn
    losses: tuple[str, ...] = ()


def open_source(options: SourceOptions) -> Source:
    """The records of a source.

    Raises:
        DataError: its terms are refused, it can't be found, or no row has a known shape.
    """
    if options.kind == "dataset":
        if options.training_allowed is False:
            check_terms(options.label, options.licence, False)  # before anything is loaded
        rows = HubRows(options)
        terms = check_terms(options.label, options.licence or rows.licence, options.training_allowed)
        return Source(options, rows, terms)
    terms = check_terms(options.label, options.licence, options.training_allowed)
    return Source(options, FileRows(options.path), terms)


class Source:
    """A source of the prompts stage: rows and their shape."""

    def __init__(self, options: SourceOptions, rows: FileRows | HubRows, terms: Terms) -> None:
        self._options = options
        self._rows = rows
        self.terms = terms
        self.name = options.label
        self.licence = terms.licence
        self.shape = self._find_shape()

    def records(self, skip: int = 0) -> Iterator[Record | Unusable]:
        """All rows in order except the first `skip`: as records, or the reason if unusable."""
        options = self._options
        begin = max(0, skip - 1)  # whether a row that is one message goes on depends on the row before it
        rows = self._rows.rows(begin)
        if options.limit is not None:
            rows = islice(rows, max(0, options.limit - begin))
        thread = None
        for number, row in enumerate(rows, start=begin):
            before, thread = thread, None if isinstance(row, BadRow) else thread_of(row)
            if number < skip:
                continue
            extracted = row.reason if isinstance(row, BadRow) else self._turns(row)
            if not isinstance(extracted, str) and thread is not None and thread == before:
                extracted = "later_turn"
            yield (
                Unusable(number, extracted) if isinstance(extracted, str) else self._record(number, extracted)
            )

    def _turns(self, row: object) -> UserTurns | str:
        options = self._options
        try:
            extracted = user_turns(row, self.shape, options.field)
            # A file may mix shapes; what isn't plainly a conversation or a prompt could be an answer.
            if extracted == "shape" and options.kind != "log" and options.shape == "auto":
                own = detect_shape([row], options.field)
                if own in ("sharegpt", "messages", "alpaca") or (own == "prompt" and is_prompts_row(row)):
                    return user_turns(row, own, options.field)
            return extracted
        except RecursionError:  # nested almost as deep as a JSON parser goes
            return "shape"

    def _record(self, number: int, found: UserTurns) -> Record | Unusable:
        category = self._options.category or found.category or DEFAULT_CATEGORY
        system, losses = found.system, found.losses
        if not self._options.system and (system or "system_media" in losses):
            system, losses = None, (*(loss for loss in losses if not loss.startswith("system_")), "system")
        elif "system_media" in losses:
            return Unusable(number, "no_text")
        texts = (*found.turns, system or "", category, found.tools, found.template_options)
        if any(
            map(
                has_surrogate,
                (*texts, *(text for step in found.results for result in step for text in result)),
            )
        ):
            return Unusable(number, "encoding")  # half an emoji: it can't be written as UTF-8
        return Record(
            number, found.turns, system, category, found.tools, found.template_options, found.results, losses
        )

    def digest(self) -> str:
        """A digest of the rows and how they are read: changes when the records may have changed."""
        return hashlib.sha256(f"{self._rows.digest()}\0{self.shape}".encode()).hexdigest()

    def _find_shape(self) -> str:
        options = self._options
        if options.kind == "log":
            return "request"
        if options.shape != "auto":
            return options.shape
        first = list(islice(self._rows.rows(), _SHAPE_ROWS))
        usable = [row for row in first if not isinstance(row, BadRow)]
        if not usable:
            if not first:
                raise DataError(f"source {self.name} is empty; put prompts into it, or remove the source")
            reasons = sorted({row.reason for row in first if isinstance(row, BadRow)})
            raise DataError(
                f"source {self.name}: none of the first {len(first)} rows can be read "
                f"({', '.join(reasons)}); check the file's format"
            )
        shape = detect_shape(usable, options.field)
        if shape is None:
            raise DataError(
                f"source {self.name}: the rows have no known shape ({_columns(usable[0])}); "
                f"set the source's `shape` to one of {', '.join(SHAPES)}, and `field` to the column with the turns"
            )
        return shape


def _columns(row: object) -> str:
    """The names of a row's columns; its values are never shown."""
    return f"columns {', '.join(map(str, list(row)[:8]))}" if isinstance(row, dict) else type(row).__name__
