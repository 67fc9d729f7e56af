"""Anthropic's Messages API, as far as it is a chat completion: text, thinking, tools, forms, streams.

{"system": ..., "messages": [{"role": "user", "content": [text, tool_result ...]}, ...], "max_tokens": ...}
    -> messages: system, and for each of these its tool results and its text   -> chat completion
    -> content:  [thinking], [text], [tool_use] ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from fledge.base.checksums import sha256
from fledge.server import errors
from fledge.server.anthropic_blocks import AnthropicMessage, chat_messages, system_content
from fledge.server.blocks import BlockRenderer
from fledge.server.call_parser import parsed_object
from fledge.server.conversation import ArgumentsSchema, Function, FunctionName, Tool
from fledge.server.errors import ApiError
from fledge.server.hosted import without_hosted
from fledge.server.job import Job
from fledge.server.message import Piece
from fledge.server.protocol import ChatRequest
from fledge.server.render import Json, usage
from fledge.server.strict import ForgivingBody, Several, StrictBody, read
from fledge.server.values import Finite, StopText, Whole

_DELTAS = {
    "thinking": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "tool_use": ("input_json_delta", "partial_json"),
}  # by type of block: the type of its additions, and their field
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # Anthropic's tool_choice, as OpenAI names it


class Thinking(ForgivingBody):
    """`thinking`; a budget has no effect."""

    type: Literal["enabled", "disabled", "adaptive"]


class OutputFormat(ForgivingBody):
    """The answer's form."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputOptions(ForgivingBody):
    """`output_config`."""

    effort: str | None = None
    format: OutputFormat | None = None


class UserData(ForgivingBody):
    """`metadata`."""

    user_id: str | None = None


class AnthropicTool(ForgivingBody):
    """A tool of the client's."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: ArgumentsSchema | None = None


class ToolChoice(ForgivingBody):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None


def _own(tools: Any) -> Any:
    return without_hosted(tools, own=("custom",), advice="describe yours with an input_schema")


class CountRequest(StrictBody):
    """POST /v1/messages/count_tokens."""

    model: str | None = Field(None, max_length=512)
    messages: Annotated[list[AnthropicMessage], Several]
    system: str | Annotated[list[dict[str, Any]], Field(max_length=1024)] | None = None
    tools: Annotated[list[AnthropicTool | None], Field(max_length=1024), BeforeValidator(_own)] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: Thinking | None = None
    output_config: OutputOptions | None = None
    output_format: OutputFormat | None = Field(None, description="the older name of output_config.format")

    def chat(self, *, thinks: bool) -> ChatRequest:
        """The same as a chat completion; an ApiError for what isn't one.

        `thinks`: the chat template looks at `enable_thinking`.
        """
        options = self.output_config or OutputOptions()
        form = options.format or self.output_format
        schema = None if form is None else {"name": "answer", "schema": form.schema_}
        thinking = thinks and self.thinking is not None
        system = [{"role": "system", "content": system_content(self.system)}] if self.system else []
        turns = [
            each
            for number, message in enumerate(self.messages)
            for each in chat_messages(message, f"messages.{number}")
        ]
        tools = [_tool(tool, number) for number, tool in enumerate(self.tools or ()) if tool is not None]
        fields = {
            "model": self.model,
            "messages": [*system, *turns],
            "tools": tools or None,
            "response_format": None if schema is None else {"type": "json_schema", "json_schema": schema},
            "reasoning_effort": options.effort,
            "chat_template_kwargs": {"enable_thinking": self._thinking} if thinking else None,
            **_choice(self.tool_choice),
            **self._sampling(),
        }
        chat = read(_Chat, {**fields, "continue_final_message": _is_begun(fields["messages"][-1]) or None})
        if options.format is None:
            chat._form_field = "output_format.schema"
        return chat

    @property
    def _thinking(self) -> bool:
        return self.thinking is not None and self.thinking.type != "disabled"

    def _sampling(self) -> Json:
        return {}


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Whole] = Field(
        ge=1, lt=1 << 31, description="at most; less where the context ends"
    )
    stop_sequences: Annotated[list[StopText], Field(max_length=64)] | None = None
    stream: bool | None = None
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: Annotated[int | None, Whole] = None
    metadata: UserData | None = None

    def _sampling(self) -> Json:
        same = ("max_tokens", "stream", "temperature", "top_p", "top_k")
        user = None if self.metadata is None else self.metadata.user_id
        return {
            "stop": self.stop_sequences or None,
            "user": user,
            **{name: getattr(self, name) for name in same},
        }


class _Chat(ChatRequest):
    """A chat completion whose limit, which Anthropic's clients have to send, may be more than there is room for."""

    form_place: ClassVar[str] = "output_config.format.schema"
    limit_may_exceed: ClassVar[bool] = True


