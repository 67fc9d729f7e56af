"""Thinking in answers: `<think> ... </think> answer`, or gpt-oss' channels. It stays in the ids.

With the next turn clients send back the answer alone; gpt-oss' thinking in a field of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fledge.data.turns import decode_all
from fledge.target import Target
from fledge.target.chat import Message

OPEN, CLOSE = "<think>", "</think>"
FINAL = "<|channel|>final<|message|>"
_CHANNEL = re.compile(
    r"<\|channel\|>(\w+)[^<]*(?:<\|constrain\|>\w+)?<\|message\|>(.*?)(?=<\|(?:end|return|call|start)\|>|$)",
    re.DOTALL,
)
_PROMPT_TAIL = 16  # tokens; a template may open the thinking itself


def reasoning_length(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> int:
    """Number of the answer's tokens that are thinking, closing mark included; all of them if it was cut before that."""
    text = decode_all(target, answer)
    channels = text.lstrip().startswith("<|channel|>")
    opened, close = channels or text.lstrip().startswith(OPEN), FINAL if channels else CLOSE
    if not opened and close not in text:
        tail = decode_all(target, prompt_ids[-_PROMPT_TAIL:])
        opened = tail.rstrip().endswith(OPEN)
        return len(answer) if opened else 0
    if close not in text:
        return len(answer)
    low, high = 1, len(answer)
    while low < high:
        middle = (low + high) // 2
        if close in decode_all(target, answer[:middle]):
            high = middle
        else:
            low = middle + 1
    return low


def as_sent_back(text: str) -> Message:
    """An answer as serving gives it back to the template with the next turn."""
    channels = _CHANNEL.findall(text)
    if channels:
        said = {name: "".join(words for one, words in channels if one == name) for name, _ in channels}
        thinking = {"thinking": said["analysis"]} if "analysis" in said else {}
        return {"role": "assistant", "content": said.get("final", ""), **thinking}
    return {
        "role": "assistant",
        "content": text.split(CLOSE, 1)[1].lstrip("\n") if CLOSE in text else text,
    }
