"""Function calls in a target's answers: three formats, one reader, one grammar.

    hermes        text  <tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>\\n<tool_call>...
    llama3_json   {"name": "f", "parameters": {...}}; {...}                       nothing before it
    mistral       text  [TOOL_CALLS] [{"name": "f", "arguments": {...}}, {...}]
                  text  [TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]...                   since Mistral Small 3.2

Text that isn't a call of an offered function stays content, unchanged. A call is reported as soon as its name is
known; its arguments are streamed.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fledge.engine.json_schema import prepared
from fledge.engine.stops import overlap
from fledge.server.message import Call, MessageParts

_ID_LENGTH = 9  # required by Mistral's templates; others accept any
# A call's beginning, with its keys in the templates' order; in another order it is parsed once the object is complete.
_HEAD = re.compile(r'\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
# The same in Mistral's newer format; Small 3.2 writes an id after the name.
_NAMED_HEAD = re.compile(r"([^\s\[{]+)(?:\[CALL_ID\]\w*)?\[ARGS\]\s*(?=\{)")


@dataclass(frozen=True)
class CallForm:
    """The format of a target's calls."""

    open: str  # "": a call begins the answer
    close: str
    key: str  # key of the arguments
    # In Lark's syntax, the text around and between calls; OPEN and CLOSE are the two above.
    before: str
    between: str
    after: str
    args: str = ""  # if the tokenizer has this token, a call is: opening, name, this token, arguments


CALL_FORMS = {
    "hermes": CallForm(
        "<tool_call>", "</tool_call>", "arguments", r'OPEN "\n"', r'"\n" CLOSE "\n" OPEN "\n"', r'"\n" CLOSE'
    ),
    "llama3_json": CallForm("", "", "parameters", "", '"; "', ""),
    "mistral": CallForm("[TOOL_CALLS]", "", "arguments", r"OPEN / ?\[/", '", "', '"]"', "[ARGS]"),
}


class CallReader:
    """Parses one answer's text, piece by piece."""

    def __init__(self, form: CallForm, names: Collection[str], *, several: bool = True) -> None:
        """`names`: the offered functions. Without `several` only the first call is reported."""
        self._form = form
        self._names = names
        self._several = several
        self.calls = 0  # so far
        self.whole = False  # the text is a complete answer
        self.ended = False  # which ended by itself
        self._text = ""  # not processed yet
        self._last = False
        self._silent = False  # since a call
        self._at = 0  # where another call may begin in the text
        self._object = JsonObject()
        self._go_on: Callable[[MessageParts], bool] = self._words if form.open else self._first
        self._behind_arguments = self._rest

    def add(self, text: str, parts: MessageParts, *, last: bool) -> None:
        """Parse more text; add final parts to `parts`. `last`: no more text will follow."""
        self._text += text
        self._last = last
        while self._go_on(parts):
            pass

    # The states. Each parses from the beginning of the text, and returns True if the next state can process the rest.

    def _words(self, parts: MessageParts) -> bool:
        """Content, up to the next opening."""
        mark, text = self._form.open, self._text
        at = text.find(mark) if mark else -1
        if at >= 0:
            self._emit(parts, len(text[:at].rstrip()))
            self._go_on = self._first
            return True
        if not self._last:  # white space may precede a call
            self._emit(parts, len(text[: len(text) - overlap(text, mark)].rstrip()))
        elif not (self._silent and text.isspace()):
            self._emit(parts, len(text))
        return False

    def _first(self, parts: MessageParts) -> bool:
        """After an opening."""
        bare = self._text.lstrip().removeprefix(self._form.open).lstrip()
        return self._candidate(bare.removeprefix("[").lstrip(), parts)

    def _next(self, parts: MessageParts) -> bool:
        """After a call, where another seems to begin."""
        return self._candidate(self._text[self._at :], parts)

    def _candidate(self, bare: str, parts: MessageParts) -> bool:
        """The end of the text, which is a call or looks like one."""
        if not bare and not self._last:
            return False
        head = _HEAD.match(bare)
        if head is None and self._form.args and not bare.startswith("{"):
            if "{" not in bare and not self._last:
                return False
            head = _NAMED_HEAD.match(bare)
        if head is not None and head[1] in self._names and self._readable(bare[head.end() :]):
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
        self._emit(parts, len(self._text) - len(bare))
        self._begin(self._text, self._words)
        return True

    def _arguments(self, parts: MessageParts) -> bool:
        """The arguments of a call whose name has been reported."""
        end = self._object.end(self._text)
        self._pass_on(parts, self._object.take())
        if end is not None:
            self._begin(self._text[end:], self._behind_arguments, depth=1)
        return end is not None

    def _rest(self, parts: MessageParts) -> bool:
        """After the arguments, inside the call's object: its brace, or keys that a message has no field for."""
        bare = self._text.lstrip()
        if not bare:
            return False
        end = self._object.end(self._text) if bare[0] in ",}" else 0  # some targets forget the brace
        if end is not None:
            self._begin(self._text[end:], self._between)
        return end is not None

    def _between(self, parts: MessageParts) -> bool:
        """After a call."""
        bare, close = self._text.lstrip(), self._form.close
        sign = bare[:1] if bare.startswith((",", ";", "]")) else ""
        rest = bare.removeprefix(sign).lstrip()
        if not rest or (rest != close and close.startswith(rest)):
            return False  # if the answer ends here, this was part of the format
        if rest.startswith("{") and sign != "]":
            self._at, self._go_on = len(self._text) - len(rest), self._next
            return True
        if close and rest.startswith(close):
            self._text = rest[len(close) :]
        elif sign == "]":
            self._text = bare[1:]
        self._go_on = self._words
        return True

    def _emit(self, parts: MessageParts, length: int) -> None:
        parts.content += self._text[:length]
        self._text = self._text[length:]
        self._silent = self._silent and not length

    def _begin(self, text: str, what: Callable[[MessageParts], bool], *, depth: int = 0) -> None:
        self._text, self._go_on, self._object = text, what, JsonObject(depth)

    def _call(self, parts: MessageParts, name: str, arguments: str = "") -> None:
        self.calls += 1
        self._silent = True
        if self._several or self.calls == 1:
            parts.calls[self.calls - 1] = Call(new_call_id(), name, arguments)

    def _pass_on(self, parts: MessageParts, arguments: str) -> None:
        if arguments and (self._several or self.calls == 1):
            parts.calls.setdefault(self.calls - 1, Call()).arguments += arguments

    def _read(self, text: str) -> tuple[str, str] | None:
        """Name and arguments of a complete call; None if it isn't one."""
        try:
            call = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return None
        arguments = call.get("arguments", call.get("parameters"))
        offered = isinstance(call.get("name"), str) and call["name"] in self._names
        if not offered or not isinstance(arguments, dict):
            return None
        return call["name"], _json(arguments)

    def _readable(self, text: str) -> bool:
        """Whether arguments that begin here may be passed on; in a stream, nobody knows yet."""
        if not self.whole:
            return True
        arguments = JsonObject()
        if arguments.end(text) is None:
            return not self.ended
        return is_object(arguments.take())


