"""The target's own calls of tools, and the logged results that follow them.

logged    user ── call look_up ── result "06:12" ── answer ── user ...
here      user ── the target calls look_up ── "06:12" ── its answer ── user ...
                  anything else: the conversation ends, since what follows depends on the result
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from fledge.target.chat import Message

# {"name": "f", "arguments": {...}} (Hermes, Llama, Mistral) and f[ARGS]{...}, <function=f>..., to=functions.f ... {...}
_OBJECT = re.compile(r'\{\s*"(?:name|type|arguments|parameters|function)"')
_NAMED = re.compile(r"(?:\[TOOL_CALLS\]|<function=|to=functions\.)\s*(?P<name>[\w.-]+)")
_ID_LENGTH = 9  # Mistral's templates want nine signs
_MARKS = re.compile(r"(?:<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|<\|channel\|>commentary|\[)\s*$")
_DECODER = json.JSONDecoder()


def calls_in(text: str, names: Collection[str]) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The answer's text before its calls of the named functions, and the calls: (name, arguments)."""
    calls: list[tuple[str, dict[str, Any]]] = []
    start, at = len(text), 0
    while (found := _next(text, at)) is not None:
        begin, at, call = found
        if call is not None and call[0] in names:
            start = min(start, begin)
            calls.append(call)
    content = text[:start].rstrip()
    while calls and (mark := _MARKS.search(content)):
        content = content[: mark.start()].rstrip()
    return content, calls


def _next(text: str, at: int) -> tuple[int, int, tuple[str, dict[str, Any]] | None] | None:
    """Begin and end of what looks like a call, and the call if it is one."""
    found = [match for pattern in (_OBJECT, _NAMED) if (match := pattern.search(text, at))]
    if not found:
        return None
    match = min(found, key=re.Match.start)
    named = match.re is _NAMED
    brace = text.find("{", match.end()) if named else match.start()
    try:
        value, end = _DECODER.raw_decode(text, brace)
    except (ValueError, RecursionError, IndexError):
        return match.start(), match.end(), None
    if named:
        return match.start(), end, (match["name"], value) if isinstance(value, dict) else None
    value = value.get("function") if isinstance(value.get("function"), dict) else value
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(value.get("name"), str) or not isinstance(arguments, dict):
        return match.start(), end, None
    return match.start(), end, (value["name"], arguments)


def with_results(
    content: str, calls: Sequence[tuple[str, dict[str, Any]]], logged: list[tuple[str, str]]
) -> list[Message] | None:
    """The message of the target's calls and the logged results of the same tools, which are taken out of `logged`.

    None if the log has no result for one of the calls; a result without a tool's name fits any.
    """
    left = list(logged)
    answers: list[Message] = []
    listed = []
    for number, (name, arguments) in enumerate(calls):
        result = next((one for one in left if one[0] in (name, "")), None)
        if result is None:
            return None
        left.remove(result)
        call_id = f"call{number:0{_ID_LENGTH - 4}d}"
        listed.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
        answers.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": result[1]})
    logged[:] = left
    return [{"role": "assistant", "content": content, "tool_calls": listed}, *answers]
