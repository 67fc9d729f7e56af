"""Base of all readers of function calls: an answer's text, read piece by piece by a state machine."""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fledge.engine.stops import overlap
from fledge.server.message import Call, MessageParts

_ID_LENGTH = 9  # required by Mistral's templates; others accept any
# The JSON schema of each offered function's arguments, by its name.
Functions = Mapping[str, Mapping[str, Any]]


class AnswerParser:
    """Parses one answer's text, piece by piece."""

    # Each state parses from the beginning of the text, and returns True if the next can process the rest.
    _go_on: Callable[[MessageParts], bool]

    def __init__(self, functions: Functions, *, several: bool = True) -> None:
        """Without `several` only the first call is reported."""
        self._functions = functions
        self._several = several
        self.calls = 0  # so far
        self.whole = False  # the text is a complete answer
        self.ended = False  # which ended by itself
        self._text = ""  # not processed yet
        self._last = False

    def add(self, text: str, parts: MessageParts, *, last: bool) -> None:
        """Parse more text; add final parts to `parts`. `last`: no more text will follow."""
        self._text += text
        self._last = last
        while self._go_on(parts):
            pass

    def _call(self, parts: MessageParts, name: str, arguments: str = "") -> None:
        self.calls += 1
        if self._several or self.calls == 1:
            parts.begin_call(self.calls - 1, Call(new_call_id(), name, arguments))

    def _pass_on(self, parts: MessageParts, arguments: str) -> None:
        if self._several or self.calls == 1:
            parts.add_arguments(self.calls - 1, arguments)


class CallParser(AnswerParser, ABC):
    """Finds calls behind marks. Text that isn't a call of an offered function stays content, unchanged."""

    def __init__(self, functions: Functions, *, several: bool = True) -> None:
        super().__init__(functions, several=several)
        self._silent = False  # since a call
        self._go_on = self._words

    @property
    @abstractmethod
    def _openings(self) -> tuple[str, ...]:
        """Marks that calls begin with; none: calls begin the answer."""

    @abstractmethod
    def _first(self, parts: MessageParts) -> bool:
        """The state at an opening."""

    def _words(self, parts: MessageParts) -> bool:
        """Content, up to the next opening."""
        text = self._text
        at = min((at for mark in self._openings if (at := text.find(mark)) >= 0), default=-1)
        if at >= 0:
            self._emit(parts, len(text[:at].rstrip()))
            self._go_on = self._first
            return True
        if not self._last:  # white space may precede a call
            held = max((overlap(text, mark) for mark in self._openings), default=0)
            self._emit(parts, len(text[: len(text) - held].rstrip()))
        elif not (self._silent and text.isspace()):
            self._emit(parts, len(text))
        return False

    def _is_content(self, parts: MessageParts, rest: str) -> bool:
        """Emit the text before `rest` as content, since it is no call after all; return the next state's result."""
        self._emit(parts, len(self._text) - len(rest))
        self._go_on = self._words
        return True

    def _emit(self, parts: MessageParts, length: int) -> None:
        parts.add("content", self._text[:length])
        self._text = self._text[length:]
        self._silent = self._silent and not length

    def _call(self, parts: MessageParts, name: str, arguments: str = "") -> None:
        super()._call(parts, name, arguments)
        self._silent = True


class CallForm(Protocol):
    """The format of a target's calls."""

    @property
    def marks(self) -> frozenset[str]:
        """Marks that may be special tokens of the tokenizer."""

    def reader(self, functions: Functions, *, several: bool = True) -> CallParser:
        """The reader of one answer."""

    def grammar(
        self, functions: Functions, *, several: bool, marks: Mapping[str, int]
    ) -> tuple[str, list[str]]:
        """In Lark's syntax, an expression for an answer that consists of calls only, and the rules that it uses.

        `marks`: ids of the tokenizer's added tokens; other marks are spelled out.
        """


def new_call_id() -> str:
    """A fresh id of a call."""
    return uuid.uuid4().hex[:_ID_LENGTH]


def parsed_object(text: str) -> dict[str, Any] | None:
    """The JSON object that this is the text of; None if it isn't one."""
    try:
        value = json.loads(text)
        json.dumps(value, allow_nan=False)  # which JSON has not, but Python reads
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def json_text(value: Any) -> str:
    """A value as JSON that can be sent: half of a surrogate pair stays escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or text.encode(errors="replace").decode() == text else json.dumps(value)


def quoted(text: str) -> str:
    """A text in Lark's syntax."""
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """A text within a regular expression of Lark's."""
    return re.escape(text).replace("\\\n", r"\n").replace("/", r"\/")


def sign(tokens: Mapping[str, int], text: str) -> str:
    """A mark in Lark's syntax; `tokens`: as `marks` of `CallForm.grammar`."""
    return f"<[{tokens[text]}]>" if text in tokens else quoted(text)