def new_call_id() -> str:
    """A fresh id of a call."""
    return uuid.uuid4().hex[:_ID_LENGTH]


def is_object(text: str) -> bool:
    """Whether this is the text of a JSON object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    # Half of a surrogate pair, which JSON can name but no text can hold, stays escaped.
    return text if text.isascii() or text.encode(errors="replace").decode() == text else json.dumps(value)


class JsonObject:
    """Finds the end of a JSON object in a growing text, whose raw control characters it escapes."""

    def __init__(self, depth: int = 0) -> None:
        self.seen = 0  # characters of the text
        self._depth = depth
        self._quoted = self._escaped = False
        self._valid: list[str] = []

    def valid(self, text: str) -> str:
        """More of the object's text as JSON has to have it."""
        self.seen = 0
        while self.seen < len(text):
            self.end(text)
        return self.take()

    def take(self) -> str:
        """What has been seen since the last call."""
        text, self._valid = "".join(self._valid), []
        return text

    def end(self, text: str) -> int | None:
        """The index after its last brace; None: not reached yet."""
        for sign in text[self.seen :]:
            self.seen += 1
            self._valid.append(json.dumps(sign)[1:-1] if self._quoted and sign < " " else sign)
            if self._escaped:
                self._escaped = False
            elif sign == "\\":
                self._escaped = self._quoted
            elif sign == '"':
                self._quoted = not self._quoted
            elif not self._quoted and sign in "{}[]":
                self._depth += 1 if sign in "{[" else -1
                if self._depth <= 0:
                    return self.seen
        return None


def grammar(
    form: CallForm,
    functions: Mapping[str, Mapping[str, Any]],
    *,
    several: bool,
    marks: Mapping[str, int],
    answer: Mapping[str, Any] | None = None,
) -> str:
    """A grammar in Lark's syntax for an answer that consists of calls only.

    Args:
        form: the format of the target's calls.
        functions: the JSON schema of each function's arguments, by the function's name.
        several: whether there may be more than one call.
        marks: ids of the tokenizer's added tokens; other marks are spelled out.
        answer: the JSON schema of an answer allowed instead of calls.
    """

    def sign(text: str) -> str:
        return mark(marks, text)

    def signs(lark: str) -> str:
        return lark.replace("OPEN", sign(form.open)).replace("CLOSE", sign(form.close))

    before, between, after = signs(form.before), signs(form.between), signs(form.after)
    has_args_token = form.args in marks
    if has_args_token:
        before, between, after = sign(form.open), sign(form.open), ""
    calls, rules = [], []
    for number, (name, schema) in enumerate(functions.items()):
        arguments = f"arguments_{number}"
        if has_args_token:
            calls.append(f"{_quoted(name)} {sign(form.args)} {arguments}")
        else:
            head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{form.key}": '
            calls.append(f'{_quoted(head)} {arguments} "}}"')
        rules.append(f"{arguments}: %json {json.dumps(prepared({**schema, 'type': 'object'}))}")
    start = f"start: {before} call {f'({between} call)*' if several else ''} {after}"
    if answer is not None:
        start += " | answer"
        rules.append(f"answer: %json {json.dumps(prepared(answer))}")
    return "\n".join([start, f"call: {' | '.join(calls)}", *rules])


def mark(tokens: Mapping[str, int], text: str) -> str:
    """A mark in Lark's syntax; `tokens`: as `marks` of `grammar`."""
    return f"<[{tokens[text]}]>" if text in tokens else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
