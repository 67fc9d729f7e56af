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
    is_given,
    passage,
    setting,
    system_in,
    template_options,
    tools_in,
    value_at,
)
from fledge.data.sources.exports import read_export
from fledge.data.sources.messages import (
    MEDIA,
    OTHER_HALVES,
    USER_HALVES,
    Thread,
    ToolResult,
    has_role,
    is_list,
    is_texts,
    pair_of,
    parsed,
    read_thread,
    role_of,
)
from fledge.data.sources.threads import NOW, after_history, by_user, is_history, spoken_thread, tree_thread
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
_ANSWERS = ("response", "responses", "rejected", "output", "outputs", "completion", "completions", "choices",
            "generations")  # fmt: skip
_TEXTS = ("prompt", "question", "query", "problem", "user_prompt", "user_input", "inputs", "text", "input")
# Texts that are a request's prompt in a server's own form, and what stands beside them: SGLang, TGI, Cohere.
_NATIVE = {"text": "sampling_params", "inputs": "parameters", "message": "chat_history"}
_WHOLE = ("text", "chosen")  # columns that hold whole conversations, if they hold any
_SPOKEN = ("text", "content", "value", "message", "body")  # of a row that is one message
_BODIES = ("body", "request", "request_body", "requestBody", "payload", "params", "data", "input", "inputs", "kwargs",
           "proxy_server_request", "inputBodyJson", "obj", "attributes")  # fmt: skip
_REQUEST_LISTS = ("messages", "contents", "prompt", "input")
_DEPTH = 5  # levels of wrappers around a request
_CATEGORIES = ("category", "workload", "task")
_PASSAGES = ("input", "context", "contexts", "passage", "passages", "document", "documents", "article", "background",
             "paragraph", "knowledge", "evidence", "ctxs", "chunks", "docs", "retrieved_documents",
             "retrieved_contexts", "search_results", "story", "support")  # fmt: skip
_CHOICES = ("choices", "options", "answer_choices")
_LETTERS = "ABCDEFGHIJ"
_PARENTS = ("parent_id", "parent", "parent_message_id", "reply_to", "previous_response_id")
_INDEXES = ("turn", "turn_id", "turn_index", "turn_number", "message_index", "position", "seq")
_THREADS = ("conversation_id", "conversationId", "thread_id", "threadId", "session_id", "sessionId", "chat_id",
            "dialogue_id", "dialog_id", "conv_id")  # fmt: skip
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
    if not field and (export := read_export(row)) is not None:
        if isinstance(export, str):
            return export
        found = _from_thread(read_thread(export.messages), {"system": export.system})
        return found if isinstance(found, str) else found._replace(losses=(*found.losses, *export.losses))
    if shape == "request":
        return _from_request(row, field)
    if isinstance(row, str):
        return _from_thread(spoken_thread(row, is_prompt=False), {})
    columns = columns_beside(row, field)
    if shape in ("sharegpt", "messages"):
        name = field or _list_name(row)
        return _from_messages(value_at(row, name) if name else row, columns)
    if shape in _TURNS:
        texts = row if is_list(row) else value_at(row, field or _TURNS[shape])
        if not is_list(texts):
            return "shape"
        return _from_thread(by_user(texts if shape == "turns" else texts[::2]), columns)
    return _from_columns(row, columns, field or ("instruction" if shape == "alpaca" else ""))


def thread_of(row: Any) -> Any:
    """The conversation that a row is one message of; None if it doesn't say, or is none."""
    return next((row[name] for name in _THREADS if row.get(name)), None) if _is_message(row) else None


def is_prompts_row(row: Any) -> bool:
    """True if the text in the row's columns is certain to be a user's."""
    return isinstance(row, Mapping) and any(isinstance(row.get(name), str) for name in _TEXTS[:6])


def _list_name(row: Any) -> str:
    """The column with a list of messages: one of the usual names, or any in which a user speaks; empty if none."""
    lists = [name for name in _LISTS if is_list(value_at(row, name))]
    spoken = [name for name in lists if _list_shape(value_at(row, name))]
    if spoken or lists or not isinstance(row, Mapping):
        return (spoken or lists or [""])[0]
    others = (n for n in row if n not in _ANSWERS and not is_history(n) and is_list(value_at(row, n)))
    return next((name for name in others if _has_user(value_at(row, name))), "")


