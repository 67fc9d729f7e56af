"""Forms of answers as grammars in Lark's syntax, for a target that reasons before it answers in one.

<think>\\nSure.\\n</think>\\n\\n{"tea": "green"}
[ anything       ][ spaces ][ the form       ]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from fledge.engine.json_schema import prepared_text
from fledge.server import errors
from fledge.server.call_parser import pattern, quoted, sign
from fledge.server.reader import THINK, THOUGHT

_SLASH = re.compile(r"(\\.)|/", re.DOTALL)  # or any other character after a backslash
_START, _ANSWER = "start:", "answer_itself:"


def lark_of(form: Mapping[str, Any]) -> str:
    """The engine's structured_outputs as a grammar, which begins with its start."""
    ((kind, value),) = form.items()
    if kind == "json":
        try:
            schema = prepared_text(value if isinstance(value, str) else json.dumps(value))
        except ValueError:
            raise errors.invalid(
                "the schema of the answer's form isn't JSON; send a schema", "structured_outputs"
            ) from None
        return f"{_START} %json {schema}"
    if kind == "json_object":
        return f'{_START} %json {{"type": "object"}}'
    if kind == "choice":
        return f"{_START} {' | '.join(map(quoted, value))}"
    if kind == "regex":
        delimited = _SLASH.sub(lambda found: found[1] or r"\/", value).replace("\n", r"\n")
        return f"{_START} /{delimited}/"
    return str(value)


def after_thinking(lark: str, marks: Mapping[str, int], *, begun: bool) -> str:
    """The same after reasoning, which has `begun` or may begin.

    `marks`: the tokenizer's special tokens, of which no text in a grammar consists.
    """
    thoughts = "thoughts spaces answer_itself"
    if not begun:
        thoughts = f"({sign(marks, THINK)} thoughts spaces)? answer_itself"
    special = THOUGHT in marks
    text = (
        f"thoughts: /(?s:.*)/ {sign(marks, THOUGHT)}"
        if special
        else f"thoughts[lazy]: /(?s:.*){pattern(THOUGHT)}/"
    )
    rules = [text, r"spaces: /[\n ]{0,4}/", _ANSWER + lark.removeprefix(_START)]
    return "\n".join([f"{_START} {thoughts}", *rules])
