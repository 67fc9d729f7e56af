"""The columns of a row: by name or path, and as the text of a passage, choices, a system prompt or tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from fledge.data.sources.messages import is_list, is_texts, parsed, text_of

_SYSTEM_COLUMNS = ("system", "system_prompt", "system_message", "instructions", "system_instruction",
                   "systemInstruction", "preamble")  # fmt: skip
# Where loggers keep what a request has beside its messages: LiteLLM, Langfuse, LangSmith, Gemini, Bedrock.
_BESIDE = ("model_parameters", "modelParameters", "optional_params", "invocation_params", "extra_body", "extra",
           "parameters", "config", "toolConfig", "metadata")  # fmt: skip
_FUNCTIONS = ("functionDeclarations", "function_declarations")
_SCHEMAS = ("parameters", "input_schema", "inputSchema", "parametersJsonSchema")
_NO_ARGUMENTS = {"type": "object", "properties": {}}
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
    "snippet",
)
_NOTHING = ("nan", "none", "null", "n/a", "<noinput>")  # what exports write into an empty cell


def setting(columns: Mapping[str, Any], *names: str) -> Any:
    """The first of these that a request has, beside its messages or where loggers keep such things."""
    values = (value_at(columns, name) for name in names)
    places = (value_at(columns, name) for name in _BESIDE if columns.get(name))
    inner = (setting(place, *names) for place in places if isinstance(place, Mapping))
    return next(filter(None, chain(values, inner)), None)


def tools_in(columns: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The functions on offer, as servers give them to templates, and whether there are tools of other kinds."""
    listed = setting(columns, "tools", "functions")
    choice = setting(columns, "tool_choice", "function_call")
    if listed is None or choice == "none":
        return [], False
    if not is_list(listed):
        return [], True
    described = [function for tool in map(parsed, listed) for function in _functions(tool)]
    functions = [function for function in described if function is not None]
    if isinstance(choice, Mapping):  # the only one that may be called
        named = choice.get("function", choice)
        functions = [f for f in functions if f["name"] == get(named, "name")] or functions
    return [{"type": "function", "function": function} for function in functions], None in described


def _functions(tool: Any) -> list[dict[str, Any] | None]:
    """A tool's functions; None for a tool of another kind."""
    declared = next((tool[key] for key in _FUNCTIONS if is_list(get(tool, key))), None)
    if declared is not None:
        return [one for each in declared for one in _functions(each)]
    function = parsed(get(tool, "function") or get(tool, "toolSpec") or tool)
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        return [None]
    schema = next((parsed(function[key]) for key in _SCHEMAS if function.get(key)), None)
    if schema is None and get(tool, "type") not in (None, "function", "custom"):
        return [None]  # a tool of the provider's own, such as a search
    schema = schema["json"] if isinstance(schema, Mapping) and set(schema) == {"json"} else schema
    described = {key: function[key] for key in ("name", "description") if function.get(key) is not None}
    return [described | {"parameters": without_nulls(schema) or _NO_ARGUMENTS}]


def without_nulls(value: Any) -> Any:
    """A JSON value without empty fields: where rows differ, columnar formats fill them up."""
    if isinstance(value, Mapping):
        return {k: without_nulls(v) for k, v in value.items() if v is not None or k in ("default", "const")}
    return [without_nulls(inner) for inner in value] if is_list(value) else value


def template_options(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the chat template, with those that servers make of other fields."""
    found = setting(columns, "chat_template_kwargs")
    options = dict(without_nulls(found)) if isinstance(found, Mapping) else {}
    effort = setting(columns, "reasoning_effort", "reasoning.effort", "output_config.effort")
    if isinstance(effort, str):
        options.setdefault("reasoning_effort", effort)
    if isinstance(thinking := get(setting(columns, "thinking"), "type"), str):
        options.setdefault("enable_thinking", thinking != "disabled")
    return options


def system_in(columns: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The system prompt in a column, and whether there is one that isn't text."""
    for name in _SYSTEM_COLUMNS:
        if name == "instructions" and not ("input" in columns or "messages" in columns):
            continue
        value = setting(columns, name)
        if value and (text := text_of(value)) is None:
            return None, True
        if value and text and text.strip():
            return text.strip(), False
    return None, False


def passage(value: Any) -> str:
    """The text of a passage: a text, a list of them, or objects such as {"title": ..., "text": ...}."""
    if isinstance(value, str):
        return "" if value.strip().lower() in _NOTHING else value.strip()
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


def is_given(value: Any) -> bool:
    """True if a cell holds anything."""
    return bool(value) and value == value  # NaN stands for nothing in exports


def value_at(row: Any, path: str) -> Any:
    """The value of a column, or at a path such as `request.body.messages`; text of lists and objects is parsed.

    Names may have dots themselves: `attributes.gen_ai.input.messages`.
    """
    row = parsed(row)
    if isinstance(row, Mapping) and (value := row.get(path)) is not None:
        return parsed(value)
    if is_list(row) and path.isdecimal() and int(path) < len(row):
        return parsed(row[int(path)])
    if "." in path:
        parts = path.split(".")
        splits = ((".".join(parts[:n]), ".".join(parts[n:])) for n in range(len(parts) - 1, 0, -1))
        inside = (
            value_at(inner, rest) for first, rest in splits if (inner := value_at(row, first)) is not None
        )
        return next((value for value in inside if value is not None), None)
    return None


def columns_beside(row: Any, path: str) -> Mapping[str, Any]:
    """The columns beside a field: of the object that it is in."""
    parent = value_at(row, path.rpartition(".")[0]) if "." in path and get(row, path) is None else row
    return parent if isinstance(parent, Mapping) else row if isinstance(row, Mapping) else {}
