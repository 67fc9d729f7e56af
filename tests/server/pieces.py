"""Adds up an answer that a reader gives in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from fledge.server.message import Call
from fledge.server.reader import Reader


def added_up(reader: Reader, pieces: Sequence[str]) -> tuple[str, str, list[tuple[str | None, str]]]:
    """Reasoning, content and calls, as a client adds them up."""
    reasoning, content, calls = "", "", dict[int, Call]()
    for number, piece in enumerate(pieces, 1):
        parts = reader.add(piece, last=number == len(pieces))
        reasoning += parts.reasoning
        content += parts.content
        for index, call in parts.calls.items():
            calls.setdefault(index, Call(call.id, call.name)).arguments += call.arguments
    assert list(calls) == list(range(len(calls)))
    assert len({call.id for call in calls.values()}) == len(calls)
    return reasoning, content, [(call.name, call.arguments) for call in calls.values()]
