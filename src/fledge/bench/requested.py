"""Answer length and sampling of a request, read from a row of a log, a trace or a data set.

{"prompt": "Hi", "output_tokens": 5}
{"timestamp": 0.25, "body": {"messages": [...], "max_tokens": 5, "temperature": 0.7}}
"""

from __future__ import annotations

from typing import Any

from fledge.base.errors import DataError

# The answer's length in logs, traces and vLLM's custom data set: what was written, then what was allowed.
_LENGTHS = (
    "output_tokens", "output_length", "output_len", "expected_output_len", "num_output_tokens", "completion_tokens",
    "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "maxOutputTokens", "num_predict",
)  # fmt: skip
# Fields of requests that change what is measured, but are one option for all.
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "n", "stop", "ignore_eos", "min_tokens", "response_format",
             "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "tool_choice")  # fmt: skip
_CONTENTS = ("messages", "contents", "conversations", "turns", "tools", "functions", "chat_template_kwargs")


def sampling_fields(row: Any) -> tuple[str, ...]:
    """The fields with which a request was sampled."""
    return tuple(name for name in _SAMPLING if _value(row, name) is not None)


def _value(row: Any, name: str, depth: int = 5) -> Any:
    """A field of a row or of the request that is wrapped in it; None if there is none."""
    if not isinstance(row, dict):
        return None
    inner = (
        value for key, value in row.items() if depth and isinstance(value, dict) and key not in _CONTENTS
    )
    found = (_value(value, name, depth - 1) for value in inner)
    return row[name] if row.get(name) is not None else next((one for one in found if one is not None), None)


def answer_lengths(row: Any, place: str) -> tuple[int, ...]:
    """New tokens of each turn's answer, if the row says them."""
    for name in _LENGTHS:
        if (value := _value(row, name)) is None:
            continue
        lengths = value if isinstance(value, list) and value else [value]
        if not all(type(one) is int and one > 0 for one in lengths):
            raise DataError(
                f"{place}: {name} is {value!r}; give a whole number of tokens above 0, or leave it out"
            )
        return tuple(lengths)
    return ()
