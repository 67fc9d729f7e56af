"""An assistant's message in the making: reasoning, words and calls of functions, told apart in the text as it grows.

    text    <think>\\nHm.\\n</think>\\n\\nLet me look.\\n<tool_call>\\n{"name": "look", "arguments": {}}\\n</tool_call>
    said    reasoning "Hm."    content "Let me look."       call 0: look, "{}"

However the text is cut into pieces, what is said of them adds up to the same message.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Call:
    """A call, or what is new of one; the first piece has name and id."""

    id: str | None = None
    name: str | None = None
    arguments: str = ""  # JSON, as the target wrote it


@dataclass
class Said:
    """A message, or what is new of one."""

    reasoning: str = ""
    content: str = ""
    calls: dict[int, Call] = field(default_factory=dict)  # by place in the message

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls)
