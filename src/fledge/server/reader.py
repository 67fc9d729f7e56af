"""One answer's text, read as a message."""

from __future__ import annotations

from fledge.server.message import Said
from fledge.server.reasoning import Thoughts
from fledge.server.tool_calls import CallReader


class Reader:
    """One answer's text as a message; the pieces add up to it."""

    def __init__(self, thoughts: Thoughts | None, calls: CallReader | None) -> None:
        self._thoughts = thoughts
        self._calls = calls

    @property
    def has_called(self) -> bool:
        """Whether there was a call so far."""
        return self._calls is not None and self._calls.calls > 0

    def add(self, text: str, *, last: bool) -> Said:
        """What became certain with this text; `last`: no more will come."""
        said = Said()
        if self._thoughts is not None:
            text = self._thoughts.add(text, said, last=last)
        if self._calls is None:
            said.content += text
        else:
            self._calls.add(text, said, last=last)
        return said
