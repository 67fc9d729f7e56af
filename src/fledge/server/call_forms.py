"""The formats of function calls, by the names that vLLM and SGLang give to their parsers.

Another family is another entry, if it writes arguments as one of the three does: as a JSON object, between tags, or as
Python does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fledge.engine.json_schema import prepared
from fledge.server.call_parser import CallForm, Functions
from fledge.server.python_calls import PythonCalls
from fledge.server.tagged_calls import TaggedCalls
from fledge.server.tool_calls import JsonCalls

_BEGIN, _END, _SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_CALLS, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK = {"OPEN": _CALLS, "CLOSE": _CALLS_END, "BEGIN": _BEGIN, "END": _END, "SEP": _SEP}

# In the order in which a chat template is compared with them.
CALL_FORMS: dict[str, CallForm] = {
    "hermes": JsonCalls(
        "<tool_call>",
        "</tool_call>",
        lark=(r'OPEN "\n"', r'"\n" CLOSE "\n" OPEN "\n"', r'"\n" CLOSE', ""),
        signs={"OPEN": "<tool_call>", "CLOSE": "</tool_call>"},
    ),
    "qwen3_coder": TaggedCalls(
        "<tool_call>",
        "</tool_call>",
        ("<function=", ">"),
        ("<parameter=", ">"),
        "</parameter>",
        "</function>",
    ),
    "glm45": TaggedCalls(
        "<tool_call>",
        "</tool_call>",
        ("", ""),
        ("<arg_key>", "</arg_key>\n<arg_value>"),
        "</arg_value>",
        "",
        "",
    ),
    "llama3_json": JsonCalls("", key="parameters"),
    "pythonic": PythonCalls(),
    "mistral": JsonCalls(
        "[TOOL_CALLS]",
        # Small 3.2 writes an id after the name.
        head=re.compile(r"([^\s\[{]+)(?:\[CALL_ID\]\w*)?\[ARGS\]\s*(?=\{)"),
        lark=(r"OPEN / ?\[/", '", "', '"]"', ""),
        signs={"OPEN": "[TOOL_CALLS]", "ARGS": "[ARGS]"},
        named_lark=("OPEN", "OPEN", "", "NAME ARGS ARGUMENTS"),
    ),
    "deepseek_v3": JsonCalls(
        _CALLS,
        _CALLS_END,
        each=_BEGIN,
        signs=_DEEPSEEK,
        head=re.compile(rf"{_BEGIN}\s*function{_SEP}([^\s<{{]+)\s*```json\s*(?=\{{)"),
        after=("```", _END),
        lark=("OPEN", r'"\n"', "CLOSE", r'BEGIN "function" SEP NAME "\n```json\n" ARGUMENTS "\n```" END'),
    ),
    "deepseek_v31": JsonCalls(
        _CALLS,
        _CALLS_END,
        each=_BEGIN,
        signs=_DEEPSEEK,
        head=re.compile(rf"{_BEGIN}\s*([^\s<{{]+){_SEP}\s*(?=\{{)"),
        after=(_END,),
        lark=("OPEN", "", "CLOSE", "BEGIN NAME SEP ARGUMENTS END"),
    ),
}


def grammar(
    form: CallForm,
    functions: Functions,
    *,
    several: bool,
    marks: Mapping[str, int],
    answer: Mapping[str, Any] | None = None,
) -> str:
    """A grammar in Lark's syntax for an answer that consists of calls only.

    Args:
        form: the format of the target's calls.
        functions: the JSON schema of each function's arguments, by the function's name.
        several: whether there may be more than one call.
        marks: ids of the tokenizer's added tokens; other marks are spelled out.
        answer: the JSON schema of an answer allowed instead of calls.
    """
    start, rules = form.grammar(functions, several=several, marks=marks)
    if answer is not None:
        start += " | answer"
        rules = [*rules, f"answer: %json {json.dumps(prepared(answer))}"]
    return "\n".join([f"start: {start}", *rules])
