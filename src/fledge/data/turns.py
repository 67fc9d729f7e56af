"""Continuation of a conversation after an answer, in token ids, without changing the ids it already has.

ids so far                                       | next turn
<user> question <end> <assistant> answer <end>   | <user> question <end> <assistant>
                                                   ~~~~~~ start    ~~~~~~~~~~~~~~~~~ found by rendering
"""

from __future__ import annotations

from collections.abc import Sequence

from fledge.target import Target
from fledge.target.chat import Message

# Two contents without a common prefix, and an answer that no template trims.
_PROBES = ("0", "Q")
_ANSWER: Message = {"role": "assistant", "content": "OK"}


def next_user_start(target: Target, messages: Sequence[Message]) -> list[int] | None:
    """Ids between an answer's end and the next user's first word; None if the template has no such place."""
    probes = [next_turn_ids(target, messages, probe) for probe in _PROBES]
    if probes[0] is None or probes[1] is None:
        return None
    start: list[int] = []
    for one, other in zip(*probes, strict=False):
        if one != other:
            return start
        start.append(one)
    return None


def next_turn_ids(target: Target, messages: Sequence[Message], text: str) -> list[int] | None:
    """Ids after an answer's end for another user turn, up to where the target's next answer begins.

    `messages` end with the answered user turn. None if the template renders them differently once more turns follow, or
    doesn't end an answer with one of the target's turn ends.
    """
    chat = target.chat
    before = chat.prompt_ids(messages)
    longer = chat.prompt_ids([*messages, _ANSWER, {"role": "user", "content": text}])
    if longer[: len(before)] != before:
        return None
    for position in range(len(before), len(longer)):
        if longer[position] in chat.turn_end_ids:
            return longer[position + 1 :]
    return None


def continuation(target: Target, before: Sequence[int], rendered: Sequence[int]) -> list[int] | None:
    """Ids that serving renders for a longer conversation, from the end of the ids that it has so far.

    None if the rendered text doesn't begin with that of `before`: a template trimmed or dropped generated text, such as
    thinking.
    """
    text = decode_all(target, before)
    for position, token in enumerate(rendered, start=1):
        if token in target.chat.turn_end_ids and decode_all(target, rendered[:position]) == text:
            return list(rendered[position:])
    return None


def decode_all(target: Target, ids: Sequence[int]) -> str:
    """Text of ids, special tokens included."""
    text: str = target.tokenizer.decode(
        list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return text


def encode_plain(target: Target, text: str) -> list[int]:
    """Ids of text that continues other ids, without added special tokens."""
    return list(target.tokenizer.encode(text, add_special_tokens=False))
