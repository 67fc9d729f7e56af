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

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard

Role = Literal["user", "assistant", "system", "tool"]

_ROLES: dict[str, Role] = {
    **dict.fromkeys(
        ("user", "human", "prompter", "customer", "client", "question", "instruction", "usr"),
        "user",
    ),
    **dict.fromkeys(
        ("assistant", "gpt", "chatgpt", "bot", "ai", "model", "bard", "bing", "claude", "llm", "chatbot", "agent",
         "answer", "response", "functioncall", "toolcall"),
        "assistant",
    ),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "observation", "ipython", "toolresponse", "toolresult"), "tool"),
}  # fmt: skip
_ROLE_KEYS = ("role", "from", "speaker", "author", "sender")
_CONTENT_KEYS = ("content", "value", "text", "message", "parts", "body", "output")
USER_HALVES = ("user", "human", "prompt", "question", "query", "instruction", "input")
OTHER_HALVES = ("assistant", "bot", "gpt", "ai", "response", "answer", "output", "completion", "chatbot")
_TEXT_TYPES = (None, "text", "input_text", "output_text")
MEDIA = ("image", "images", "image_data", "video", "videos", "audio", "audios", "attachments")
_ATTACHED = (*MEDIA, "image_url", "files", "file_ids", "experimental_attachments")  # to a message
# Of tools, within a content: Anthropic, Bedrock, Gemini, Vercel.
_RESULT_KEYS = ("toolResult", "functionResponse", "function_response")
_RESULT_TYPES = ("tool_result", "tool-result")
_CALL_KEYS = ("function", "toolUse", "functionCall", "function_call")
_ID_KEYS = ("id", "call_id", "tool_call_id", "tool_use_id", "toolUseId", "toolCallId")
_PART = re.compile(
    r"""\s*\[\s*\{\s*["']type["']\s*:\s*["'](?:text|image|input_|file|audio|video|document|tool[_-]result)"""
)
# A tool's result in the turn of a user, as templates and agents without a role for tools write it.
_RESULT_TAG = re.compile(
    r"\s*<(?P<tag>(?:tool|function)s?[_-]?(?:call[_-]?)?(?:response|result|output)s?|observation)\b[^<>]*>"
    r"(?P<text>.*?)</(?P=tag)>\s*",
    re.IGNORECASE | re.DOTALL,
)
_RESULT_LABEL = re.compile(
    r"\s*(?:Observation|OBSERVATION|(?:Tool|Function)(?: call)? (?:result|output|response)|EXECUTION RESULT of \[\w+\]"
    r"|\[\w+ for '[^\n]*'\] Result)\s*:"
)
_REPR = re.compile(r"""\s*[\[({]+\s*'""")  # how Python writes a list or an object
_LARGEST_REPR = 2**20  # characters; longer reprs aren't parsed
_JSON = json.JSONDecoder(parse_constant=lambda name: None)
_JSON_OF_ANY_NUMBER = json.JSONDecoder(
    parse_constant=lambda name: None, parse_int=lambda digits: int(digits) if len(digits) < 4300 else None
)


class ToolResult(NamedTuple):
    """Result of a tool call."""

    name: str  # of the tool; empty if the log doesn't say
    content: str


@dataclass
class Thread:
    """The part of a conversation that is kept."""

    turns: list[str] = field(default_factory=list)
    results: list[list[ToolResult]] = field(default_factory=list)  # after each turn
    systems: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    ended: bool = False  # before its last message


class _Message(NamedTuple):
    role: Role | None  # None: unknown
    content: Any
    source: Mapping[str, Any]


_UNREADABLE = _Message(None, None, {})


def read_thread(messages: Any) -> Thread | str:
    """The thread of a list of messages, or why there is none: `shape`, `no_user_turn`, `no_text` or `role`."""
    if not is_list(messages):
        return "shape"
    if len(messages) == 1 and is_list(messages[0]) and not is_texts(messages[0]):
        messages = messages[0]  # a batch of one
    thread, calls = Thread(), dict[str, str]()
    for item in messages:
        if item is None or (isinstance(item, Mapping) and all(value is None for value in item.values())):
            continue  # columnar formats fill up lists
        for message in list(_messages_of(item)) or [_UNREADABLE]:
            ended = _add(thread, message, calls)
            if ended is not None:
                if not thread.turns:
                    return "shape" if message is _UNREADABLE else ended
                thread.losses.append(ended)
                thread.ended = True
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
    """True if the row looks like a message: it has a content and a role, known or not."""
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
            text = content_of(part, ("text", "content")) if part.get("type") in _TEXT_TYPES else None
            text = text.get("value") if isinstance(text, Mapping) else text
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "\n".join(texts)


def content_of(row: Mapping[str, Any], keys: Sequence[str] = _CONTENT_KEYS) -> Any:
    """A message's content, under whichever name; an empty one only if there is no other."""
    values = [row[key] for key in keys if row.get(key) is not None]
    return next(filter(None, values), values[0] if values else None)


def pair_of(item: Any) -> Any:
    """The user's half of a question with its answer; None if it isn't such a pair."""
    if is_list(item) and len(item) == 2 and isinstance(item[0], str):
        return item[0]
    if isinstance(item, Mapping) and any(key in item for key in OTHER_HALVES):
        return next((item[key] for key in USER_HALVES if key in item), None)
    return None


