"""Conversations rewritten for chat templates that refuse them as they are: what is said stays the same.

assistant: look(sea) [call_8fK2...], look(wood) [toolu_01A...]      assistant: look(sea) [3f1c9a0b2]
tool: 1 [call_8fK2...]                                          ->  tool: 1 [3f1c9a0b2]
tool: 2 [toolu_01A...]                                              assistant: look(wood) [b7704c51e]
                                                                    tool: 2 [b7704c51e]
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

_ID_LENGTH = 9  # letters and digits: the ids that Mistral's templates take

Messages = Sequence[dict[str, Any]]


def rewritten(messages: Messages) -> Iterator[Messages]:
    """Other forms of a conversation with calls, the one that changes least first."""
    if not any(message.get("tool_calls") or message.get("tool_call_id") for message in messages):
        return
    if any(len(message.get("tool_calls") or ()) > 1 for message in messages):
        yield one_call_a_turn(messages)
    yield with_short_ids(messages)
    yield one_call_a_turn(with_short_ids(messages))


def with_short_ids(messages: Messages) -> Messages:
    """Ids of calls made by other servers as nine letters and digits; a call's and its result's stay the same."""
    changed = []
    for message in messages:
        new = dict(message)
        if calls := message.get("tool_calls"):
            new["tool_calls"] = [{**call, "id": _short(call.get("id"))} for call in calls]
        if "tool_call_id" in message:
            new["tool_call_id"] = _short(message["tool_call_id"])
        changed.append(new)
    return changed


def _short(call_id: Any) -> Any:
    if not isinstance(call_id, str) or _is_short(call_id):
        return call_id
    # The same in every request, so that the prefix cache holds it, and hardly ever that of another call.
    return hashlib.sha256(call_id.encode(errors="replace")).hexdigest()[:_ID_LENGTH]


def _is_short(call_id: str) -> bool:
    return len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum()


def one_call_a_turn(messages: Messages) -> Messages:
    """Several calls in one message as a message each, followed by its result."""
    changed: list[dict[str, Any]] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            changed.append(dict(message))
            continue
        results = []
        while position < len(messages) and messages[position].get("role") == "tool":
            results.append(messages[position])
            position += 1
        for number, call in enumerate(calls):
            # What was said and thought came before the first call.
            said = message if number == 0 else {"role": message["role"], "content": ""}
            changed.append({**said, "tool_calls": [call]})
            answers = [result for result in results if result.get("tool_call_id") == call.get("id")]
            changed += map(dict, answers)
            results = [result for result in results if result not in answers]
        changed += map(dict, results)
    return changed
