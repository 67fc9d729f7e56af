"""Lists of messages, in the forms that logs and data sets have, and what of them is kept.

    {"role": "user", "content": "one"}                      OpenAI; the content may be a list of parts
    {"from": "human", "value": "one"}                       ShareGPT
    {"type": "human", "data": {"content": "one"}}           LangChain
    {"role": "user", "parts": [{"text": "one"}]}            Gemini
    {"type": "function_call_output", "output": "4"}         OpenAI's responses, items without a role
    ["one", "an answer"], {"question": "one", "answer": ..} pairs: of each the user's half

Users' turns, system prompts and tools' results are kept, answers never. A message that can't be kept, such as an image,
ends the conversation before its turn, since what follows depends on it; `losses` names why.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard

Role = Literal["user", "assistant", "system", "tool"]

_ROLES: dict[str, Role] = {
    **dict.fromkeys(
        ("user", "human", "prompter", "customer", "client", "question", "instruction", "usr", "humanmessage"),
        "user",
    ),
    **dict.fromkeys(
        ("assistant", "gpt", "chatgpt", "bot", "ai", "model", "bard", "bing", "claude", "llm", "chatbot", "agent",
         "answer", "response", "aimessage", "function_call", "tool_call"),
        "assistant",
    ),
    **dict.fromkeys(("system", "developer", "systemmessage"), "system"),
    **dict.fromkeys(
        ("tool", "function", "observation", "ipython", "tool_response", "tool_result", "toolmessage"), "tool"
    ),
}  # fmt: skip
_ROLE_KEYS = ("role", "from", "speaker", "author", "sender")
_CONTENT_KEYS = ("content", "value", "text", "message", "parts", "body", "output")
_USER_HALVES = ("user", "human", "prompt", "question", "query", "instruction", "input")
_OTHER_HALVES = ("assistant", "bot", "gpt", "ai", "response", "answer", "output", "completion", "chatbot")
_TEXT_TYPES = (None, "text", "input_text", "output_text")


class ToolResult(NamedTuple):
    """What a tool returned."""

    name: str  # of the tool; empty if the log doesn't say
    content: str


@dataclass
class Thread:
    """What is kept of a conversation."""

    turns: list[str] = field(default_factory=list)
    results: list[list[ToolResult]] = field(default_factory=list)  # after each turn
    systems: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)


class _Message(NamedTuple):
    role: Role | None  # None: unknown
    content: Any
    source: Mapping[str, Any]


def read_thread(messages: Any) -> Thread | str:
    """The thread of a list of messages, or why there is none: `shape`, `no_user_turn`, `no_text` or `role`."""
    if not is_list(messages):
        return "shape"
    if len(messages) == 1 and is_list(messages[0]) and not is_texts(messages[0]):
        messages = messages[0]  # a batch of one
    thread, calls = Thread(), dict[str, str]()
    for item in messages:
        found = list(_messages_of(item))
        if not found:
            return "shape"
        for message in found:
            ended = _add(thread, message, calls)
            if ended is not None:
                if not thread.turns:
                    return ended
                thread.losses.append(ended)
                return thread
    return thread if thread.turns else "no_user_turn"


def role_of(row: Mapping[str, Any]) -> Role | None:
    """The role in which a message was written; None if it has none that is known."""
    for key in _ROLE_KEYS:
        value = row.get(key)
        if isinstance(value, Mapping):  # {"author": {"role": "user"}}
            value = value.get("role")
        if isinstance(value, str) and (role := _role(value)):
            return role
    kind = row.get("type")
    return _role(kind) if isinstance(kind, str) and kind not in _CALL_ITEMS else None


_CALL_ITEMS = ("function_call", "function_call_output")  # of OpenAI's responses


def has_role(row: Any) -> bool:
    """Whether it looks like a message: a role, known or not, and a content."""
    if not isinstance(row, Mapping):
        return False
    return any(key in row for key in _ROLE_KEYS) or role_of(_inner(row)) is not None


def text_of(content: Any) -> str | None:
    """A message's text; parts are joined. None if there is none, or a part is something else."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = content.get("parts", [content])
    if not is_list(content):
        return None
    texts = []
    for part in content:
        text = part
        if isinstance(part, Mapping):
            text = part.get("text") if part.get("type") in _TEXT_TYPES else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "\n".join(texts)


def content_of(row: Mapping[str, Any]) -> Any:
    """A message's content, under whichever name."""
    return next((row[key] for key in _CONTENT_KEYS if row.get(key) is not None), None)