def loads(text: str) -> Any:
    """The value of a JSON text. NaN, which isn't JSON but which many write, is nothing; so are endless integers."""
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # Python refuses to convert as many digits
        return _JSON_OF_ANY_NUMBER.decode(text)


def decode_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins there, and where it ends."""
    try:
        return _JSON.raw_decode(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return _JSON_OF_ANY_NUMBER.raw_decode(text, at)


def parsed(value: Any) -> Any:
    """A list or an object written as text, by JSON or by Python's repr as CSV exports do; else the value itself."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return loads(value)
    except (ValueError, RecursionError):
        if len(value) > _LARGEST_REPR or not _REPR.match(value):
            return value
    try:  # numpy writes no commas between objects
        return ast.literal_eval(re.sub(r"\}\s*\n\s*\{", "}, {", value.strip()))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """True if the value is a list and not a text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def is_texts(value: Any) -> TypeGuard[Sequence[str]]:
    """True if the value is a list of non-empty texts."""
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
        if isinstance(content, str) and _PART.match(content):
            content = parsed(content)
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
            if thread.turns:
                thread.losses.append("system_moved")
    elif role == "assistant":
        calls |= dict(_calls(source, content))
        if content and not thread.turns:
            thread.losses.append("opening")
    elif role == "tool":
        return _add_results(thread, source, content, calls)
    elif role == "user":
        return _add_turn(thread, source, content, calls)
    return "role" if role is None else None


def _add_turn(
    thread: Thread, source: Mapping[str, Any], content: Any, calls: Mapping[str, str]
) -> str | None:
    if is_list(content) and (results := list(filter(_result_in, content))):
        if ended := _add_results(thread, {}, results, calls):
            return ended
        content = [part for part in content if part not in results]
        if not content:
            return None
    text = None if any(source.get(key) for key in _ATTACHED) else text_of(content)
    if text is None and thread.turns and content is None:
        text = ""
    if text is None:
        return "no_text" if not thread.turns else "media"  # an image, a sound, a file
    returned, text = _returned(text)
    if not returned and thread.turns and (label := _RESULT_LABEL.match(text)):
        returned, text = [text[label.end() :]], ""
    for result in returned:
        _add_result(thread, "", result.strip())
    if not text.strip():
        if returned:
            return None
        return "no_user_turn" if not thread.turns else "empty_turn"
    thread.turns.append(text.strip())
    thread.results.append([])
    return None


def _add_results(
    thread: Thread, source: Mapping[str, Any], content: Any, calls: Mapping[str, str]
) -> str | None:
    """Keep a tool's message, or the results among a message's parts."""
    parts = content if is_list(content) else [content]
    inner = [_result_in(part) for part in parts]
    results = [(one, content_of(one, ("content", "response", "output", "result"))) for one in inner if one]
    for result, returned in results or [(source, content)]:
        if isinstance(returned, Mapping) and returned.get("type") in ("text", "json"):  # Vercel
            returned = returned.get("value", returned)
        text = "" if returned is None else text_of(returned)
        if text is None:
            listed = returned if is_list(returned) else [returned]
            if any(isinstance(part, Mapping) and "type" in part for part in listed):
                return "media"
            text = json.dumps(returned, ensure_ascii=False)  # the tool's own object
        name = result.get("name") or result.get("toolName")
        name = name or next((calls[number] for number in _ids(result) if number in calls), "")
        _add_result(thread, str(name), text)
    return None


def _add_result(thread: Thread, name: str, text: str) -> None:
    if thread.results:
        thread.results[-1].append(ToolResult(name, text))
    else:
        thread.losses.append("opening")


def _returned(text: str) -> tuple[list[str], str]:
    """The tools' results at the beginning of a text, and what follows them."""
    results = []
    while (result := _RESULT_TAG.match(text)) is not None:
        results.append(result["text"])
        text = text[result.end() :]
    return results, text


def _result_in(part: Any) -> Mapping[str, Any] | None:
    """The tool result that a part of a content holds, if any."""
    if not isinstance(part, Mapping):
        return None
    if part.get("type") in _RESULT_TYPES:
        return part
    return next((part[key] for key in _RESULT_KEYS if isinstance(part.get(key), Mapping)), None)


def _calls(message: Mapping[str, Any], content: Any) -> Iterator[tuple[str, str]]:
    """(id, name) of an answer's calls, which are not kept themselves."""
    listed = parsed(message.get("tool_calls"))
    parts = content if is_list(content) else ()
    for call in (*(listed if is_list(listed) else ()), *parts, message):
        if not isinstance(call, Mapping):
            continue
        inner = next((call[key] for key in _CALL_KEYS if isinstance(call.get(key), Mapping)), call)
        name = inner.get("name") or inner.get("toolName")
        if isinstance(name, str):
            yield from ((number, name) for number in (*_ids(call), *_ids(inner)))


def _ids(call: Mapping[str, Any]) -> Iterator[str]:
    return (str(call[key]) for key in _ID_KEYS if call.get(key))


def _role(name: str) -> Role | None:
    """The role by its name: `user`, `Human`, `HumanMessageChunk`, `MessageRole.USER`, `gpt-4`."""
    if name.lower().startswith(("gpt-", "claude-", "model_")):
        return "assistant"
    folded = re.sub(r"[\W_]+", "", name.rpartition(".")[2].lower())
    known = _ROLES.get(folded.removesuffix("chunk").removesuffix("message"))
    return "assistant" if known is None and folded.startswith("assistant") else known
