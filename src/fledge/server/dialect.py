"""Conversion of a target's answers to messages: the format of its calls, and whether it reasons first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto
from functools import cached_property, partial
from typing import Any

from fledge.base.errors import TargetError
from fledge.server import errors, harmony
from fledge.server.answer_forms import usable
from fledge.server.call_forms import CALL_FORMS, grammar
from fledge.server.call_parser import CallForm, Functions, sign
from fledge.server.conversation import NamedTool
from fledge.server.form_grammar import after_thinking, lark_of
from fledge.server.protocol import ChatRequest, CompletionRequest
from fledge.server.reader import REASONING_PARSERS, THINK, THOUGHT, Reader, Thoughts
from fledge.target import Target

_QUESTION = {"role": "user", "content": "Hello"}
_FUNCTION = "example_function"
_ARGUMENTS = {"type": "object", "properties": {"number": {"type": "integer"}}}
_TOOL = {"type": "function", "function": {"name": _FUNCTION, "description": "", "parameters": _ARGUMENTS}}
_CALL = {
    "id": "123456789",
    "type": "function",
    "function": {"name": _FUNCTION, "arguments": {"number": 1}},
}
# Some templates, like SmolLM3's, say how to write a call but drop those of earlier turns.
_HERMES_SHOWN = re.compile(r'<tool_call>\s*\[?\s*\{"name"')
_LAST_IDS = 16  # last tokens of a prompt searched for reasoning tags: longer than a tag with white space


class Thinking(Enum):
    """Ways an answer can begin."""

    NONE = auto()  # without reasoning
    POSSIBLE = auto()  # with the tag that opens it, or without reasoning
    BEGUN = auto()  # with reasoning, whose tag may stand in the prompt


class Dialect:
    """The dialect of one target."""

    def __init__(self, target: Target, tool_call_parser: str, reasoning_parser: str | None) -> None:
        """The parsers are named as in `ServerOptions`."""
        self._target = target
        self._parser = tool_call_parser
        self._reasons = reasoning_parser is not None
        self._reasons_first = reasoning_parser is not None and REASONING_PARSERS[reasoning_parser]
        added = target.tokenizer.added_tokens_decoder
        self._tokens = {str(token): int(token_id) for token_id, token in added.items()}
        self._special = {str(token) for token in added.values() if token.special}

    def reader(self, body: ChatRequest, prompt_ids: Sequence[int]) -> Reader | None:
        """The reader of one answer to `body`; None: all of it is content."""
        several = body.parallel_tool_calls is not False
        if self._has_channels:
            final = bool(self.opening(body)) or bool(body.continue_final_message)
            return Reader(None, harmony.ChannelParser(_functions(body), several=several, final=final))
        start = self._thinking(body, prompt_ids)
        thoughts = None if start is Thinking.NONE else Thoughts(inside=start is Thinking.BEGUN)
        calls = self.call_form.reader(_functions(body), several=several) if body.offered else None
        return Reader(thoughts, calls) if thoughts or calls else None

    def form(self, body: ChatRequest, prompt_ids: Sequence[int]) -> dict[str, Any] | None:
        """The engine's structured_outputs: calls, the requested format, or either; None: a free answer.

        A target that reasons does so before it.
        """
        form = self._form_alone(body)
        if form is None or self._has_channels or body.bad_words:
            return form
        start = self._thinking(body, prompt_ids)
        if start is Thinking.NONE:
            return form
        special = {token: token_id for token, token_id in self._tokens.items() if token in self._special}
        return {"grammar": after_thinking(lark_of(form), special, begun=start is Thinking.BEGUN)}

    def _form_alone(self, body: ChatRequest) -> dict[str, Any] | None:
        if not body.offered or not (body.must_call or body.form):
            return body.form
        functions = _functions(body)
        if self._has_channels:
            return {"grammar": harmony.grammar(functions, partial(sign, self._tokens), body.answer_schema)}
        several = not isinstance(body.tool_choice, NamedTool) and body.parallel_tool_calls is not False
        lark = grammar(
            self.call_form,
            functions,
            several=several and not self._one_call_a_turn,
            marks=self._tokens,
            answer=body.answer_schema,
        )
        return {"grammar": lark}

    def skips_special(self, body: ChatRequest | CompletionRequest) -> bool:
        """True if special tokens are left out of the text; not if some of them mark reasoning or calls."""
        marks: set[str] = set()
        if isinstance(body, ChatRequest):
            if self._has_channels:
                return False
            if self._reasons:
                marks |= {THINK, THOUGHT}
            if body.offered:
                marks |= self.call_form.marks
        return body.skip_special_tokens is not False and not marks & self._special

    def opening(self, body: ChatRequest) -> list[int]:
        """Ids that open the answer after the chat template's own opening; an answer of a form has one channel."""
        if not self._has_channels or body.form is None or body.offered or body.continue_final_message:
            return []
        return list(self._target.tokenizer.encode(harmony.FINAL, add_special_tokens=False))

    @cached_property
    def _has_channels(self) -> bool:
        """True if the chat template writes answers in gpt-oss's channels."""
        try:
            reply = self._target.chat.render([_QUESTION, {"role": "assistant", "content": _FUNCTION}])
        except TargetError:
            return False
        return harmony.FINAL + _FUNCTION in reply

    @cached_property
    def call_form(self) -> CallForm:
        """The call format; an ApiError if it is neither configured nor recognisable in the chat template."""
        name = self._shown() if self._parser == "auto" else self._parser
        if name is None:
            raise errors.invalid(
                "the target's chat template shows no call format that this server supports; start it with "
                f"--tool-call-parser and the one the target uses: {', '.join(CALL_FORMS)}",
                "tools",
            )
        return CALL_FORMS[name]

    def _shown(self) -> str | None:
        """The format in which the chat template writes earlier calls, or which it instructs the target to use."""
        try:
            question = self._target.chat.render([_QUESTION], tools=[_TOOL], add_generation_prompt=True)
        except TargetError:
            return None
        reply = (self._after_calls(1) or "").removeprefix(question)
        offered = {_FUNCTION: _ARGUMENTS}
        for name, form in CALL_FORMS.items():
            parts = Reader(None, form.reader(offered)).add(reply, last=True)
            if [call.name for call in parts.calls.values()] == [_FUNCTION]:
                return name
        return "hermes" if _HERMES_SHOWN.search(question) else None

    @cached_property
    def _one_call_a_turn(self) -> bool:
        """True if the template rejects several calls in one message, as Llama 3.1's does.

        Then none are requested, since the client couldn't send them back.
        """
        return self._after_calls(2) is None

    def _after_calls(self, number: int) -> str | None:
        """A conversation that ends with `number` calls in one message; None if the template rejects it."""
        turn = {"role": "assistant", "content": "", "tool_calls": [_CALL] * number}
        try:
            return self._target.chat.render([_QUESTION, turn], tools=[_TOOL])
        except TargetError:
            return None

    def _thinking(self, body: ChatRequest, prompt_ids: Sequence[int]) -> Thinking:
        """The way the answer to this prompt begins."""
        if not self._reasons or (body.structured_outputs is not None and body.structured_outputs.grammar):
            return Thinking.NONE
        end = self._target.tokenizer.decode(list(prompt_ids[-_LAST_IDS:]), skip_special_tokens=False).rstrip()
        formed = not body.bad_words and (body.must_call or body.form is not None)
        if end.endswith(THINK):
            return Thinking.BEGUN
        if formed and (end.endswith(THOUGHT) or body.continue_final_message):
            return Thinking.NONE
        first = self._reasons_first and not end.endswith(THOUGHT) and not body.continue_final_message
        return Thinking.BEGUN if first else Thinking.POSSIBLE


def _functions(body: ChatRequest) -> Functions:
    return {tool.function.name: usable(tool.function.schema_of_arguments) for tool in body.offered}
