"""Parts of an assistant's message as it grows: reasoning, content and function calls.

    text    <think>\\nHm.\\n</think>\\n\\nLet me look.\\n<tool_call>\\n{"name": "look", "arguments": {}}\\n</tool_call>
    parts   reasoning "Hm."    content "Let me look."       call 0: look, "{}"

However the text is split into pieces, their parts add up to the same message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass
class Call:
    """A call, or an addition to one; the first piece has name and id."""

    id: str | None = None
    name: str | None = None
    arguments: str = ""  # JSON, as the target wrote it


@dataclass
class Piece:
    """Text of one kind; that of a call is its arguments."""

    kind: Literal["reasoning", "content", "call"]
    text: str
    index: int = 0  # of the call in the message
    call: Call | None = None  # the call that begins here, without its arguments

    def continues(self, last: str | None) -> bool:
        """True if this part belongs to the same block as the one before, which was of the kind `last`."""
        return self.kind == last and self.call is None


@dataclass
class MessageParts:
    """A message, or an addition to one."""

    pieces: list[Piece] = field(default_factory=list)  # in the order of the text

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def add(self, kind: Literal["reasoning", "content"], text: str) -> None:
        """Append reasoning or content."""
        if not text:
            return
        if self.pieces and self.pieces[-1].kind == kind:
            self.pieces[-1].text += text
        else:
            self.pieces.append(Piece(kind, text))

    def begin_call(self, index: int, call: Call) -> None:
        """Begin another call, with the arguments received so far."""
        self.pieces.append(Piece("call", call.arguments, index, call))

    def add_arguments(self, index: int, text: str) -> None:
        """Append arguments of the last call."""
        if not text:
            return
        if self.pieces and self.pieces[-1].kind == "call" and self.pieces[-1].index == index:
            self.pieces[-1].text += text
        else:
            self.pieces.append(Piece("call", text, index))

    @property
    def reasoning(self) -> str:
        """All reasoning."""
        return "".join(piece.text for piece in self.pieces if piece.kind == "reasoning")

    @property
    def content(self) -> str:
        """All content."""
        return "".join(piece.text for piece in self.pieces if piece.kind == "content")

    @property
    def calls(self) -> dict[int, Call]:
        """By index in the message."""
        calls: dict[int, Call] = {}
        for piece in self.pieces:
            if piece.kind == "call":
                begun = piece.call or Call()
                calls.setdefault(piece.index, Call(begun.id, begun.name)).arguments += piece.text
        return calls
