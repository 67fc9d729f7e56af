"""The shapes chat data comes in, and how a user's turns are taken out of each. Answers are never looked at.

sharegpt   {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", ...}]}
messages   {"messages": [{"role": "user", "content": ...}, ...]}            OpenAI; content may be a list of parts
alpaca     {"instruction": ..., "input" or "context": ..., "output": ...}
turns      {"turns": ["first", "second"]}
prompt     {"prompt": ...} or {"text": ...} or {"question": ...}, or a bare text
request    {"body": {"messages": [...]}} and the like: one logged request a row

A system prompt is a message of its own, or lies beside the turns: {"system": ...}.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_LISTS = ("messages", "conversations", "conversation", "dialogue", "dialog")
_TEXTS = ("prompt", "text", "question", "query", "input")
_BODIES = ("body", "request", "request_body", "requestBody", "payload", "params", "data")
_CATEGORIES = ("category", "workload", "task")
_SYSTEM_COLUMNS = ("system", "system_prompt")
_USERS, _SYSTEMS = ("user", "human", "prompter"), ("system", "developer")

SHAPES = ("sharegpt", "messages", "alpaca", "turns", "prompt", "request")


class UserTurns(NamedTuple):
    """What is kept of a row."""

    turns: tuple[str, ...]
    system: str | None
    category: str | None


def detect_shape(rows: Iterable[Any]) -> str | None:
    """The shape of most of the rows; None if none is known."""
    found = Counter(shape for shape in map(_shape_of, rows) if shape is not None)
    return found.most_common(1)[0][0] if found else None


def user_turns(row: Any, shape: str, field: str = "") -> UserTurns | str:
    """The user's turns of a row, or the reason why there are none: `shape`, `no_user_turn` or `no_text`."""
    if shape == "request":
        return _from_request(row, field)
    category, system = _first(row, _CATEGORIES), _first(row, _SYSTEM_COLUMNS)
    if shape in ("sharegpt", "messages"):
        name = field or next((n for n in _LISTS if isinstance(row, Mapping) and n in row), "")
        messages = _get(row, name) if name else row
        return _from_messages(messages, system, category)
    if shape == "alpaca":
        instruction, more = _get(row, field or "instruction"), _first(row, ("input", "context"))
        if not isinstance(instruction, str):
            return "shape"
        return _kept(["\n\n".join([instruction, more] if more else [instruction])], system, category)
    if shape == "turns":
        turns = row if _is_list(row) else _get(row, field or "turns")
        return _kept(turns, system, category) if _is_list(turns) else "shape"
    if isinstance(row, str):
        return _kept([row], None, None)
    name = field or next((n for n in _TEXTS if isinstance(_get(row, n), str)), "")
    text = _get(row, name)
    return _kept([text], system, category) if isinstance(text, str) else "shape"


def _shape_of(row: Any) -> str | None:
    if isinstance(row, str):
        return "prompt"
    if _is_list(row):
        return "turns" if row and all(isinstance(turn, str) for turn in row) else _list_shape(row)
    if not isinstance(row, Mapping):
        return None
    for name in _LISTS:
        if _is_list(row.get(name)) and (shape := _list_shape(row[name])):
            return shape
    if _is_list(row.get("turns")):
        return "turns"
    if isinstance(row.get("instruction"), str):
        return "alpaca"
    if any(isinstance(row.get(name), Mapping) for name in _BODIES):
        return "request"
    return "prompt" if any(isinstance(row.get(name), str) for name in _TEXTS) else None


def _list_shape(messages: Sequence[Any]) -> str | None:
    first = messages[0] if len(messages) else None
    if not isinstance(first, Mapping):
        return None
    return "sharegpt" if "from" in first else "messages" if "role" in first else None


def _from_messages(messages: Any, system: str | None, category: str | None) -> UserTurns | str:
    if not _is_list(messages) or not all(isinstance(message, Mapping) for message in messages):
        return "shape"
    turns: list[str] = []
    systems = [system] if system else []
    for message in messages:
        role = str(message.get("role", message.get("from", ""))).lower()
        if role not in _USERS and role not in _SYSTEMS:
            continue
        text = _text(message.get("content", message.get("value")))
        if text is None:
            return "no_text"  # an image or a sound: the later turns make no sense without it
        (turns if role in _USERS else systems).append(text)
    return _kept(turns, "\n\n".join(systems) or None, category)


def _from_request(row: Any, field: str) -> UserTurns | str:
    body, category = row, _first(row, _CATEGORIES)
    for name in (field, *_BODIES) if field else _BODIES:
        inner = _get(body, name)
        if isinstance(inner, str):
            try:
                inner = json.loads(inner)
            except ValueError:
                continue
        if isinstance(inner, Mapping):
            body = inner
            break
    messages, system = _get(body, "messages"), _first(body, ("instructions", "system"))
    if _is_list(messages):
        return _from_messages(messages, system, category)
    asked = _get(body, "input") if _get(body, "prompt") is None else _get(body, "prompt")
    if isinstance(asked, str):
        return _kept([asked], system, category)
    if _is_list(asked) and asked and isinstance(asked[0], Mapping):
        return _from_messages(asked, system, category)
    return "no_text" if asked is not None else "shape"


def _kept(turns: Sequence[Any], system: str | None, category: str | None) -> UserTurns | str:
    if not all(isinstance(turn, str) for turn in turns):
        return "no_text"
    texts = tuple(turn.strip() for turn in turns)
    if not texts or not texts[0]:
        return "no_user_turn"
    if not all(texts):
        texts = texts[: texts.index("")]  # what comes after an empty turn answers something that isn't there
    return UserTurns(texts, system.strip() or None if system else None, category)


def _text(content: Any) -> str | None:
    """A message's text; parts are joined, and None stands for a part that isn't text."""
    if isinstance(content, str):
        return content
    if not _is_list(content):
        return None
    parts = []
    for part in content:
        text = part.get("text") if isinstance(part, Mapping) else part
        if not isinstance(text, str):
            return None
        parts.append(text)
    return "\n".join(parts)


def _first(row: Any, names: Sequence[str]) -> str | None:
    """The first of these columns that holds some text."""
    for name in names:
        value = _get(row, name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _get(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else None


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
