"""The input of OpenAI's Responses API as messages of a chat, and its tools as functions.

function                 a function
custom                   a function of one text
namespace                its functions, each under its own name
web_search, mcp, ...     left out: this server has none; so are their calls in an input
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import from_json

from fledge.server import errors
from fledge.server.conversation import ContentPart, Function, FunctionName, Tool
from fledge.server.hosted import without_hosted
from fledge.server.render import Json
from fledge.server.strict import ForgivingBody, log_once, read

_OWN = ("function", "custom", "namespace")
_CALL_ID = Annotated[str, Field(max_length=256)]
# Calls that a client has carried out by itself, with the field that says what of.
_LOCAL = {"local_shell_call": "action", "shell_call": "action", "apply_patch_call": "operation"}
# Calls that another server has carried out. Their results are part of its answer.
_ELSEWHERE = (
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)
_TEXT_INPUT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
               "additionalProperties": False}  # fmt: skip


@dataclass(frozen=True)
class Offered:
    """A function as the chat knows it, and what it is to the client."""

    tool: Tool
    name: str
    namespace: str | None = None
    custom: bool = False  # its input is a text instead of a JSON object


class MessageItem(ForgivingBody):
    """A message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentPart], Field(max_length=1024, fail_fast=True)] | None = None


class CallItem(ForgivingBody):
    """A call of a function."""

    call_id: _CALL_ID
    name: FunctionName
    arguments: str
    namespace: str | None = None


class CustomCallItem(ForgivingBody):
    """A call of a custom tool."""

    call_id: _CALL_ID
    name: FunctionName
    input: str
    namespace: str | None = None


class LocalCallItem(ForgivingBody):
    """A call that the client has carried out."""

    type: str
    call_id: _CALL_ID
    action: dict[str, Any] | None = None
    operation: dict[str, Any] | None = None


class OutputItem(ForgivingBody):
    """The result of a call."""

    call_id: _CALL_ID | None = None
    id: str | None = None
    output: str | Annotated[list[dict[str, Any]], Field(max_length=1024)] | None = None


class _Custom(ForgivingBody):
    name: FunctionName
    description: str | None = None
    format: dict[str, Any] | None = None


class _Namespace(ForgivingBody):
    name: FunctionName
    tools: Annotated[list[dict[str, Any]], Field(max_length=1024)]


def offered_tools(tools: Sequence[Json]) -> list[Offered]:
    """The functions among the tools; an ApiError if there is nothing else, or something is wrong with one."""
    try:
        own = without_hosted(list(tools), own=_OWN, advice="use functions")
    except ValueError as error:
        raise errors.invalid(f"tools: {error}", "tools") from None
    found: list[Offered] = []
    for number, tool in enumerate(own):
        if tool is not None:
            _offer(tool, f"tools.{number}", None, found)
    return found


def _offer(tool: Json, at: str, namespace: str | None, found: list[Offered]) -> None:
    kind, fields = tool.get("type"), {key: value for key, value in tool.items() if key != "type"}
    if kind == "namespace" and namespace is None:
        within = read(_Namespace, fields, at)
        for number, each in enumerate(within.tools):
            _offer(each, f"{at}.tools.{number}", within.name, found)
        return
    if kind == "function":
        function = read(Function, fields, at)
    elif kind == "custom":
        custom = read(_Custom, fields, at)
        function = Function(name=custom.name, description=_described(custom), parameters=_TEXT_INPUT)
    elif namespace is not None and isinstance(kind, str):
        return
    else:
        raise errors.invalid(f"{at}.type: tools have a type; use functions", "tools")
    name = function.name
    if namespace is not None and any(each.tool.function.name == name for each in found):
        function = function.model_copy(update={"name": f"{namespace}.{name}"})
    made = Tool(type="function", function=function)
    made._place = f"{at}.parameters"
    found.append(Offered(made, name, namespace, kind == "custom"))


def _described(custom: _Custom) -> str:
    """A custom tool's description, with the grammar of its input, to which nothing holds the answer."""
    form = custom.format or {}
    grammar = form.get("definition") or (form.get("grammar") or {}).get("definition")
    lines = [custom.description, f"The input follows this grammar:\n{grammar}" if grammar else None]
    return "\n".join(filter(None, lines))


