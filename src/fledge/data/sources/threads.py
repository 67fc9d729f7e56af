"""Threads of a row's own text, and of the column beside it with what was said before.

{"question": "two", "chat_history": [{"role": "user", "content": "one"}, ...]}
{"text": "two", "past_user_inputs": ["one"], "generated_responses": [an answer]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fledge.data.sources.columns import is_given, value_at
from fledge.data.sources.messages import Thread, content_of, is_list, read_thread, role_of
from fledge.data.sources.transcripts import read_transcript

# Columns with the earlier conversation: chat_history, previousMessages; past_user_inputs has the user's turns alone.
_EARLIER = r"(?:past|previous|prior|earlier|preceding)_?"
_ASKED = re.compile(rf"{_EARLIER}(?:user_?)?(?:inputs|questions|queries|prompts)", re.IGNORECASE)
_HISTORY = re.compile(
    r"(?:(?:chat|dialog(?:ue)?|conversation|message|session)_?)?history"
    rf"|{_EARLIER}(?:\w+_)?(?:turns|messages|dialog(?:ue)?|conversation|chat|utterances)|{_ASKED.pattern}",
    re.IGNORECASE,
)
# The row's own turn, where such a column stands beside it.
NOW = ("message", "user_message", "current_message", "new_message", "last_message", "utterance", "content")


def is_history(name: Any) -> bool:
    """True if a column of this name holds what was said before the row's own turn."""
    return isinstance(name, str) and _HISTORY.fullmatch(name) is not None


def by_user(texts: Sequence[Any]) -> Thread | str:
    """The thread of texts that are all by the user."""
    return read_thread([{"role": "user", "content": text} for text in texts])


def spoken_thread(text: str, *, is_prompt: bool) -> Thread | str:
    """A prompt, or the users' side of a rendered conversation."""
    messages = read_transcript(text, is_prompt=is_prompt)
    if isinstance(messages, str):
        return messages
    return by_user([text]) if messages is None else read_thread(messages)


def after_history(thread: Thread | str, columns: Any) -> Thread | str:
    """The thread after what was said before it, which stands in another column."""
    names = filter(is_history, columns) if isinstance(columns, Mapping) else ()
    name = next((name for name in names if is_given(columns[name])), None)
    if name is None or isinstance(thread, str):
        return thread
    history = value_at(columns, name)
    if _ASKED.fullmatch(name):
        earlier = by_user(history if is_list(history) else [history])
    else:
        earlier = (
            spoken_thread(history, is_prompt=False) if isinstance(history, str) else read_thread(history)
        )
    if isinstance(earlier, str) or earlier.ended:
        return "history"
    if thread.turns[: len(earlier.turns)] == earlier.turns:
        return thread  # the whole conversation
    for part in ("turns", "results", "systems", "losses"):
        getattr(earlier, part).extend(getattr(thread, part))
    return earlier


def tree_thread(node: Mapping[str, Any]) -> Thread | str:
    """The first branch of a tree of messages: {"text": ..., "role": "prompter", "replies": [...]}."""
    messages: list[dict[str, Any]] = []
    branch: Any = node
    while isinstance(branch, Mapping):
        messages.append({"role": role_of(branch) or "", "content": content_of(branch)})
        replies = branch.get("replies") or branch.get("children")
        branch = replies[0] if is_list(replies) and len(replies) else None
    return read_thread(messages)