def _text_name(row: Any) -> str:
    """The column with a prompt: certain names first, then what has an answer beside it; empty if none."""
    if not isinstance(row, Mapping):
        return ""
    halves = USER_HALVES if any(name in row for name in OTHER_HALVES) else ()
    names = [*_TEXTS[:6], *halves, *_TEXTS[6:], *(NOW if any(map(is_history, row)) else ())]
    texts = [name for name in names if isinstance(row.get(name), str) and row[name].strip()]
    messages = [name for name in NOW if name in names and has_role(row.get(name))]
    return next(iter([*texts, *messages]), "prompt" if isinstance(row.get("prompt"), Mapping) else "")


def _has_user(messages: Any) -> bool:
    return is_list(messages) and any(
        isinstance(m, Mapping) and role_of(m) == "user" for m in map(parsed, messages)
    )


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
    if read_export(row) is not None:
        return "messages"
    listed = _list_name(row)
    if listed in _LISTS and (shape := _list_shape(value_at(row, listed))):
        return shape
    if is_list(value_at(row, "turns")):
        return "turns"
    if isinstance(row.get("instruction"), str):
        return "alpaca"
    if any(isinstance(value_at(row, name), Mapping) for name in _BODIES) or is_list(value_at(row, "input")):
        return "request"
    if any(isinstance(row.get(name), str) for name in _TEXTS) or _chosen(row) or _is_message(row):
        return "prompt"
    if _text_name(row):
        return "prompt"
    if listed:
        return _list_shape(value_at(row, listed))
    return "alternating" if is_texts(value_at(row, "data")) else None


def _list_shape(messages: Sequence[Any]) -> str | None:
    first = next((one for one in map(parsed, messages) if one is not None), None)
    if is_list(first) and len(messages) == 1 and len(first) and has_role(parsed(first[0])):
        first = first[0]
    if isinstance(first, Mapping) and "from" in first:
        return "sharegpt"
    return "messages" if has_role(first) or pair_of(first) is not None else None


def _from_thread(thread: Thread | str, columns: Mapping[str, Any]) -> UserTurns | str:
    """The user's side of a list of messages; `columns` stand beside it."""
    if isinstance(thread, str):
        return thread
    if is_given(columns.get("previous_response_id")):
        return "later_turn"
    turns, losses = list(thread.turns), list(thread.losses)
    if any(value_at(columns, name) for name in MEDIA):
        first = next((n for n, turn in enumerate(turns) if "<image>" in turn or "<video>" in turn), 0)
        if not first:
            return "no_text"
        turns, losses = turns[:first], [*losses, "media"]
    system, media = system_in(columns)
    systems = [system] if system else []
    options = template_options(columns)
    tools, others = tools_in(columns)
    lost = {
        "system_media": media,
        "other_tools": others,
        "prefill": setting(columns, "continue_final_message"),
    }
    losses += [name for name, found in lost.items() if found]
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


def _from_messages(messages: Any, columns: Mapping[str, Any]) -> UserTurns | str:
    """The user's side of a list of messages; passages beside it are for the template, or for code that isn't here."""
    found = _from_thread(after_history(read_thread(messages), columns), columns)
    if isinstance(found, str) or not any(passage(value_at(columns, n)) for n in _PASSAGES if n != "input"):
        return found
    return found._replace(losses=(*found.losses, "documents"))


