"""Function calls whose arguments are written as a JSON object.

    hermes        text  <tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>\\n<tool_call>...
    llama3_json   {"name": "f", "parameters": {...}}; {...}                       nothing before it
    mistral       text  [TOOL_CALLS] [{"name": "f", "arguments": {...}}, {...}]
                  text  [TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]...                   since Mistral Small 3.2
    deepseek_v31  text  BEGIN f SEP {...} END BEGIN ...                           with tokens in place of the words

A call is reported as soon as its name is known; its arguments are streamed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fledge.engine.json_schema import prepared
from fledge.server.call_parser import CallParser, Functions, json_text, parsed_object, quoted, sign
from fledge.server.message import MessageParts

# A call's beginning, with its keys in the templates' order; in another order it is parsed once the object is complete.
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_WORD = re.compile(r"\b[A-Z]{3,}\b")


@dataclass(frozen=True)
class JsonCalls:
    """A format of calls with JSON arguments, where nothing else is said with the function's name in the object."""

    open: str  # "": a call begins the answer
    close: str = ""
    key: str = "arguments"  # of the arguments
    # Beginning of a call that isn't an object of name and arguments, up to its arguments; captures the name.
    head: re.Pattern[str] | None = None
    each: str = ""  # begins every call, where `open` begins the first only
    after: tuple[str, ...] = ()  # what may follow a call's arguments, besides `close`
    # In Lark's syntax, the text before the first call, between two, and after the last; and such a call.
    # Of the words, NAME is the function's name, ARGUMENTS are its arguments, and the others are in `signs`.
    lark: tuple[str, str, str, str] = ("", '"; "', "", "")
    signs: Mapping[str, str] = field(default_factory=dict)
    named_lark: tuple[str, str, str, str] | None = None  # if the tokenizer has all of `signs`

    @property
    def marks(self) -> frozenset[str]:
        """Marks that may be special tokens."""
        return frozenset(filter(None, (self.open, self.close, self.each, *self.after, *self.signs.values())))

    def reader(self, functions: Functions, *, several: bool = True) -> JsonCallReader:
        """The reader of one answer."""
        return JsonCallReader(self, functions, several=several)

    def grammar(
        self, functions: Functions, *, several: bool, marks: Mapping[str, int]
    ) -> tuple[str, list[str]]:
        """An expression for calls, and its rules."""
        named = self.named_lark is not None and all(mark in marks for mark in self.signs.values())
        before, between, after, call = self.named_lark if named and self.named_lark else self.lark
        table = {word: sign(marks, mark) for word, mark in self.signs.items()}
        calls, rules = [], []
        for number, (name, schema) in enumerate(functions.items()):
            words = {**table, "NAME": quoted(name), "ARGUMENTS": f"arguments_{number}"}
            head = quoted(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{self.key}": ')
            calls.append(_filled(call, words) if call else f'{head} arguments_{number} "}}"')
            rules.append(f"arguments_{number}: %json {json.dumps(prepared({**schema, 'type': 'object'}))}")
        more = f"({_filled(between, table)} call)*" if several else ""
        rules.append(f"call: {' | '.join(calls)}")
        return f"{_filled(before, table)} call {more} {_filled(after, table)}", rules


def _filled(lark: str, words: Mapping[str, str]) -> str:
    return _WORD.sub(lambda found: words[found[0]], lark)


class JsonCallReader(CallParser):
    """Parses one answer's text, piece by piece."""

    def __init__(self, form: JsonCalls, functions: Functions, *, several: bool = True) -> None:
        super().__init__(functions, several=several)
        self._form = form
        self._at = 0  # where another call may begin in the text
        self._object = JsonObject()
        self._behind_arguments = self._rest
        if not form.open:
            self._go_on = self._first

    @property
    def _openings(self) -> tuple[str, ...]:
        return (self._form.open,) if self._form.open else ()

    def _first(self, parts: MessageParts) -> bool:
        """State after an opening."""
        bare = self._text.lstrip().removeprefix(self._form.open).lstrip()
        return self._candidate(bare.removeprefix("[").lstrip(), parts)

    def _next(self, parts: MessageParts) -> bool:
        """State after a call, where another seems to begin."""
        return self._candidate(self._text[self._at :], parts)

    def _candidate(self, bare: str, parts: MessageParts) -> bool:
        """The end of the text, which is a call or looks like one."""
        if not bare and not self._last:
            return False
        head = _HEAD.match(bare)
        if head is None and self._form.head is not None and not bare.startswith("{"):
            if "{" not in bare and not self._last:
                return False
            head = self._form.head.match(bare)
        if head is not None and head[1] in self._functions and self._readable(bare[head.end() :]):
            self._call(parts, head[1])
            self._behind_arguments = self._rest if bare.startswith("{") else self._between
            self._begin(bare[head.end() :], self._arguments)
            return True
        if head is None and bare.startswith("{"):
            end = self._object.end(bare)
            if end is None and not self._last:
                return False
            call = None if end is None else self._read(bare[:end])
            if call is not None:
                self._call(parts, *call)
                self._begin(bare[end:], self._between)
                return True
        self._object = JsonObject()
        return self._is_content(parts, bare)

    def _arguments(self, parts: MessageParts) -> bool:
        """The arguments of a call whose name has been reported."""
        end = self._object.end(self._text)
        self._pass_on(parts, self._object.take())
        if end is not None:
            self._begin(self._text[end:], self._behind_arguments, depth=1)
        return end is not None

    def _rest(self, parts: MessageParts) -> bool:
        """State after the arguments, inside the call's object: its brace, or keys that a message has no field for."""
        bare = self._text.lstrip()
        if not bare:
            return False
        end = self._object.end(self._text) if bare[0] in ",}" else 0  # some targets forget the brace
        if end is not None:
            self._begin(self._text[end:], self._between)
        return end is not None

    def _between(self, parts: MessageParts) -> bool:
        """State after a call."""
        bare, close = self._text.lstrip(), self._form.close
        punctuation = bare[:1] if bare.startswith((",", ";", "]")) else ""
        rest = bare.removeprefix(punctuation).lstrip()
        form_marks = (*self._form.after, self._form.each, close)
        if not rest or any(rest != mark and mark.startswith(rest) for mark in form_marks):
            return False  # if the answer ends here, this was part of the format
        for mark in self._form.after:
            if bare.startswith(mark):
                self._text = bare[len(mark) :]
                return True
        begins = rest.startswith(self._form.each) if self._form.each else rest.startswith("{")
        if begins and punctuation != "]":
            self._at, self._go_on = len(self._text) - len(rest), self._next
            return True
        if close and rest.startswith(close):
            self._text = rest[len(close) :]
        elif punctuation == "]":
            self._text = bare[1:]
        self._go_on = self._words
        return True

    def _begin(self, text: str, what: Callable[[MessageParts], bool], *, depth: int = 0) -> None:
        self._text, self._go_on, self._object = text, what, JsonObject(depth)

    def _read(self, text: str) -> tuple[str, str] | None:
        """Name and arguments of a complete call; None if it isn't one."""
        call = parsed_object(JsonObject().valid(text))
        if call is None:
            return None
        arguments = call.get("arguments", call.get("parameters"))
        offered = isinstance(call.get("name"), str) and call["name"] in self._functions
        if not offered or not isinstance(arguments, dict):
            return None
        return call["name"], json_text(arguments)

    def _readable(self, text: str) -> bool:
        """True if arguments that begin here may be passed on; always in a stream, where it isn't known yet."""
        if not self.whole:
            return True
        arguments = JsonObject()
        if arguments.end(text) is None:
            return not self.ended
        return parsed_object(arguments.take()) is not None


class JsonObject:
    """Finds the end of a JSON object in a growing text, whose raw control characters it escapes."""

    def __init__(self, depth: int = 0) -> None:
        self.seen = 0  # characters of the text
        self._depth = depth
        self._quoted = self._escaped = False
        self._valid: list[str] = []

    def valid(self, text: str) -> str:
        """Next part of the object's text, as valid JSON."""
        self.seen = 0
        while self.seen < len(text):
            self.end(text)
        return self.take()

    def take(self) -> str:
        """Take the text seen since the last call."""
        text, self._valid = "".join(self._valid), []
        return text

    def end(self, text: str) -> int | None:
        """The index after its last brace; None: not reached yet."""
        for char in text[self.seen :]:
            self.seen += 1
            self._valid.append(json.dumps(char)[1:-1] if self._quoted and char < " " else char)
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = self._quoted
            elif char == '"':
                self._quoted = not self._quoted
            elif not self._quoted and char in "{}[]":
                self._depth += 1 if char in "{[" else -1
                if self._depth <= 0:
                    return self.seen
        return None
