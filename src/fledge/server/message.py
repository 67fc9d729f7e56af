"""Parts of an assistant's message as it grows: reasoning, content and function calls.

    text    <think>\\nHm.\\n</think>\\n\\nLet me look.\\n<tool_call>\\n{"name": "look", "arguments": {}}\\n</tool_call>
    parts   reasoning "Hm."    content "Let me look."       call 0: look, "{}"

However the text is split into pieces, their parts add up to the same message.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Call:
    """A call, or an addition to one; the first piece has name and id."""

    id: str | None = None
    name: str | None = None
    arguments: str = ""  # JSON, as the target wrote it


@dataclass
class MessageParts:
    """A message, or an addition to one."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, Call] = field(default_factory=dict)  # by index in the message

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)
