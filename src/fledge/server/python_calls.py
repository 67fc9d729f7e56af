"""Function calls written as a list of Python's, as Llama 3.2, Llama 4 and others are instructed to.

    pythonic      [f(place="sea", days=[1, 2]), g()]            nothing before it

A call is reported when it is complete.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fledge.engine.json_schema import prepared
from fledge.server.argument_types import properties, required, with_definitions
from fledge.server.call_parser import CallParser, Functions, json_text, quoted
from fledge.server.message import MessageParts

_QUOTED = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')""", re.DOTALL)
_BEGIN = re.compile(r"[A-Za-z_][\w.-]*\(")
_MAYBE = re.compile(r"([A-Za-z_][\w.-]*)?")  # the beginning of one
_NAMES = {"true": True, "false": False, "null": None}  # where a template writes JSON


@dataclass(frozen=True)
class PythonCalls:
    """The format; `wrap`: tokens that may stand around the list."""

    wrap: tuple[str, str] = ("<|python_start|>", "<|python_end|>")

    @property
    def marks(self) -> frozenset[str]:
        """Marks that may be special tokens."""
        return frozenset(self.wrap)

    def reader(self, functions: Functions, *, several: bool = True) -> PythonCallReader:
        """The reader of one answer."""
        return PythonCallReader(self, functions, several=several)

    def grammar(
        self, functions: Functions, *, several: bool, marks: Mapping[str, int]
    ) -> tuple[str, list[str]]:
        """An expression for calls, and its rules; values are JSON's, required arguments come first."""
        del marks
        calls: list[str] = []
        rules: list[str] = []
        for number, (name, schema) in enumerate(functions.items()):
            first: list[str] = []
            later: list[str] = []
            for place, (key, about) in enumerate(properties(schema).items()):
                rule, value = f"argument_{number}_{place}", prepared(with_definitions(about, schema))
                rules.append(f"{rule}: {quoted(f'{key}=')} %json {json.dumps(value)}")
                (first if key in required(schema) else later).append(rule)
            calls.append(f"{quoted(f'{name}(')} {_listed(first, later)} {quoted(')')}")
        rules.append(f"call: {' | '.join(calls)}")
        more = '(", " call)*' if several else ""
        return f'"[" call {more} "]"', rules


def _listed(first: list[str], later: list[str]) -> str:
    """All of the first and any of the second, with commas between them, in Lark's syntax."""
    more = [f'(", " {rule})?' for rule in later]
    if first:
        return " ".join([' ", " '.join(first), *more])
    ways = [" ".join([rule, *more[place + 1 :]]) for place, rule in enumerate(later)]
    return f"({' | '.join(ways)})?" if ways else ""


class PythonCallReader(CallParser):
    """Parses one answer's text, piece by piece."""

    def __init__(self, form: PythonCalls, functions: Functions, *, several: bool = True) -> None:
        super().__init__(functions, several=several)
        self._form = form
        self._go_on = self._first

    @property
    def _openings(self) -> tuple[str, ...]:
        return ()  # words that have begun go on to the end

    def _first(self, parts: MessageParts) -> bool:
        bare = self._text.lstrip()
        mark = self._form.wrap[0]
        if not self._last and (not bare or (bare != mark and mark.startswith(bare))):
            return False
        rest = bare.removeprefix(mark).lstrip()
        if not rest and not self._last:
            return False
        return self._candidate(rest[1:], parts) if rest.startswith("[") else self._is_content(parts, bare)

    def _next(self, parts: MessageParts) -> bool:
        """State after a call."""
        bare = self._text.lstrip()
        if not bare:
            return False
        if not bare.startswith(","):
            self._text, self._go_on = bare.removeprefix("]"), self._after
            return True
        return self._candidate(bare[1:], parts)

    def _candidate(self, text: str, parts: MessageParts) -> bool:
        """Where a call of the list may begin."""
        bare = text.lstrip()
        begin = _BEGIN.match(bare)
        end = None if begin is None else _end(bare, begin.end())
        if not self._last and (
            (begin is None and _MAYBE.fullmatch(bare)) or (begin is not None and end is None)
        ):
            return False
        call = None if end is None else _read(bare[:end])
        if call is None or call[0] not in self._functions:
            return self._is_content(parts, bare)
        self._call(parts, *call)
        self._text, self._go_on = bare[end:], self._next
        return True

    def _after(self, parts: MessageParts) -> bool:
        """State after the list."""
        del parts
        bare, mark = self._text.lstrip(), self._form.wrap[1]
        if not bare or (bare != mark and mark.startswith(bare)):
            return False
        self._text = bare[len(mark) :] if bare.startswith(mark) else self._text
        self._go_on = self._words
        return True


def _end(text: str, begin: int) -> int | None:
    """The index after the parenthesis that closes the one before `begin`; None: not reached."""
    depth, quote, escaped = 1, "", False
    for at in range(begin, len(text)):
        char = text[at]
        if quote:
            quote = "" if char == quote and not escaped else quote
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return at + 1
    return None


def _read(text: str) -> tuple[str, str] | None:
    """A call's name and arguments; None if it isn't one with literals by name."""
    name, _, rest = text.partition("(")
    one_line = _QUOTED.sub(lambda found: found[0].replace("\n", r"\n"), rest)
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python doesn't know
            call = ast.parse(f"f({one_line}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            return None
        arguments = {each.arg or "": _value(each.value) for each in call.keywords}
        return None if "" in arguments else (name, json_text(arguments))
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    if node is None:  # ** in a dictionary
        raise ValueError
    value = ast.literal_eval(node)
    json.dumps(value, allow_nan=False)  # no set, no bytes
    return value
