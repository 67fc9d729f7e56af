"""Thinking in answers: `<think> ... </think> answer`. It stays in the ids; clients don't send it back."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.data.turns import decode_all
from fledge.target import Target

OPEN, CLOSE = "<think>", "</think>"
_PROMPT_TAIL = 16  # tokens; a template may open the thinking itself


def reasoning_length(target: Target, prompt_ids: Sequence[int], answer: Sequence[int]) -> int:
    """How many of the answer's tokens are thinking, closing mark included; all of them if it was cut before that."""
    text = decode_all(target, answer)
    opened = text.lstrip().startswith(OPEN)
    if not opened and CLOSE not in text:
        tail = decode_all(target, prompt_ids[-_PROMPT_TAIL:])
        opened = tail.rstrip().endswith(OPEN)
        return len(answer) if opened else 0
    if CLOSE not in text:
        return len(answer)
    low, high = 1, len(answer)
    while low < high:
        middle = (low + high) // 2
        if CLOSE in decode_all(target, answer[:middle]):
            high = middle
        else:
            low = middle + 1
    return low


def as_sent_back(text: str) -> str:
    """An answer as a client sends it back with the next turn: without its thinking."""
    return text.split(CLOSE, 1)[1].lstrip("\n") if CLOSE in text else text
