"""gpt-oss's answers: messages in channels, as its harmony format has them (https://github.com/openai/harmony).

<|channel|>analysis<|message|>The user wants a sum.<|end|><|start|>assistant<|channel|>final<|message|>Four.
reasoning: The user wants a sum.                    content: Four.

<|channel|>commentary to=functions.look <|constrain|>json<|message|>{"place": "sea"}
call: look, {"place": "sea"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from fledge.engine.json_schema import prepared
from fledge.engine.stops import overlap
from fledge.server.call_parser import AnswerParser, Functions, parsed_object
from fledge.server.message import MessageParts
from fledge.server.tool_calls import JsonObject

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
FINAL = f"{CHANNEL}final{MESSAGE}"  # precedes an answer's content
_ENDS = ("<|end|>", "<|return|>", "<|call|>", START)  # of a message's text
_CHANNEL_NAME = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=functions\.([^\s<]+)")
_BETWEEN = "\n\n"  # two messages of the same kind


class ChannelParser(AnswerParser):
    """Parses one answer's text, all of which is in messages."""

    def __init__(self, functions: Functions, *, several: bool = True, final: bool = False) -> None:
        """`final`: the prompt has opened the final channel."""
        super().__init__(functions, several=several)
        self._begun = False  # the answer has a message
        self._object = JsonObject()
        self._kind: Literal["content", "reasoning", "call"] = "content"  # of the message
        self._said = {"content": False, "reasoning": False}
        self._separate = False  # something of this kind came before
        self._go_on = self._body if final else self._header

    def _header(self, parts: MessageParts) -> bool:
        """State before a message: its role, channel and recipient."""
        head, found, rest = self._text.partition(MESSAGE)
        if not found:
            bare = head.lstrip()
            plain = bare and not any(bare.startswith(sign[: len(bare)]) for sign in (CHANNEL, START, "to="))
            cut = any(sign in bare for sign in (CHANNEL, START, "to="))
            if not self._begun and (plain or (self._last and bare and not cut)):  # an answer without channels
                self._go_on = self._body
                return True
            return False
        self._begun = True
        channel = _CHANNEL_NAME.search(head)
        recipient = _RECIPIENT.search(head)
        self._text, self._go_on = rest, self._body
        self._kind = "reasoning" if channel is not None and channel[1] == "analysis" else "content"
        if recipient is not None and recipient[1] in self._functions and self._is_call(rest):
            self._kind, self._object = "call", JsonObject()
            self._call(parts, recipient[1])
        else:
            self._separate = self._said[self._kind]
        return True

    def _body(self, parts: MessageParts) -> bool:
        """A message's text, up to its end."""
        at, mark = _end(self._text)
        if at < 0:
            held = 0 if self._last else max(overlap(self._text, mark) for mark in _ENDS)
            at = len(self._text) - held
        self._emit(parts, self._text[:at])
        self._text = self._text[at:].removeprefix(mark) if mark else self._text[at:]
        if mark:
            self._begun, self._go_on = True, self._header
        return bool(mark)

    def _emit(self, parts: MessageParts, text: str) -> None:
        if self._kind == "call":
            self._pass_on(parts, self._object.valid(text))
        elif text:
            text = _BETWEEN * self._separate + text
            self._separate, self._said[self._kind] = False, True
            parts.add(self._kind, text)

    def _is_call(self, rest: str) -> bool:
        if not self.whole:
            return True
        at, mark = _end(rest)
        if not mark and not self.ended:
            return True
        return parsed_object(JsonObject().valid(rest[:at] if mark else rest)) is not None


def _end(text: str) -> tuple[int, str]:
    """Where a message's text ends, and the mark there; (-1, "") if it doesn't yet."""
    return min(((at, mark) for mark in _ENDS if (at := text.find(mark)) >= 0), default=(-1, ""))


def grammar(
    functions: Mapping[str, Mapping[str, Any]], sign: Callable[[str], str], answer: Mapping[str, Any] | None
) -> str:
    """A grammar in Lark's syntax for an answer that is one call, or JSON of the schema `answer`.

    Args:
        functions: the JSON schema of each function's arguments, by the function's name.
        sign: a special token in Lark's syntax.
        answer: None: calls only.
    """
    calls, rules = [], []
    for number, (name, schema) in enumerate(functions.items()):
        head = json.dumps(f"commentary to=functions.{name} ", ensure_ascii=False)
        calls.append(f'{sign(CHANNEL)} {head} {sign(CONSTRAIN)} "json" {sign(MESSAGE)} arguments_{number}')
        rules.append(f"arguments_{number}: %json {json.dumps(prepared({**schema, 'type': 'object'}))}")
    if answer is not None:
        calls.append(f'{sign(CHANNEL)} "final" {sign(MESSAGE)} answer')
        rules.append(f"answer: %json {json.dumps(prepared(answer))}")
    return "\n".join([f"start: {' | '.join(calls)}", *rules])
