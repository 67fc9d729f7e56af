"""The columns of a row: by name or path, and as the text of a passage, choices, a system prompt or tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fledge.data.sources.messages import is_list, is_texts, parsed, text_of

_SYSTEM_COLUMNS = ("system", "system_prompt", "instructions", "system_instruction", "systemInstruction")
_PASSAGE_TEXTS = (
    "title",
    "text",
    "content",
    "page_content",
    "passage",
    "passage_text",
    "sentences",
    "paragraph",
    "body",
)


def tools_in(columns: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The functions on offer, as OpenAI describes them, and whether there are tools of other kinds."""
    listed = value_at(columns, "tools") or value_at(columns, "functions")
    if not is_list(listed):
        return [], bool(listed)
    tools = []
    for tool in map(parsed, listed):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        schema = function.get("parameters", function.get("input_schema"))
        described = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
        tools.append(
            {
                "type": "function",
                "function": described | ({} if schema is None else {"parameters": parsed(schema)}),
            }
        )
    return tools, len(tools) < len(listed)


def system_in(columns: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The system prompt in a column, and whether there is one that isn't text."""
    for name in _SYSTEM_COLUMNS:
        value = get(columns, name)
        if name == "instructions" and not ("input" in columns or "messages" in columns):
            continue
        if value and (text := text_of(value)) is None:
            return None, True
        if value and text and text.strip():
            return text.strip(), False
    return None, False


def passage(value: Any) -> str:
    """The text of a passage: a text, a list of them, or objects such as {"title": ..., "text": ...}."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, Mapping):
        parts = [value[key] for key in _PASSAGE_TEXTS if key in value]
        rows = zip(*parts, strict=False) if len(parts) > 1 and all(map(is_list, parts)) else [parts]
        return "\n\n".join(filter(None, ("\n".join(filter(None, map(passage, row))) for row in rows)))
    if is_list(value):
        joint = " " if is_texts(value) and all(len(text) < 400 for text in value) else "\n\n"
        return joint.join(filter(None, map(passage, value)))
    return ""


def choices_of(value: Any) -> str:
    """The choices of a question, a line each."""
    if isinstance(value, Mapping) and is_texts(value.get("text")):
        labels = value.get("label")
        pairs = list(zip(labels if is_list(labels) else "ABCDEFGHIJ", value["text"], strict=False))
    elif isinstance(value, Mapping):
        pairs = [(key, text) for key, text in value.items() if isinstance(text, str)]
    else:
        pairs = list(zip("ABCDEFGHIJ", value if is_texts(value) else (), strict=False))
    return "\n".join(f"{label}. {text}" for label, text in pairs)


def first_text(row: Any, names: Sequence[str]) -> str | None:
    """The first of these columns that contains text."""
    for name in names:
        value = get(row, name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def get(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else None


def value_at(row: Any, path: str) -> Any:
    """The value of a column, or at a path such as `request.body.messages`; JSON text is parsed on the way."""
    if isinstance(row, Mapping) and path in row:
        return parsed(row[path])
    value = row
    for part in path.split(".") if "." in path else ():
        value = parsed(value)
        if is_list(value) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            value = get(value, part)
    return None if value is row else parsed(value)


def columns_beside(row: Any, path: str) -> Mapping[str, Any]:
    """The columns beside a field: of the object that it is in."""
    parent = value_at(row, path.rpartition(".")[0]) if "." in path and path not in row else row
    return parent if isinstance(parent, Mapping) else row if isinstance(row, Mapping) else {}
