"""The shapes of chat data, and how to extract the user's turns from each. Answers are never read.

sharegpt   {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", ...}]}
messages   {"messages": [{"role": "user", "content": ...}, ...]}            OpenAI, and others: messages.py
alpaca     {"instruction": ..., "input" or "context": ..., "history": [[question, answer], ...], "output": ...}
turns      {"turns": ["first", "second"]}                                   all by the user
prompt     {"prompt": ...}, {"question": ..., "context": ...}, {"text": ...}, or a bare text
request    {"body": {"messages": [...]}} and similar: one logged request per row
alternating  {"data": ["first", answer, "second", answer]}                  UltraChat

Lists and objects may be written as JSON text, and stand at any depth. Of a conversation rendered into one text the
users' side is taken (transcripts.py). A system prompt is a message of its own, or a column beside the turns; `tools`
and `chat_template_kwargs` are columns, or fields of the request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fledge.data.sources.columns import (
    choices_of,
    columns_beside,
    first_text,
    get,
    passage,
    system_in,
    tools_in,
    value_at,
)
from fledge.data.sources.messages import (
    Thread,
    ToolResult,
    content_of,
    has_role,
    is_list,
    is_texts,
    pair_of,
    parsed,
    read_thread,
    role_of,
)
from fledge.data.sources.transcripts import read_transcript

_LISTS = (
    "messages",
    "conversations",
    "conversation",
    "dialogue",
    "dialog",
    "turns",
    "contents",
    "prompt",
    "chosen",
)
_TEXTS = ("prompt", "question", "query", "text", "input")
_WHOLE = ("text", "chosen")  # columns that hold whole conversations, if they hold any
_SPOKEN = ("text", "content", "value", "message", "body")  # of a row that is one message
_BODIES = ("body", "request", "request_body", "requestBody", "payload", "params", "data", "input", "inputs", "kwargs",
           "proxy_server_request", "inputBodyJson")  # fmt: skip
_DEPTH = 5  # of wrappers around a request
_CATEGORIES = ("category", "workload", "task")
_PASSAGES = ("input", "context", "contexts", "passage", "passages", "document", "documents", "article", "background",
             "paragraph", "knowledge", "evidence")  # fmt: skip
_CHOICES = ("choices", "options")
_HISTORIES = ("history", "chat_history", "dialog_history", "conversation_history", "previous_turns")
_MEDIA = ("image", "images", "video", "videos", "audio", "audios", "attachments")
_PARENTS = ("parent_id", "parent", "parent_message_id", "reply_to")
_TURNS = {"turns": "turns", "alternating": "data"}  # shape -> column

SHAPES = ("sharegpt", "messages", "alpaca", "turns", "prompt", "request", "alternating")


class UserTurns(NamedTuple):
    """The parts of a row that are kept."""

    turns: tuple[str, ...]
    system: str | None = None
    category: str | None = None
    tools: str = ""  # JSON: functions on offer, as OpenAI describes them
    template_options: str = ""  # JSON: `chat_template_kwargs`
    results: tuple[tuple[ToolResult, ...], ...] = ()  # of tools, after each turn; empty if there are none
    losses: tuple[str, ...] = ()  # what the target would have read, but isn't kept


def detect_shape(rows: Iterable[Any], field: str = "") -> str | None:
    """The shape of most rows, or of the contents of a field; None if no shape is recognised."""
    counts = Counter(shape for row in rows if (shape := _shape_of(row, field)) is not None)
    return counts.most_common(1)[0][0] if counts else None


def user_turns(row: Any, shape: str, field: str = "") -> UserTurns | str:
    """The user's turns of a row, or why there are none: `shape`, `no_user_turn`, `no_text`, `answer`, ..."""
    row = parsed(row)
    if shape == "request":
        return _from_request(row, field)
    if isinstance(row, str):
        return _from_text(row, {}, is_prompt=False)
    columns = columns_beside(row, field)
    if shape in ("sharegpt", "messages"):
        name = field or next((n for n in _LISTS if is_list(value_at(row, n))), "")
        return _from_thread(read_thread(value_at(row, name) if name else row), columns)
    if shape in _TURNS:
        texts = row if is_list(row) else value_at(row, field or _TURNS[shape])
        if not is_list(texts):
            return "shape"
        return _from_turns(texts if shape == "turns" else texts[::2], columns)
    return _from_columns(row, columns, field or ("instruction" if shape == "alpaca" else ""))


