"""Messages of a conversation, and the functions on offer in it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from fledge.server.strict import StrictBody

_NO_ARGUMENTS = {"type": "object", "properties": {}}
FunctionName = Annotated[str, Field(min_length=1, max_length=256)]


class TextPart(StrictBody):
    """A part of a message; only text is supported."""

    type: Literal["text"]
    text: str


class Function(StrictBody):
    """A function on offer."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="a JSON schema; left out: no parameters")
    strict: bool | None = Field(
        None, description="nothing to choose: calls that tool_choice asks for follow their schema"
    )

    @field_validator("parameters")
    @classmethod
    def _are_an_object(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value and value.get("type", "object") != "object":
            raise ValueError('arguments are an object: give a JSON schema of type "object"')
        return value

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        return self.parameters or _NO_ARGUMENTS


class Tool(StrictBody):
    """Something the target may ask for; only functions are supported."""

    type: Literal["function"]
    function: Function

    @property
    def plain(self) -> dict[str, Any]:
        """As chat templates want it."""
        function = self.function
        described = {} if function.description is None else {"description": function.description}
        return {
            "type": "function",
            "function": {"name": function.name, **described, "parameters": function.schema_of_arguments},
        }


class FunctionOfName(StrictBody):
    """Names a function on offer."""

    name: FunctionName


class NamedTool(StrictBody):
    """The tool_choice that asks for a call of one function."""

    type: Literal["function"]
    function: FunctionOfName


class FunctionCall(StrictBody):
    """What an assistant called, and with what."""

    name: FunctionName
    arguments: str = Field(description="the text of a JSON object")
    parsed_arguments: Any = Field(None, description="as OpenAI's client has read the text, which counts")

    @field_validator("arguments")
    @classmethod
    def _is_an_object(cls, value: str) -> str:
        try:
            found = json.loads(value or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError("give the text of a JSON object")
        return value


class ToolCall(StrictBody):
    """A call in an assistant's message."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = Field(None, description="as a stream had it; the order of the list counts")

    @property
    def plain(self) -> dict[str, Any]:
        """As chat templates want it: arguments are no text there."""
        arguments = json.loads(self.function.arguments or "{}")
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.function.name, "arguments": arguments},
        }


class ChatMessage(StrictBody):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: Annotated[list[ToolCall], Field(max_length=1024, fail_fast=True)] | None = None
    reasoning_content: str | None = Field(
        None, description="an assistant's, handed to the chat template; few show it"
    )
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=1024, fail_fast=True)] | None = (
        Field(None, validate_default=True)
    )
    parsed: Any = Field(None, description="as OpenAI's client has read the content, which counts")
    tool_call_id: str | None = Field(None, max_length=256, description="of the call that a tool answers")
    name: str | None = Field(None, max_length=64, description="handed to the chat template; few show it")

    @field_validator("content")
    @classmethod
    def _says_something(cls, value: str | list[TextPart] | None, info: ValidationInfo) -> Any:
        if value is None and not (info.data.get("tool_calls") or info.data.get("reasoning_content")):
            raise ValueError("give a text, or a list of parts of type text")
        return value

    @model_validator(mode="after")
    def _by_whom_it_can_be_said(self) -> ChatMessage:
        if self.role != "assistant" and (self.tool_calls or self.reasoning_content):
            raise ValueError("tool_calls and reasoning_content are an assistant's; leave them out")
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError("tool_call_id belongs to a message of the role tool; leave it out")
        return self

    @property
    def plain(self) -> dict[str, Any]:
        """As chat templates want it."""
        text = (
            self.content if isinstance(self.content, str) else "\n".join(p.text for p in self.content or ())
        )
        more = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
            "tool_calls": [call.plain for call in self.tool_calls or ()] or None,
        }
        said = {key: value for key, value in more.items() if value is not None}
        return {"role": "system" if self.role == "developer" else self.role, "content": text, **said}
