"""How a target's answers become messages: the format of its calls, and whether it reasons first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from fledge.base.errors import TargetError
from fledge.server import errors, harmony
from fledge.server.harmony import ChannelReader
from fledge.server.protocol import ChatRequest, CompletionRequest
from fledge.server.reader import REASONING_PARSERS, THINK, THOUGHT, Reader, Thoughts
from fledge.server.tool_calls import CALL_FORMS, CallForm, CallReader, grammar, mark
from fledge.target import Target

_QUESTION = {"role": "user", "content": "Hello"}
_FUNCTION = "example_function"
_TOOL = {
    "type": "function",
    "function": {
        "name": _FUNCTION,
        "description": "",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}},
    },
}
_CALL = {
    "id": "123456789",
    "type": "function",
    "function": {"name": _FUNCTION, "arguments": {"number": 1}},
}
# Some templates, like SmolLM3's, say how to write a call but drop those of earlier turns.
_HERMES_SHOWN = re.compile(r'<tool_call>\s*\[?\s*\{"name"')
_LAST_IDS = 16  # of a prompt: longer than reasoning tags and white space


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

    def reader(self, body: ChatRequest, prompt_ids: Sequence[int]) -> Reader | ChannelReader | None:
        """The reader of one answer to `body`; None: all of it is content."""
        if self._has_channels:
            final = bool(self.opening(body)) or bool(body.continue_final_message)
            names = {tool.function.name for tool in body.offered}
            return ChannelReader(names, several=body.parallel_tool_calls is not False, final=final)
        # Structured output leaves no room for reasoning.
        free = not body.must_call and (body.form is None or bool(body.bad_words))
        continues = bool(body.continue_final_message)
        thoughts = self._thoughts(prompt_ids, continues=continues) if self._reasons and free else None
        names = {tool.function.name for tool in body.offered}
        several = body.parallel_tool_calls is not False
        calls = CallReader(self.call_form, names, several=several) if names else None
        return Reader(thoughts, calls) if thoughts or calls else None

    def form(self, body: ChatRequest) -> dict[str, Any] | None:
        """The engine's structured_outputs: calls, the requested format, or either; None: a free answer."""
        if not body.offered or not (body.must_call or body.form):
            return body.form
        functions = {tool.function.name: tool.function.schema_of_arguments for tool in body.offered}
        if self._has_channels:
            return {"grammar": harmony.grammar(functions, partial(mark, self._tokens), body.answer_schema)}
        several = body.tool_choice in (None, "auto", "required") and body.parallel_tool_calls is not False
        lark = grammar(
            self.call_form,
            functions,
            several=several and not self._one_call_a_turn,
            marks=self._tokens,
            answer=body.answer_schema,
        )
        return {"grammar": lark}

    def skips_special(self, body: ChatRequest | CompletionRequest) -> bool:
        """Whether special tokens are left out of the text; not if some of them mark reasoning or calls."""
        marks: set[str] = set()
        if isinstance(body, ChatRequest):
            if self._has_channels:
                return False
            if self._reasons:
                marks |= {THINK, THOUGHT}
            if body.offered:
                marks |= {self.call_form.open, self.call_form.close, self.call_form.args}
        return body.skip_special_tokens is not False and not marks & self._special

    def opening(self, body: ChatRequest) -> list[int]:
        """Ids that open the answer behind the chat template's own opening; an answer of a form has one channel."""
        if not self._has_channels or body.form is None or body.offered or body.continue_final_message:
            return []
        return list(self._target.tokenizer.encode(harmony.FINAL, add_special_tokens=False))

    @cached_property
    def _has_channels(self) -> bool:
        """Whether the chat template writes answers in gpt-oss's channels."""
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
        """The format in which the chat template writes earlier calls, or which it tells the target to use."""
        try:
            question = self._target.chat.render([_QUESTION], tools=[_TOOL], add_generation_prompt=True)
        except TargetError:
            return None
        reply = (self._after_calls(1) or "").removeprefix(question)
        for name, form in CALL_FORMS.items():
            parts = Reader(None, CallReader(form, {_FUNCTION})).add(reply, last=True)
            if [call.name for call in parts.calls.values()] == [_FUNCTION]:
                return name
        return "hermes" if _HERMES_SHOWN.search(question) else None

    @cached_property
    def _one_call_a_turn(self) -> bool:
        """Whether the template rejects several calls in one message, as Llama 3.1's does.

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

    def _thoughts(self, prompt_ids: Sequence[int], *, continues: bool) -> Thoughts:
        end = self._target.tokenizer.decode(list(prompt_ids[-_LAST_IDS:]), skip_special_tokens=False).rstrip()
        opened = end.endswith(THINK)
        closed = end.endswith(THOUGHT)
        return Thoughts(inside=opened or (self._reasons_first and not closed and not continues))