def choice_of(choice: str | Json | None, tools: Sequence[Offered]) -> str | Json | None:
    """tool_choice as a chat completion has it."""
    if not isinstance(choice, dict):
        return choice
    kind = choice.get("type")
    if kind == "allowed_tools":
        named = [_named(each, tools) for each in choice.get("tools") or () if each.get("type") in _OWN[:2]]
        return {"type": kind, kind: {"mode": choice.get("mode"), "tools": named}}
    if kind not in _OWN[:2]:
        raise errors.invalid(
            f"tool_choice asks for a tool of the type {kind!s:.40}, which this server doesn't have; choose a function",
            "tool_choice",
        )
    return _named(choice, tools)


def _named(choice: Json, tools: Sequence[Offered]) -> Json:
    name = chat_name(choice.get("name"), choice.get("namespace"), tools)
    return {"type": "function", "function": {"name": name}}


def chat_name(name: Any, namespace: str | None, tools: Sequence[Offered]) -> Any:
    """The name under which the chat knows a client's function."""
    for each in tools:
        if each.name == name and (namespace is None or each.namespace == namespace):
            return each.tool.function.name
    return name


def append(messages: list[Json], item: Json, at: str, tools: Sequence[Offered] = ()) -> None:
    """One item of an input; calls, reasoning and text that follow each other are one assistant's message."""
    kind = item.get("type", "message")
    if kind == "message":
        said = read(MessageItem, item, at)
        if said.role != "assistant" or not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": said.role, "content": said.content or None})
        elif messages[-1].get("content"):
            messages.append({"role": "assistant", "content": said.content or None})
        else:
            messages[-1]["content"] = said.content or None
        if said.role != "assistant" and said.content is None:
            raise errors.invalid(f"{at}.content is missing", f"{at}.content", "missing_required_parameter")
        if said.role != "assistant" and isinstance(said.content, str):
            messages[-1]["content"] = said.content  # an empty text, too
    elif kind == "function_call":
        call = read(CallItem, item, at)
        _called(messages, call.call_id, chat_name(call.name, call.namespace, tools), call.arguments)
    elif kind == "custom_tool_call":
        custom = read(CustomCallItem, item, at)
        name = chat_name(custom.name, custom.namespace, tools)
        _called(messages, custom.call_id, name, json.dumps({"input": custom.input}))
    elif kind in _LOCAL:
        local = read(LocalCallItem, item, at)
        arguments = json.dumps(getattr(local, _LOCAL[kind]) or {})
        _called(messages, local.call_id, kind.removesuffix("_call"), arguments)
    elif kind in ("function_call_output", "custom_tool_call_output", *(f"{name}_output" for name in _LOCAL)):
        given = read(OutputItem, item, at)
        messages.append(
            {"role": "tool", "tool_call_id": given.call_id or given.id, "content": _output(given, at)}
        )
    elif kind == "reasoning":
        _assistant(messages)
        texts = [part.get("text", "") for part in item.get("content") or item.get("summary") or ()]
        messages[-1]["reasoning_content"] = "\n".join(map(str, texts)) or None
    elif kind in _ELSEWHERE:
        log_once(
            f"input.{kind}", f"items of the type {kind} are left out of an input: their results aren't shown"
        )
    else:
        raise errors.invalid(
            f"{at}: items of the type {kind!s:.40} aren't supported; send messages, calls of functions and their "
            "outputs",
            "input",
        )


def _assistant(messages: list[Json]) -> Json:
    """The assistant's message that an item belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": None})
    return messages[-1]


def _called(messages: list[Json], call_id: str, name: Any, arguments: str) -> None:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    last = _assistant(messages)
    last["tool_calls"] = [*last.get("tool_calls", ()), call]


def _output(given: OutputItem, at: str) -> Any:
    """Text, parts of text, or what a shell printed, as JSON."""
    if not isinstance(given.output, list):
        return given.output or ""
    if all("type" not in each for each in given.output):
        return json.dumps(given.output, ensure_ascii=False)
    return [read(ContentPart, each, f"{at}.output.{n}") for n, each in enumerate(given.output)] or ""


def item_of(call_name: str | None, tools: Mapping[str, Offered]) -> tuple[str, Json]:
    """The type and name of the item that a call of the chat's becomes."""
    known = tools.get(call_name or "")
    if known is None:
        return "function_call", {"name": call_name}
    within = {} if known.namespace is None else {"namespace": known.namespace}
    return "custom_tool_call" if known.custom else "function_call", {"name": known.name, **within}


def text_input(arguments: str) -> str:
    """The input of a custom tool from the arguments of its function; of what was cut off, as much as can be read."""
    try:
        given = from_json(arguments or "{}", allow_partial="trailing-strings")
    except ValueError:
        return arguments
    return given["input"] if isinstance(given, dict) and isinstance(given.get("input"), str) else arguments