def pair_of(item: Any) -> Any:
    """The user's half of a question with its answer; None if it isn't such a pair."""
    if is_list(item) and len(item) == 2 and isinstance(item[0], str):
        return item[0]
    if isinstance(item, Mapping) and any(key in item for key in _OTHER_HALVES):
        return next((item[key] for key in _USER_HALVES if key in item), None)
    return None


def parsed(value: Any) -> Any:
    """A list or an object written as JSON text, else the value itself."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether it is a list and no text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def is_texts(value: Any) -> TypeGuard[Sequence[str]]:
    """Whether it is a list of texts that aren't empty."""
    return is_list(value) and len(value) > 0 and all(isinstance(text, str) for text in value)


def _messages_of(item: Any) -> Iterator[_Message]:
    item = parsed(item)
    if isinstance(item, Mapping):
        inner = _inner(item)
        role = role_of(inner)
        if role is None and not has_role(inner) and (half := pair_of(inner)) is not None:
            yield _Message("user", half, inner)
            return
        if item.get("type") == "reasoning":
            role = "assistant"
        elif item.get("type") in _CALL_ITEMS:
            role = "assistant" if item["type"] == "function_call" else "tool"
        content = content_of(inner)
        yield _Message(role, content, inner)
    elif (half := pair_of(item)) is not None:
        yield _Message("user", half, {})


def _inner(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """LangChain stores a message's fields in `data` or `kwargs`."""
    for key in ("data", "kwargs"):
        inner = message.get(key)
        if isinstance(inner, Mapping) and "content" in inner:
            kind = message.get("type")
            if kind == "constructor":  # {"lc": 1, "id": [..., "HumanMessage"], "kwargs": ...}
                kind = str((message.get("id") or ["?"])[-1])
            return {"role": kind, **inner}
    return message


def _add(thread: Thread, message: _Message, calls: dict[str, str]) -> str | None:
    """Keep a message; why the conversation ends before it, or None."""
    role, content, source = message
    if role == "system":
        if content is not None and (text := text_of(content)) is None:
            thread.losses.append("system_media")
        elif content is not None and text and text.strip():
            thread.systems.append(text.strip())
    elif role == "assistant":
        calls |= dict(_calls(source, content))
    elif role == "tool":
        name = str(
            source.get("name") or calls.get(str(source.get("tool_call_id", source.get("call_id"))), "")
        )
        return _add_result(thread, name, content)
    elif role == "user":
        return _add_turn(thread, content, calls)
    return "role" if role is None else None


def _add_turn(thread: Thread, content: Any, calls: Mapping[str, str]) -> str | None:
    if is_list(content):
        results = [p for p in content if isinstance(p, Mapping) and p.get("type") == "tool_result"]
        for part in results:
            name = calls.get(str(part.get("tool_use_id")), "")
            if ended := _add_result(thread, name, part.get("content") or ""):
                return ended
        content = [part for part in content if part not in results]
        if results and not content:
            return None
    text = text_of(content)
    if text is None:
        return "no_text" if not thread.turns else "media"  # an image, a sound, a file
    if not text.strip():
        return "no_user_turn" if not thread.turns else "empty_turn"
    thread.turns.append(text.strip())
    thread.results.append([])
    return None


def _add_result(thread: Thread, name: str, content: Any) -> str | None:
    text = "" if content is None else text_of(content)
    if text is None:
        parts = content if is_list(content) else [content]
        if any(isinstance(part, Mapping) and "type" in part for part in parts):
            return "media"
        text = json.dumps(content, ensure_ascii=False)  # the tool's own object
    if thread.results:
        thread.results[-1].append(ToolResult(name, text))
    return None


def _calls(message: Mapping[str, Any], content: Any) -> Iterator[tuple[str, str]]:
    """(id, name) of an answer's calls, which are not kept themselves."""
    listed = parsed(message.get("tool_calls"))
    parts = content if is_list(content) else ()
    for call in (*(listed if is_list(listed) else ()), *parts, message):
        if not isinstance(call, Mapping):
            continue
        function = call.get("function")
        name = function.get("name") if isinstance(function, Mapping) else call.get("name")
        if isinstance(name, str) and (number := call.get("id") or call.get("call_id")):
            yield str(number), name
            if call.get("call_id"):
                yield str(call["call_id"]), name


def _role(name: str) -> Role | None:
    folded = name.strip().lower()
    known = _ROLES.get(folded)
    if known is None and folded.startswith(("gpt-", "assistant", "claude-", "model_")):
        return "assistant"
    return known
