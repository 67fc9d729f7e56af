"""Function calls whose arguments are written one by one between tags, texts without quotes.

    qwen3_coder   text  <tool_call>\\n<function=f>\\n<parameter=place>\\nsea\\n</parameter>\\n</function>\\n</tool_call>
    glm45         text  <tool_call>f\\n<arg_key>place</arg_key>\\n<arg_value>sea</arg_value>\\n</tool_call>

What type an argument has is said by the function's schema. A text is streamed, another argument comes when it is
complete. A value that doesn't fit its type is passed on as text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fledge.engine.json_schema import prepared
from fledge.engine.stops import overlap
from fledge.server.argument_types import properties, required, texts_of, type_of, types_of, with_definitions
from fledge.server.call_parser import CallParser, Functions, json_text, pattern, quoted, sign
from fledge.server.message import MessageParts

_NAME = re.compile(r"[^\s<>\"=]+")


@dataclass(frozen=True)
class TaggedCalls:
    """A format of calls with tagged arguments."""

    open: str
    close: str
    head: tuple[str, str]  # around the function's name
    key: tuple[str, str]  # around an argument's name; white space may stand within the second
    end: str  # of an argument
    tail: str  # of the function, before `close`; "": none
    line: str = "\n"  # around an argument's value

    @property
    def marks(self) -> frozenset[str]:
        """Marks that may be special tokens."""
        return frozenset(filter(None, (self.open, self.close, self.end, self.tail, *self.head, *self.key)))

    def reader(self, functions: Functions, *, several: bool = True) -> TaggedCallReader:
        """The reader of one answer."""
        return TaggedCallReader(self, functions, several=several)

    def grammar(
        self, functions: Functions, *, several: bool, marks: Mapping[str, int]
    ) -> tuple[str, list[str]]:
        """An expression for calls, and its rules. Arguments stand in the schema's order; texts follow enums only."""
        calls: list[str] = []
        rules: list[str] = []
        for number, (name, schema) in enumerate(functions.items()):
            written = []
            for place, (key, about) in enumerate(properties(schema).items()):
                rule = f"argument_{number}_{place}"
                opening = quoted(f"{self.key[0]}{key}{self.key[1]}{self.line}")
                rules.append(f"{rule}: {opening} {self._value(rule, about, schema, rules)}")
                written.append(rule if key in required(schema) else f"({rule})?")
            head, tail = f"{self.head[0]}{name}{self.head[1]}\n", f"{self.tail}\n" if self.tail else ""
            head = f"\n{head}" if self.head[0] else head
            calls.append(f"{quoted(head)} {' '.join(written)} {quoted(tail)}")
        rules.append(f"call: {' | '.join(calls)}")
        one = f"{sign(marks, self.open)} call {sign(marks, self.close)}"
        return (f'{one} ("\\n" {one})*' if several else one), rules

    def _value(self, rule: str, about: Any, schema: Mapping[str, Any], rules: list[str]) -> str:
        """The rest of an argument, in Lark's syntax."""
        end = f"{self.line}{self.end}\n"
        texts = texts_of(about, schema)
        if texts:
            return f"({' | '.join(map(quoted, texts))}) {quoted(end)}"
        if types_of(about, schema) == {"string"}:  # up to the first end
            rules.append(f"{rule}_text[lazy]: /(?s:.*){pattern(end)}/")
            return f"{rule}_text"
        return f"%json {json.dumps(prepared(with_definitions(about, schema)))} {quoted(end)}"


