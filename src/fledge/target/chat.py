"""A target's chat template: prompts as token ids, and where turns begin and end."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from fledge.base.errors import TargetError
from fledge.target.history import rewritten

# {"role": ..., "content": ...}; beside these what else the template looks at, such as tool_calls.
Message = Mapping[str, Any]

# Stands for a message's text while its surroundings are looked at. No template trims or rewrites it.
_MARK = "fledgeMARKfledge"
_CALL_ID, _ANSWER = "call00001", "fledgeANSWERfledge"  # of a call; Mistral's templates want nine signs
# What apply_chat_template takes for itself, or every template is given.
_GIVEN = frozenset(("messages", "conversation", "add_generation_prompt", "tokenize", "tools", "documents"))
_EXAMPLE_TOOL = {
    "type": "function",
    "function": {"name": _MARK, "description": "", "parameters": {"type": "object", "properties": {}}},
}
_THINKING = re.compile(r"\.thinking\b|[\"']thinking[\"']")  # a template's look at a message's key

_ABOUT_ROLES = re.compile(r"\b(roles?|alternat\w*|order|system|user|assistant|developer)\b", re.IGNORECASE)


class ChatTemplate:
    """The one place where messages become ids, for training and serving alike."""

    def __init__(
        self, tokenizer: Any, end_token_ids: Sequence[int] = (), options: Mapping[str, Any] | None = None
    ) -> None:
        """`end_token_ids`: further ids the checkpoint's configuration names as ends of generation.

        `options`: what the template itself asks for, such as Qwen3's `enable_thinking`; others are a TargetError.
        """
        self._tokenizer = tokenizer
        self._end_token_ids = tuple(end_token_ids)
        self.options = dict(options or {})
        self._takes: dict[type, bool] = {}  # whether the template takes arguments of calls of this type
        self.check_options(self.options)

    def prompt_ids(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        opening: bool = True,
        continues: bool = False,
    ) -> list[int]:
        """The ids a reply to `messages` is generated from, the opening of the assistant's turn included.

        `options`: of the template, for these messages, beside or instead of those it was made with. `tools`: functions
        the reply may call, as transformers describes them to templates. Without `opening` the assistant's turn isn't
        opened; with `continues` the last message, which is the assistant's, stays open. A template that refuses the
        messages is given them in other forms (`history.py`).
        """
        self.check_options(options or {})
        self.check_tools(messages, tools)
        refusals = []
        for form in (messages, *rewritten([dict(message) for message in messages])):
            try:
                text = self.render(
                    form,
                    add_generation_prompt=opening and not continues,
                    continues=continues,
                    options=options,
                    tools=tools,
                )
                return self._encode(text)
            except TargetError as refusal:
                refusals.append(refusal)
        raise refusals[0]

    def check_tools(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
        """Raise a TargetError for tools, their calls and their answers if the template knows none."""
        shown = self.shows_calls if tools else self._shows_calls_alone
        if (tools and not self.takes_tools) or (_has_calls(messages) and not shown):
            raise TargetError("the target's chat template doesn't support tools: leave them out")

    @cached_property
    def takes_tools(self) -> bool:
        """True if the template shows the target the functions on offer."""
        try:
            return _MARK in self.render([{"role": "user", "content": "Hello"}], tools=[_EXAMPLE_TOOL])
        except TargetError:
            return False

    @cached_property
    def shows_calls(self) -> bool:
        """True if the template shows the target calls and their results, or raises an error saying why not."""
        return self._shows_calls([_EXAMPLE_TOOL])

    @cached_property
    def _shows_calls_alone(self) -> bool:
        return self._shows_calls([])

    def _shows_calls(self, tools: Sequence[Mapping[str, Any]]) -> bool:
        answer = {"role": "tool", "name": _MARK, "tool_call_id": _CALL_ID, "content": _ANSWER}
        try:
            text = self.render([{"role": "user", "content": "Hello"}, _call({}), answer], tools=tools)
        except TargetError:
            return True
        return _MARK in text and _ANSWER in text

    def user_turn_start(self) -> list[int]:
        """The ids up to where a user's first words begin: what a target continues with a question of its own."""
        before = self.render([{"role": "user", "content": _MARK}]).split(_MARK)[0]
        if not before.endswith("\n"):
            before = before.rstrip(" ")  # a space before a word belongs to the word's own token
        return self._encode(before)

    @cached_property
    def turn_end_ids(self) -> set[int]:
        """Ids that end a generated turn: the end of text, and the special token the template closes a reply with."""
        ends = set(self._end_token_ids)
        if self._tokenizer.eos_token_id is not None:
            ends.add(int(self._tokenizer.eos_token_id))
        return ends | {
            end for end in (self.reply_end_id, self._reply_end([_EXAMPLE_TOOL])) if end is not None
        }

    @cached_property
    def reply_end_id(self) -> int | None:
        """The special token the template closes a reply with; None if it closes it with text, or not at all."""
        return self._reply_end([])

    def _reply_end(self, tools: Sequence[Mapping[str, Any]]) -> int | None:
        """The same for replies to requests with `tools`, for which some targets have a template of its own."""
        if not self._tokenizer.chat_template:
            return None
        conversation = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": _MARK}]
        try:
            text = self.render(conversation, tools=tools)
        except TargetError:
            if not tools:
                raise
            return None
        if _MARK not in text:  # a template that rewrites replies reveals nothing
            return None
        after = self._encode(text.rsplit(_MARK, 1)[-1])
        special = {int(i) for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        return after[0] if after and after[0] in special else None

    @cached_property
    def hash(self) -> str:
        """Changes when the same messages may give other ids: the template, its special tokens, the ends of turns."""
        parts = {
            "template": self._tokenizer.chat_template,
            "special_tokens": {k: str(v) for k, v in sorted(self._tokenizer.special_tokens_map.items())},
            "ends": sorted(self._end_token_ids),
        }
        if self.options:
            parts["options"] = self.options
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def check_options(self, options: Mapping[str, Any]) -> None:
        """Raise a TargetError for options that the template never looks at: they would be ignored."""
        for name in options:
            if not self.asks_for(name):
                raise TargetError(f"the target's chat template doesn't ask for {name!r}: leave it out")

    def asks_for(self, name: str) -> bool:
        """True if the template reads an option of this name."""
        return name not in _GIVEN and bool(re.search(rf"\b{re.escape(name)}\b", self._source))

    @property
    def _source(self) -> str:
        """The template's text; of a tokenizer with several templates, all of them."""
        given = self._tokenizer.chat_template or ""
        return "\n".join(given.values()) if isinstance(given, dict) else str(given)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        continues: bool = False,
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The text of a conversation. Raises a TargetError if there is no template, or it refuses the messages."""
        if not self._tokenizer.chat_template:
            raise TargetError(
                "the target's tokenizer has no chat template: use an instruction-tuned target, "
                "or give prompts as token ids"
            )
        try:
            text = self._apply(
                self.given(messages),
                add_generation_prompt=add_generation_prompt,
                continues=continues,
                options=options,
                tools=tools,
            )
        except Exception as error:  # templates raise whatever their author chose, as jinja2 or plain errors
            raise TargetError(
                f"the target's chat template refuses these messages ({error}): {_advice(str(error))}"
            ) from error
        return text

    def given(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages in the form the template wants, as servers give them to it."""
        messages = [self._with_thinking(self._with_objects(message)) for message in messages]
        return _in_parts(messages) if self._wants_parts else messages

    def _with_objects(self, message: Message) -> Message:
        """Arguments that aren't a JSON object are given as text, or within an object if the template refuses texts.

        A template that takes nothing else, as DeepSeek's, is given all of them as text.
        """
        calls = message.get("tool_calls")
        if not calls:
            return message
        if not self._takes_arguments(_ANSWER):
            return {**message, "tool_calls": [_with_object(call) for call in calls]}
        if not self._takes_arguments({_ANSWER: 1}):
            return {**message, "tool_calls": [_with_text(call) for call in calls]}
        return message

    def _takes_arguments(self, arguments: Any) -> bool:
        kind = type(arguments)
        if kind not in self._takes:
            try:
                self._takes[kind] = _ANSWER in self._apply(
                    [{"role": "user", "content": "Hello"}, _call(arguments)]
                )
            except Exception:  # as in render
                self._takes[kind] = False
        return self._takes[kind]

    def _with_thinking(self, message: Message) -> Message:
        """`reasoning_content` under the name that gpt-oss's template gives it."""
        thinking = message.get("reasoning_content")
        if not thinking or not _THINKING.search(self._source):
            return message
        if message.get("tool_calls") and message.get("content"):  # of which the template takes only one
            return {**message, "content": "", "thinking": f"{thinking}\n\n{message['content']}"}
        return {**message, "thinking": thinking}

    @cached_property
    def _wants_parts(self) -> bool:
        """True if the template expects lists of parts, as for some multimodal targets: it drops plain text."""
        plain = [{"role": "user", "content": _MARK}]

        def is_kept(messages: Sequence[Mapping[str, Any]]) -> bool:
            try:
                return _MARK in self._apply(messages)
            except Exception:  # as in render, which reports it
                return False

        return not is_kept(plain) and is_kept(_in_parts(plain))

    def _apply(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        continues: bool = False,
        options: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        named = (
            isinstance(self._tokenizer.chat_template, dict) and "tool_use" in self._tokenizer.chat_template
        )
        text: str = self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continues,
            tools=list(tools) or None,
            chat_template="tool_use" if named and (tools or _has_calls(messages)) else None,
            **{**self.options, **(options or {})},
        )
        return text

    def _encode(self, text: str) -> list[int]:
        """Ids of rendered text, whose special tokens the template has already written."""
        return list(self._tokenizer.encode(text, add_special_tokens=False))


def _advice(refusal: str) -> str:
    """Advice on an error that the template raised."""
    if _ABOUT_ROLES.search(refusal):
        return "give the roles it knows, in its order"
    return "change what it names; its words are the template's own"


def _in_parts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**m, "content": [{"type": "text", "text": m["content"]}]}
        if isinstance(m.get("content"), str)
        else {**m}
        for m in messages
    ]


def _call(arguments: Any) -> dict[str, Any]:
    """A message that calls the example tool."""
    calls = [{"id": _CALL_ID, "type": "function", "function": {"name": _MARK, "arguments": arguments}}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _has_calls(messages: Sequence[Message]) -> bool:
    return any(message.get("role") == "tool" or message.get("tool_calls") for message in messages)


def _with_object(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    if not isinstance(function["arguments"], str):
        return call
    return {**call, "function": {**function, "arguments": {"arguments": function["arguments"]}}}


def _with_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    if isinstance(function["arguments"], str):
        return call
    text = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": text}}