def _from_columns(row: Any, columns: Mapping[str, Any], field: str) -> UserTurns | str:
    """A question in one column, and what belongs to it in others: passage, choices, history."""
    if _is_message(row):
        if role_of(row) != "user":
            return "answer" if role_of(row) == "assistant" else "no_user_turn"
        if any(is_given(get(row, name)) for name in _PARENTS) or _index(row) > 1:
            return "later_turn"  # what was said before it stands in other rows
        field = field or next(name for name in _SPOKEN if isinstance(row.get(name), str))
    name = field or _text_name(row)
    inner = value_at(row, name) if name else None
    text = get(row, name) or inner if name else _chosen(row)
    if is_texts(text) and len(text) == 1:
        text = text[0]
    if isinstance(inner, Mapping) and has_role(inner):
        return _from_thread(after_history(tree_thread(inner), row), columns)
    if is_list(inner) and _list_shape(inner):
        return _from_messages(inner, columns)
    if isinstance(inner, Mapping) and _list_name(inner):
        return _from_request(inner, "")
    if not isinstance(text, str):
        return "shape"
    if not text.strip():
        return "no_user_turn"
    passages = [passage(value_at(row, n)) for n in _PASSAGES if n not in (name, field)]
    if name == "instruction":
        passages = [*(passage(get(row, n)) for n in ("question", "query")), *passages]
    elif name in ("question", "query") and text.strip() not in (beside := passage(get(row, "text"))):
        passages.append(beside)  # otherwise it is the row's own text, with the answer
    choices = next((c for n in _CHOICES if (c := choices_of(value_at(row, n)))), "")
    if not choices and isinstance(get(row, "A"), str) and isinstance(get(row, "B"), str):
        choices = choices_of({letter: row[letter] for letter in _LETTERS if letter in row})
    thread = spoken_thread(text, is_prompt=name not in _WHOLE and bool(name))
    if isinstance(thread, str):
        return thread
    given = dict.fromkeys([thread.turns[-1], *passages, choices])
    thread.turns[-1] = "\n\n".join(filter(None, given))
    return _from_thread(after_history(thread, row), columns)


def _from_request(row: Any, field: str) -> UserTurns | str:
    start = value_at(row, field) if field else row
    for body, columns in _requests(parsed(start), columns_beside(row, field) if field else {}):
        listed = next((v for n in _REQUEST_LISTS if is_list(v := value_at(body, n)) and len(v)), None)
        text = next((v for n in ("prompt", "input") if isinstance(v := get(body, n), str)), None)
        native = next(
            (
                n
                for n, beside in _NATIVE.items()
                if isinstance(body.get(n), str) and (beside in body or any(map(is_history, body)))
            ),
            "",
        )
        if is_list(listed) and _list_shape(listed):
            return _from_messages(listed, columns)
        if is_texts(listed) and len(listed) == 1:  # a batch of one
            text = listed[0]
        if text is not None:
            return _from_thread(spoken_thread(text, is_prompt=True), columns)
        if native:
            return _from_columns(body, columns, native)
        if get(body, "prompt") is not None or listed is not None:
            return "no_text"
    return "shape"


def _requests(
    row: Any, outer: Mapping[str, Any], depth: int = 0
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Candidates for the request, and all columns beside its messages; wrappers are opened, outermost first."""
    if is_list(row):
        yield {"messages": row}, {**outer, "messages": row}
    if not isinstance(row, Mapping):
        return
    columns = {**outer, **row}
    if is_list(value_at(row, "messages")) or is_list(value_at(row, "contents")):
        yield row, columns
    elif depth < _DEPTH:
        for name in _BODIES:
            inner = value_at(row, name)
            if isinstance(inner, Mapping) or (is_list(inner) and len(inner) and has_role(parsed(inner[0]))):
                yield from _requests(inner, columns, depth + 1)
        for name in row:  # wrappers of collectors: jsonPayload, _source, log, ...
            inner = None if name in (*_BODIES, *_ANSWERS) else value_at(row, name)
            found = _requests(inner, columns, depth + 1) if isinstance(inner, Mapping) else ()
            yield from (one for one in found if _has_user(value_at(one[0], "messages")))
    yield row, columns


def _is_message(row: Any) -> bool:
    """True if the row is a single message of a conversation that spans several rows."""
    if not isinstance(row, Mapping) or role_of({k: v for k, v in row.items() if k != "type"}) is None:
        return False
    return any(isinstance(row.get(name), str) for name in _SPOKEN)


def _index(row: Mapping[str, Any]) -> int:
    """A message's place in its conversation, from 0 or 1; a system prompt may come before a user's first."""
    return next((row[name] for name in _INDEXES if isinstance(row.get(name), int)), 0)


def _chosen(row: Any) -> str | None:
    """The column `chosen` if it is a transcript; otherwise it is an answer."""
    value = get(row, "chosen")
    return value if isinstance(value, str) and read_transcript(value, is_prompt=False) is not None else None
