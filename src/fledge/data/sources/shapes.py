"""The shapes of chat data, and how to extract the user's turns from each. Answers are never read.

sharegpt   {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", ...}]}
messages   {"messages": [{"role": "user", "content": ...}, ...]}            OpenAI; content may be a list of parts
alpaca     {"instruction": ..., "input" or "context": ..., "output": ...}
turns      {"turns": ["first", "second"]}                                   all by the user
prompt     {"prompt": ...} or {"text": ...} or {"question": ...}, or a bare text
request    {"body": {"messages": [...]}} and similar: one logged request per row
alternating  {"data": ["first", answer, "second", answer]}                  UltraChat

A list may be written as JSON text. From a transcript ("Human: first Assistant: answer", as in HH-RLHF's `chosen` and
guanaco's `text`) the human turns are taken. A system prompt is a message of its own, or a column beside the turns:
{"system": ...}.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

_LISTS = ("messages", "conversations", "conversation", "dialogue", "dialog", "turns")
_TEXTS = ("prompt", "text", "question", "query", "input")
_BODIES = ("body", "request", "request_body", "requestBody", "payload", "params", "data")
_CATEGORIES = ("category", "workload", "task")
_SYSTEM_COLUMNS = ("system", "system_prompt")
_TURNS = {"turns": "turns", "alternating": "data"}  # shape -> column
_SPEAKER = re.compile("(?:^ *|### ?)(Human|User|Assistant):", re.MULTILINE)
_USERS, _SYSTEMS = ("user", "human", "prompter"), ("system", "developer")

SHAPES = ("sharegpt", "messages", "alpaca", "turns", "prompt", "request", "alternating")


class UserTurns(NamedTuple):
    """The parts of a row that are kept."""

    turns: tuple[str, ...]
    system: str | None
    category: str | None


def detect_shape(rows: Iterable[Any], field: str = "") -> str | None:
    """The shape of most rows, or of the contents of a field; None if no shape is recognised."""
    counts = Counter(shape for row in rows if (shape := _shape_of(row, field)) is not None)
    return counts.most_common(1)[0][0] if counts else None


def user_turns(row: Any, shape: str, field: str = "") -> UserTurns | str:
    """The user's turns of a row, or why there are none: `shape`, `no_user_turn` or `no_text`."""
    if shape == "request":
        return _from_request(row, field)
    category, system = _first(row, _CATEGORIES), _first(row, _SYSTEM_COLUMNS)
    if shape in ("sharegpt", "messages"):
        name = field or next((n for n in _LISTS if isinstance(row, Mapping) and n in row), "")
        messages = _value(row, name) if name else row
        return _from_messages(messages, system, category)
    if shape == "alpaca":
        instruction, more = _get(row, field or "instruction"), _first(row, ("input", "context"))
        if not isinstance(instruction, str):
            return "shape"
        return _from_turns(["\n\n".join([instruction, more] if more else [instruction])], system, category)
    if shape in _TURNS:
        texts = row if _is_list(row) else _value(row, field or _TURNS[shape])
        if not _is_list(texts):
            return "shape"
        return _from_turns(texts if shape == "turns" else texts[::2], system, category)
    if isinstance(row, str):
        return _from_text(row, None, None)
    name = field or next((n for n in _TEXTS if isinstance(_get(row, n), str)), "")
    text = _get(row, name) if name else _chosen(row)
    return _from_text(text, system, category) if isinstance(text, str) else "shape"


def _shape_of(row: Any, field: str) -> str | None:
    if field and isinstance(row, Mapping):
        value = _value(row, field)
        if not _is_texts(value):
            return _shape_of(value, "")
        # A list of texts under another name may contain answers: the user has to declare its shape.
        return next((shape for shape, column in _TURNS.items() if column == field), None)
    if isinstance(row, str):
        return "prompt"
    if _is_list(row):
        return "turns" if _is_texts(row) else _list_shape(row)
    if not isinstance(row, Mapping):
        return None
    for name in _LISTS:
        if _is_list(value := _value(row, name)) and (shape := _list_shape(value)):
            return shape
    if _is_list(_value(row, "turns")):
        return "turns"
    if isinstance(row.get("instruction"), str):
        return "alpaca"
    if any(isinstance(row.get(name), Mapping) for name in _BODIES):
        return "request"
    if any(isinstance(row.get(name), str) for name in _TEXTS) or _chosen(row):
        return "prompt"
    return "alternating" if _is_texts(_value(row, "data")) else None


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
            return "no_text"  # an image or a sound: later turns make no sense without it
        (turns if role in _USERS else systems).append(text)
    return _from_turns(turns, "\n\n".join(systems) or None, category)


def _from_text(text: str, system: str | None, category: str | None) -> UserTurns | str:
    """A prompt, or the human turns of a transcript."""
    if not _is_transcript(text):
        return _from_turns([text], system, category)
    _, *parts = _SPEAKER.split(text)  # text before the first speaker, speaker, words, speaker, words, ...
    spoken = zip(parts[::2], parts[1::2], strict=True)
    return _from_turns([words for speaker, words in spoken if speaker != "Assistant"], system, category)


def _from_request(row: Any, field: str) -> UserTurns | str:
    body, category = row, _first(row, _CATEGORIES)
    for name in (field, *_BODIES) if field else _BODIES:
        inner = _get(body, name)
        if isinstance(inner, str):
            try:
                inner = json.loads(inner)
            except (ValueError, RecursionError):
                continue
        if isinstance(inner, Mapping):
            body = inner
            break
    messages, system = _get(body, "messages"), _text(_get(body, "instructions") or _get(body, "system"))
    if _is_list(messages):
        return _from_messages(messages, system, category)
    prompt = _get(body, "input") if _get(body, "prompt") is None else _get(body, "prompt")
    if isinstance(prompt, str):
        return _from_text(prompt, system, category)
    if _is_list(prompt) and prompt and isinstance(prompt[0], Mapping):
        return _from_messages(prompt, system, category)
    return "no_text" if prompt is not None else "shape"


def _from_turns(turns: Sequence[Any], system: str | None, category: str | None) -> UserTurns | str:
    if not all(isinstance(turn, str) for turn in turns):
        return "no_text"
    texts = tuple(turn.strip() for turn in turns)
    if not texts or not texts[0]:
        return "no_user_turn"
    if not all(texts):
        texts = texts[: texts.index("")]  # turns after an empty one depend on what is missing
    return UserTurns(texts, system.strip() or None if system else None, category)


def _text(content: Any) -> str | None:
    """A message's text; parts are joined, with None for a part that isn't text."""
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
    """The first of these columns that contains text."""
    for name in names:
        value = _get(row, name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _get(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else None


def _value(row: Any, name: str) -> Any:
    """The value of a column; a list written as JSON text is parsed."""
    value = _get(row, name)
    if not isinstance(value, str) or not value.startswith("["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _chosen(row: Any) -> str | None:
    """The column `chosen` if it is a transcript; otherwise it is an answer."""
    value = _get(row, "chosen")
    return value if isinstance(value, str) and _is_transcript(value) else None


def _is_transcript(text: str) -> bool:
    return _SPEAKER.match(text.lstrip()) is not None


def _is_texts(value: Any) -> bool:
    return _is_list(value) and len(value) > 0 and all(isinstance(text, str) for text in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
