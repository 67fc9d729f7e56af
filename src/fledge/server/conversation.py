"""Messages of a conversation, and the functions the answer may call."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fledge.engine.json_schema import without_nulls
from fledge.server.hosted import without_hosted
from fledge.server.strict import ForgivingBody, StrictBody

_NO_ARGUMENTS = {"type": "object", "properties": {}}
# By type of part, the field with what it says.
_PARTS: dict[str, str | None] = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "redacted_thinking": None,
    "reasoning": "reasoning",
}
_THOUGHTS = ("thinking", "redacted_thinking", "reasoning")
FunctionName = Annotated[str, Field(min_length=1, max_length=256)]


class ContentPart(ForgivingBody):
    """A part of a message: text; of an assistant's also a refusal, and its reasoning as other servers send it."""

    type: Literal[
        "text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking", "reasoning"
    ]
    text: str | None = None
    refusal: str | None = None
    thinking: str | list[dict[str, Any]] | None = None
    reasoning: str | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _is_supported(cls, value: Any) -> Any:
        if isinstance(value, str) and value not in _PARTS:
            raise ValueError(f"parts of the type {value:.40} aren't supported; send text")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> ContentPart:
        field = _PARTS[self.type]
        if field is not None and getattr(self, field) is None and self.text is None:
            raise ValueError(f"{field} is missing")
        return self

    @property
    def is_thought(self) -> bool:
        """True if this part is reasoning, which is passed to the chat template separately."""
        return self.type in _THOUGHTS

    @property
    def said(self) -> str:
        """Its text; empty if it is encrypted for another server."""
        given = getattr(self, _PARTS[self.type] or "text")
        if isinstance(given, list):  # Mistral's: a list of texts
            return "".join(str(each.get("text") or "") for each in given)
        return given if given is not None else self.text or ""


def _of_an_object(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without keywords that are null, as servers in Go write those that say nothing."""
    schema = without_nulls(schema)
    kinds = schema.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ValueError('arguments are an object: give a JSON schema of type "object"')
    return {**schema, "type": "object"} if isinstance(kinds, list) else schema


ArgumentsSchema = Annotated[dict[str, Any], AfterValidator(_of_an_object)]


def _own(tools: Any) -> Any:
    return without_hosted(tools, own=("function",), advice="use functions")


class Function(ForgivingBody):
    """A function the answer may call."""

    name: FunctionName
    description: str | None = None
    parameters: ArgumentsSchema | None = Field(None, description="a JSON schema; left out: no parameters")
    strict: bool | None = Field(
        None, description="no effect: calls requested by tool_choice always follow their schema"
    )

    @property
    def schema_of_arguments(self) -> dict[str, Any]:
        """The JSON schema of the function's arguments."""
        return self.parameters or _NO_ARGUMENTS


class Tool(ForgivingBody):
    """A tool the target may call; only functions are supported."""

    type: Literal["function"]
    function: Function
    _place: str = PrivateAttr("")  # of its schema, in the client's terms

    @property
    def plain(self) -> dict[str, Any]:
        """In the form chat templates expect."""
        function = self.function
        described = {} if function.description is None else {"description": function.description}
        return {
            "type": "function",
            "function": {"name": function.name, **described, "parameters": function.schema_of_arguments},
        }


class FunctionOfName(StrictBody):
    """Names one of the functions."""

    name: FunctionName


class NamedTool(StrictBody):
    """The tool_choice that requires a call of one function."""

    type: Literal["function"]
    function: FunctionOfName


class Allowed(StrictBody):
    """The functions that may be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool | None], Field(max_length=1024, fail_fast=True), BeforeValidator(_own)]


class AllowedTools(StrictBody):
    """The tool_choice that leaves only some functions."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


# None: a tool that this server can't have, which is left out.
Tools = Annotated[list[Tool | None], Field(max_length=1024, fail_fast=True), BeforeValidator(_own)]


class FunctionCall(ForgivingBody):
    """The function an assistant called, and its arguments."""

    name: FunctionName
    arguments: str = Field(
        description="the text of a JSON object; another text, as some targets write, is passed on as it is"
    )
    parsed_arguments: Any = Field(None, description="as parsed by OpenAI's client; ignored")

    @property
    def plain_arguments(self) -> dict[str, Any] | str:
        """The object; the text if it isn't one, or names half of a surrogate pair, which no text can hold."""
        try:
            arguments = json.loads(self.arguments or "{}")
            json.dumps(arguments, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return self.arguments
        return arguments if isinstance(arguments, dict) else self.arguments


class ToolCall(ForgivingBody):
    """A call in an assistant's message."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = Field(None, description="index from a stream; ignored in favour of the list's order")

    @property
    def plain(self) -> dict[str, Any]:
        """In the form chat templates expect, with the arguments as an object."""
        function = {"name": self.function.name, "arguments": self.function.plain_arguments}
        return {"id": self.id, "type": "function", "function": function}


class ChatMessage(ForgivingBody):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: Annotated[list[ToolCall], Field(max_length=1024, fail_fast=True)] | None = None
    reasoning_content: str | None = Field(
        None, description="the assistant's, passed to the chat template; few use it"
    )
    reasoning: str | None = Field(None, description="another name of reasoning_content")
    content: (
        str | Annotated[list[ContentPart], Field(min_length=1, max_length=1024, fail_fast=True)] | None
    ) = Field(None, validate_default=True)
    refusal: str | None = Field(None, description="the assistant's, in place of content")
    parsed: Any = Field(None, description="as parsed by OpenAI's client; ignored")
    tool_call_id: str | None = Field(None, max_length=256, description="of the call that a tool answers")
    name: str | None = Field(None, max_length=256, description="passed to the chat template; few use it")

    @field_validator("content")
    @classmethod
    def _has_content(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None and info.data.get("role") != "assistant":  # a reply may be calls or reasoning only
            raise ValueError("give a text, or a list of parts of type text")
        return value

    @model_validator(mode="after")
    def _fields_fit_the_role(self) -> ChatMessage:
        if self.role != "assistant" and (self.tool_calls or self.thoughts or self.refusal):
            raise ValueError(
                "tool_calls, reasoning_content, reasoning and refusal are an assistant's; leave them out"
            )
        if self.role != "tool" and self.tool_call_id is not None:
            raise ValueError("tool_call_id belongs to a message of the role tool; leave it out")
        return self

    @property
    def characters(self) -> int:
        """Approximate number of characters that the chat template writes for the message."""
        parts = (
            [self.content] if isinstance(self.content, str) else [part.said for part in self.content or ()]
        )
        calls = sum(len(call.function.arguments) for call in self.tool_calls or ())
        return 64 + sum(map(len, parts)) + len(self.thoughts or "") + calls

    @property
    def thoughts(self) -> str | None:
        """The reasoning, by either name, or in parts of the content."""
        parts = self.content if isinstance(self.content, list) else ()
        in_parts = "\n".join(part.said for part in parts if part.is_thought and part.said)
        return self.reasoning_content or self.reasoning or in_parts or None

    @property
    def plain(self) -> dict[str, Any]:
        """In the form chat templates expect."""
        parts = self.content if isinstance(self.content, list) else ()
        said = "\n".join(part.said for part in parts if not part.is_thought)
        text = self.content if isinstance(self.content, str) else said
        more = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.thoughts or None,
            "tool_calls": [call.plain for call in self.tool_calls or ()] or None,
        }
        extra = {key: value for key, value in more.items() if value is not None}
        return {
            "role": "system" if self.role == "developer" else self.role,
            "content": text or self.refusal or "",
            **extra,
        }