def _shape_of(row: Any, field: str) -> str | None:
    row = parsed(row)
    if field and isinstance(row, Mapping):
        value = value_at(row, field)
        if not is_texts(value):
            return _shape_of(value, "")
        # A list of texts under another name may contain answers: the user has to declare its shape.
        return next((shape for shape, column in _TURNS.items() if column == field), None)
    if isinstance(row, str):
        return "prompt"
    if is_list(row):
        return _list_shape(row) or ("turns" if is_texts(row) else None)
    if not isinstance(row, Mapping):
        return None
    for name in _LISTS:
        if is_list(value := value_at(row, name)) and (shape := _list_shape(value)):
            return shape
    if is_list(value_at(row, "turns")):
        return "turns"
    if isinstance(row.get("instruction"), str):
        return "alpaca"
    if any(isinstance(value_at(row, name), Mapping) for name in _BODIES) or is_list(value_at(row, "input")):
        return "request"
    if any(isinstance(row.get(name), str) for name in _TEXTS) or _chosen(row) or _is_message(row):
        return "prompt"
    if isinstance(row.get("prompt"), Mapping):
        return "prompt"  # a tree of OASST
    return "alternating" if is_texts(value_at(row, "data")) else None


def _list_shape(messages: Sequence[Any]) -> str | None:
    first = parsed(messages[0]) if len(messages) else None
    if is_list(first) and len(messages) == 1 and len(first) and isinstance(first[0], Mapping):
        first = first[0]
    if isinstance(first, Mapping) and "from" in first:
        return "sharegpt"
    return "messages" if has_role(first) or pair_of(first) is not None else None


def _from_thread(thread: Thread | str, columns: Mapping[str, Any]) -> UserTurns | str:
    """The user's side of a list of messages; `columns` stand beside it."""
    if isinstance(thread, str):
        return thread
    turns, losses = list(thread.turns), list(thread.losses)
    if any(value_at(columns, name) for name in _MEDIA):
        first = next((n for n, turn in enumerate(turns) if "<image>" in turn or "<video>" in turn), 0)
        if not first:
            return "no_text"
        turns, losses = turns[:first], [*losses, "media"]
    system, media = system_in(columns)
    systems = [system] if system else []
    if media:
        losses.append("system_media")
    options = value_at(columns, "chat_template_kwargs") or value_at(
        columns, "extra_body.chat_template_kwargs"
    )
    options = dict(options) if isinstance(options, Mapping) else {}
    if isinstance(effort := get(columns, "reasoning_effort"), str):
        options.setdefault("reasoning_effort", effort)  # as servers do
    tools, others = tools_in(columns)
    if others:
        losses.append("other_tools")
    if columns.get("documents") and "messages" in columns:  # templates render these of a request themselves
        losses.append("documents")
    results = tuple(map(tuple, thread.results[: len(turns)]))
    return UserTurns(
        tuple(turns),
        "\n\n".join([*systems, *thread.systems]) or None,
        first_text(columns, _CATEGORIES),
        json.dumps(tools, ensure_ascii=False) if tools else "",
        json.dumps(options, sort_keys=True, ensure_ascii=False) if options else "",
        results if any(results) else (),
        tuple(dict.fromkeys(losses)),
    )


def _from_turns(texts: Sequence[Any], columns: Mapping[str, Any]) -> UserTurns | str:
    return _from_thread(read_thread([{"role": "user", "content": text} for text in texts]), columns)


def _from_text(text: str, columns: Mapping[str, Any], *, is_prompt: bool) -> UserTurns | str:
    """A prompt, or the users' side of a rendered conversation."""
    transcript = read_transcript(text, is_prompt=is_prompt)
    if isinstance(transcript, str):
        return transcript
    turns = [text] if transcript is None else transcript.turns
    found = _from_turns(turns, columns)
    if isinstance(found, str) or transcript is None or transcript.system is None:
        return found
    return found._replace(system="\n\n".join(filter(None, [found.system, transcript.system])))


