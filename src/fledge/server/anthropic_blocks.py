"""Anthropic's messages, whose content is a list of blocks, as messages of a chat; and its tools as functions.

user        [tool_result c1] [text "Go on"]       ->   tool c1: ...    user: Go on
assistant   [thinking] [text] [tool_use c1]       ->   assistant, with reasoning and a call
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from fledge.server import errors
from fledge.server.conversation import FunctionName
from fledge.server.errors import ApiError
from fledge.server.render import Json
from fledge.server.strict import ForgivingBody, log_once, read

_CALL_ID = Annotated[str, Field(max_length=256)]
_Blocks = Annotated[list[dict[str, Any]], Field(max_length=1024)]


class AnthropicMessage(ForgivingBody):
    """One of `messages`; its blocks are read one by one."""

    role: Literal["user", "assistant", "system"]
    content: str | _Blocks


class _Text(ForgivingBody):
    text: str


class _Thinking(ForgivingBody):
    thinking: str | None = None


class _ToolUse(ForgivingBody):
    id: _CALL_ID
    name: FunctionName
    input: Any = None


class _ToolResult(ForgivingBody):
    tool_use_id: _CALL_ID | None = None
    content: str | _Blocks | None = None


class _Reference(ForgivingBody):
    tool_name: str


class _SearchResult(ForgivingBody):
    title: str | None = None
    source: str | None = None
    content: _Blocks


class _Document(ForgivingBody):
    title: str | None = None
    context: str | None = None
    source: dict[str, Any]


class _Source(ForgivingBody):
    """Source of a text document."""

    data: str | None = None
    content: str | _Blocks | None = None


def chat_messages(message: AnthropicMessage, at: str) -> list[Json]:
    """One message as those of a chat: results of tools are messages of their own. `at`: its place in the body."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    made: list[Json] = []
    rest: Json = {"role": message.role, "content": []}
    for number, block in enumerate(message.content):
        kind, place = block.get("type"), f"{at}.content.{number}"
        if message.role == "assistant" and kind in ("thinking", "tool_use"):
            _add(rest, block, place)
        elif message.role == "assistant" and _is_another_server_s(kind):
            log_once(
                f"content.{kind}", f"blocks of the type {kind} are left out of messages: they aren't shown"
            )
        elif kind == "tool_result" and message.role == "user":
            result = read(_ToolResult, block, place)
            made.append(
                {"role": "tool", "tool_call_id": result.tool_use_id, "content": _result(result, place)}
            )
        else:
            rest["content"].append(_part(block, place))
    rest["content"] = rest["content"] or None
    if rest["content"] or message.role == "assistant":
        made.append(rest)
    if not made:
        raise errors.invalid(f"{at}.content is empty; give a text, or a list of blocks", f"{at}.content")
    return made


def _is_another_server_s(kind: Any) -> bool:
    """Reasoning that is encrypted for Anthropic's models, and calls that a server has carried out by itself."""
    return kind in ("redacted_thinking", "server_tool_use", "mcp_tool_use") or str(kind).endswith(
        "_tool_result"
    )


def _add(rest: Json, block: Json, at: str) -> None:
    """An assistant's reasoning or call."""
    if block["type"] == "thinking":
        rest["reasoning_content"] = rest.get("reasoning_content", "") + (
            read(_Thinking, block, at).thinking or ""
        )
        return
    use = read(_ToolUse, block, at)
    arguments = (
        use.input if isinstance(use.input, str) else json.dumps({} if use.input is None else use.input)
    )
    call = {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": arguments}}
    rest["tool_calls"] = [*rest.get("tool_calls", ()), call]


def _result(result: _ToolResult, at: str) -> Any:
    """The content of a tool's result, of which chats have no empty list."""
    if not isinstance(result.content, list):
        return result.content or ""
    return [_part(block, f"{at}.content.{number}") for number, block in enumerate(result.content)] or ""


def system_content(system: str | list[Json]) -> str | list[Json]:
    """`system`, in the form of a chat's content."""
    return (
        system if isinstance(system, str) else [_part(each, f"system.{n}") for n, each in enumerate(system)]
    )


def _part(block: Json, at: str) -> Json:
    return {"type": "text", "text": _text(block, at)}


def _text(block: Json, at: str) -> str:
    """Text of a block; an ApiError if it isn't a text."""
    kind = block.get("type")
    if kind == "text":
        return read(_Text, block, at).text
    if kind == "tool_reference":
        return read(_Reference, block, at).tool_name
    if kind == "search_result":
        found = read(_SearchResult, block, at)
        return _joined(found.title, found.source, _texts(found.content, f"{at}.content"))
    if kind == "document":
        document = read(_Document, block, at)
        source = document.source
        if source.get("type") not in ("text", "content"):
            raise _unsupported(f"documents of the type {source.get('type')!s:.40}", f"{at}.source")
        given = read(_Source, {key: source.get(key) for key in ("data", "content")}, f"{at}.source")
        said = given.content if isinstance(given.content, list) else None
        text = _texts(said, f"{at}.source.content") if said is not None else given.data or given.content
        return _joined(document.title, document.context, str(text or ""))
    raise _unsupported(f"blocks of the type {kind!s:.40}", at)


def _texts(blocks: list[Json], at: str) -> str:
    return _joined(*(_text(block, f"{at}.{number}") for number, block in enumerate(blocks)))


def _joined(*texts: str | None) -> str:
    return "\n".join(filter(None, texts))


def _unsupported(what: str, at: str) -> ApiError:
    return errors.invalid(
        f"{at}: {what} aren't supported here; send text, and thinking, tool_use and tool_result where they belong",
        at,
    )