class TaggedCallReader(CallParser):
    """Parses one answer's text, piece by piece."""

    def __init__(self, form: TaggedCalls, functions: Functions, *, several: bool = True) -> None:
        super().__init__(functions, several=several)
        self._form = form
        self._schema: Mapping[str, Any] = {}  # of the arguments of the call that is read
        self._arguments = 0  # of that call, so far
        self._types: set[str] = set()  # of the argument that is read
        self._begun = False  # its text

    @property
    def _openings(self) -> tuple[str, ...]:
        # Qwen3-Coder leaves out the first tag at times.
        return (self._form.open, *filter(None, self._form.head[:1]))

    def _first(self, parts: MessageParts) -> bool:
        before, after = self._form.head
        bare = self._text.lstrip().removeprefix(self._form.open).lstrip()
        if not self._last and (not bare or (bare != before and before.startswith(bare))):
            return False
        name = _NAME.match(bare, len(before)) if bare.startswith(before) else None
        rest = bare[name.end() :] if name is not None else bare[len(before) :]
        if not self._last and (not rest or (rest != after and after.startswith(rest))):
            return False
        if (
            name is None
            or name[0] not in self._functions
            or not rest.startswith(after)
            or not self._complete(rest)
        ):
            return self._is_content(parts, bare.removeprefix(before))
        self._call(parts, name[0], "{")
        self._schema, self._arguments = self._functions[name[0]], 0
        return self._then(rest[len(after) :], self._next_argument)

    def _next_argument(self, parts: MessageParts) -> bool:
        """Between two arguments, or after the last."""
        form, bare = self._form, self._text.lstrip()
        opens, closes = form.key
        if bare.startswith(opens):
            end = re.search(r"\s*".join(map(re.escape, closes.split())), bare)
            if end is None:
                return False
            key, rest = bare[len(opens) : end.start()].strip(), bare[end.end() :]
            self._types = types_of(properties(self._schema).get(key), self._schema)
            comma = ", " if self._arguments else ""
            self._pass_on(parts, f"{comma}{json_text(key)}: ")
            self._arguments += 1
            self._begun = False
            return self._then(
                rest, self._text_argument if self._types == {"string"} else self._other_argument
            )
        if not bare or any(bare != mark and mark.startswith(bare) for mark in (opens, form.tail, form.close)):
            return False
        self._pass_on(parts, "}")
        return self._then(bare.removeprefix(form.tail), self._after)

    def _text_argument(self, parts: MessageParts) -> bool:
        """A text, of which one line break at either end belongs to the format."""
        form = self._form
        if not self._begun:
            if not self._text and not self._last:
                return False
            self._begun, self._text = True, self._text.removeprefix(form.line)
            self._pass_on(parts, '"')
        value, found, rest = self._text.partition(form.end)
        if found:
            self._pass_on(parts, json_text(value.removesuffix(form.line))[1:-1] + '"')
            return self._then(rest, self._next_argument)
        held = max(overlap(self._text, form.line + form.end), overlap(self._text, form.end))
        shown = self._text[: len(self._text) - held]
        self._pass_on(parts, json_text(shown)[1:-1])
        self._text = self._text[len(shown) :]
        return False

    def _other_argument(self, parts: MessageParts) -> bool:
        """A number, a list ...: passed on when it is complete."""
        value, found, rest = self._text.partition(self._form.end)
        if not found:
            return False
        self._pass_on(parts, _as_json(value.strip(), self._types))
        return self._then(rest, self._next_argument)

    def _after(self, parts: MessageParts) -> bool:
        """State after a call."""
        del parts
        bare, close = self._text.lstrip(), self._form.close
        if not bare or (bare != close and close.startswith(bare)):
            return False
        return self._then(bare[len(close) :] if bare.startswith(close) else self._text, self._words)

    def _then(self, text: str, state: Callable[[MessageParts], bool]) -> bool:
        self._text, self._go_on = text, state
        return True

    def _complete(self, rest: str) -> bool:
        """True if a call that continues with `rest` may be passed on; always in a stream, where it isn't known yet."""
        return not (self.whole and self.ended) or (self._form.tail or self._form.close) in rest


def _as_json(text: str, types: set[str]) -> str:
    """An argument that isn't known to be a text, as JSON of one of its types, else as a text."""
    for read in (json.loads, ast.literal_eval):  # some templates write Python's True and None
        try:
            value = read(text)
            written = json.dumps(value, allow_nan=False)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        fits = type_of(value) in types or (type_of(value) == "integer" and "number" in types)
        if not types or (fits and not isinstance(value, str)):
            return text if read is json.loads else written
    return json_text(text)