def _is_begun(last: Json) -> bool:
    """True if the last message is the answer's beginning."""
    content = last.get("content") or ()
    said = content if isinstance(content, str) else any(part.get("text") for part in content)
    return last["role"] == "assistant" and bool(said) and not last.get("tool_calls")


def _tool(tool: AnthropicTool, number: int) -> Tool:
    function = Function(name=tool.name, description=tool.description, parameters=tool.input_schema)
    made = Tool(type="function", function=function)
    made._place = f"tools.{number}.input_schema"
    return made


def _choice(given: Json | None) -> Json:
    """tool_choice and parallel_tool_calls, as OpenAI names them."""
    if given is None:
        return {}
    choice = read(ToolChoice, given, "tool_choice")
    several = {"parallel_tool_calls": False} if choice.disable_parallel_tool_use else {}
    if choice.type != "tool":
        return {"tool_choice": _CHOICES[choice.type], **several}
    if choice.name is None:
        raise errors.invalid("tool_choice.name is missing", "tool_choice.name", "missing_required_parameter")
    return {"tool_choice": {"type": "function", "function": {"name": choice.name}}, **several}


class MessagesRenderer(BlockRenderer):
    """One request's answer as a message, whole or as a stream's events; its blocks are the content's."""

    def __init__(self, model: str) -> None:
        super().__init__("msg_")
        self._model = model

    def _begin(self, job: Job) -> Iterator[Json]:
        yield {"type": "message_start", "message": self._message(job, None)}

    def _open(self, piece: Piece) -> Iterator[Json]:
        if piece.call is not None:
            block: Json = {"type": "tool_use", "id": piece.call.id, "name": piece.call.name, "input": {}}
        elif piece.kind == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            block = {"type": "text", "text": ""}
        yield {"type": "content_block_start", **self._place(1), "content_block": {**block}}
        self._blocks.append(block)
        self._arguments = ""

    def _extend(self, piece: Piece) -> Iterator[Json]:
        block = self._blocks[-1]
        kind, field = _DELTAS[block["type"]]
        if piece.kind == "call":
            self._arguments += piece.text
        else:
            block[field] += piece.text
        yield {"type": "content_block_delta", **self._place(), "delta": {"type": kind, field: piece.text}}

    def _close(self) -> Iterator[Json]:
        block = self._blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = _input(self._arguments)
        elif block["type"] == "thinking":
            # Opaque to clients, some of which leave thoughts without one out of the history that they send back.
            block["signature"] = sha256(block["thinking"].encode())
            delta = {"type": "signature_delta", "signature": block["signature"]}
            yield {"type": "content_block_delta", **self._place(), "delta": delta}
        yield {"type": "content_block_stop", **self._place()}

    def _place(self, further: int = 0) -> Json:
        return {"index": len(self._blocks) - 1 + further}

    def _end(self, job: Job) -> Iterator[Json]:
        done = self._done(job)
        delta = {"stop_reason": done["stop_reason"], "stop_sequence": done["stop_sequence"]}
        yield {"type": "message_delta", "delta": delta, "usage": done["usage"]}
        yield {"type": "message_stop"}

    def _done(self, job: Job) -> Json:
        return self._message(job, self._blocks)

    def _error(self, error: ApiError) -> Json:
        return error.anthropic_body()

    def _message(self, job: Job, content: Sequence[Json] | None) -> Json:
        """The message; without content: as it begins."""
        done = job.completion if content is not None else None
        ended_by = None if done is None else done.stop_reason
        stopped = isinstance(ended_by, str)
        reasons = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content or [],
            "stop_reason": "stop_sequence"
            if stopped
            else reasons[job.finish_reason or "stop"]
            if done
            else None,
            "stop_sequence": ended_by if stopped else None,
            "usage": _usage(job, begun=done is None),
        }


def _input(arguments: str) -> Json:
    """A call's arguments as an object; of what was cut off, as much as Anthropic's clients read of it in a stream."""
    given = parsed_object(arguments or "{}")
    if given is None:
        with suppress(ValueError):
            given = parsed_object(json.dumps(from_json(arguments, allow_partial=True)))
    return given or {}


def _usage(job: Job, *, begun: bool) -> Json:
    counted = usage([job])
    cached = 0 if begun else counted.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": counted["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": 0 if begun else counted["completion_tokens"],
    }