def _from_columns(row: Any, columns: Mapping[str, Any], field: str) -> UserTurns | str:
    """A question in one column, and what belongs to it in others: passage, choices, history."""
    if field in ("", "prompt") and isinstance(tree := value_at(row, "prompt"), Mapping):
        return _from_tree(tree, columns)
    if _is_message(row):
        if role_of(row) != "user":
            return "answer" if role_of(row) == "assistant" else "no_user_turn"
        if any(get(row, name) for name in _PARENTS):
            return "later_turn"  # what was said before it stands in other rows
        field = field or next(name for name in _SPOKEN if isinstance(row.get(name), str))
    name = field or next((n for n in _TEXTS if isinstance(get(row, n), str) and row[n].strip()), "")
    text = value_at(row, name) if name else _chosen(row)
    if is_texts(text) and len(text) == 1:
        text = text[0]
    if not isinstance(text, str):
        return "shape"
    passages = [p for n in _PASSAGES if n not in (name, field) and (p := passage(value_at(row, n)))]
    if name == "instruction":
        passages = [*(passage(get(row, n)) for n in ("question", "query")), *passages]
    elif name in ("question", "query"):
        passages.append(passage(get(row, "text")))
    choices = next((c for n in _CHOICES if (c := choices_of(value_at(row, n)))), "")
    history = next((h for n in _HISTORIES if (h := value_at(row, n))), None)
    whole = "\n\n".join(filter(None, [text.strip(), *dict.fromkeys(passages), choices]))
    if not text.strip():
        return "no_user_turn"
    if whole == text.strip() and not history:
        return _from_text(text, columns, is_prompt=name not in _WHOLE and bool(name))
    earlier = Thread() if history is None else read_thread(history)
    if isinstance(earlier, str) or earlier.losses:
        return "history"
    earlier.turns.append(whole)
    earlier.results.append([])
    return _from_thread(earlier, columns)


def _from_tree(node: Mapping[str, Any], columns: Mapping[str, Any]) -> UserTurns | str:
    """The first branch of a tree of messages: {"text": ..., "role": "prompter", "replies": [...]}."""
    messages: list[dict[str, Any]] = []
    branch: Any = node
    while isinstance(branch, Mapping):
        messages.append({"role": role_of(branch) or "", "content": content_of(branch)})
        replies = branch.get("replies") or branch.get("children")
        branch = replies[0] if is_list(replies) and len(replies) else None
    return _from_thread(read_thread(messages), columns)


def _from_request(row: Any, field: str) -> UserTurns | str:
    start = value_at(row, field) if field and value_at(row, field) is not None else row
    category = first_text(row, _CATEGORIES)
    found: UserTurns | str = "shape"
    for body in _requests(parsed(start)):
        columns = body if isinstance(body, Mapping) else columns_beside(row, field)
        listed = next(
            (v for n in ("messages", "contents", "prompt", "input") if is_list(v := value_at(columns, n))),
            None,
        )
        text = next((v for n in ("prompt", "input") if isinstance(v := get(columns, n), str)), None)
        if is_list(body):
            found = _from_thread(read_thread(body), columns)
        elif is_list(listed) and _list_shape(listed):
            found = _from_thread(read_thread(listed), columns)
        elif is_texts(listed) and len(listed) == 1:  # a batch of one
            found = _from_text(listed[0], columns, is_prompt=True)
        elif text is not None:
            found = _from_text(text, columns, is_prompt=True)
        elif get(columns, "prompt") is not None or listed is not None:
            found = "no_text"
        else:
            continue
        break
    if isinstance(found, str):
        return found
    return found._replace(category=category or found.category)


def _requests(row: Any, depth: int = 0) -> Iterator[Any]:
    """What may be the request, outermost first; wrappers are opened as long as nothing else is in them."""
    if is_list(row):
        yield row
        return
    if not isinstance(row, Mapping):
        return
    if is_list(value_at(row, "messages")) or is_list(value_at(row, "contents")):
        yield row
    elif depth < _DEPTH:
        for name in _BODIES:
            inner = value_at(row, name)
            if isinstance(inner, Mapping) or (is_list(inner) and len(inner) and has_role(parsed(inner[0]))):
                yield from _requests({**row, "messages": inner} if is_list(inner) else inner, depth + 1)
    yield row


def _is_message(row: Any) -> bool:
    """Whether the row is one message of a conversation whose others are in other rows."""
    if not isinstance(row, Mapping) or role_of({k: v for k, v in row.items() if k != "type"}) is None:
        return False
    return any(isinstance(row.get(name), str) for name in _SPOKEN)


def _chosen(row: Any) -> str | None:
    """The column `chosen` if it is a transcript; otherwise it is an answer."""
    value = get(row, "chosen")
    return value if isinstance(value, str) and read_transcript(value, is_prompt=False) is not None else None
