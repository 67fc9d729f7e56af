"""Reads one answer's text as a message: reasoning first, in targets that think between tags, then content and calls."""

from __future__ import annotations

from fledge.engine.stops import overlap
from fledge.server.call_parser import AnswerParser
from fledge.server.message import MessageParts

THINK, THOUGHT = "<think>", "</think>"
# Parser names as in vLLM and SGLang: whether an answer starts as reasoning.
REASONING_PARSERS = {"qwen3": False, "deepseek_r1": True}


class Thoughts:
    """Extracts reasoning from an answer's text; white space around the tags belongs to neither."""

    def __init__(self, *, inside: bool) -> None:
        """`inside`: the answer starts with reasoning, whether the answer or the prompt opens it."""
        self._inside = inside
        self._place = "beginning"  # then within, behind, and after white space: done
        self._begun = False
        self._held = ""

    def add(self, text: str, parts: MessageParts, *, last: bool) -> str:
        """Add the reasoning to `parts`, and return the rest."""
        text, self._held = self._held + text, ""
        if self._place == "beginning":
            bare = text.lstrip()
            if not last and bare != THINK and THINK.startswith(bare):
                self._held = text
                return ""
            opened = bare.startswith(THINK)
            text = bare.removeprefix(THINK) if opened else text
            self._place = "within" if opened or self._inside else "done"
        if self._place == "within":
            thought, closed, text = text.partition(THOUGHT)
            if not self._begun:
                thought = thought.lstrip()
            keep = 0 if closed or last else overlap(thought, THOUGHT)
            shown = thought[: len(thought) - keep].rstrip()
            parts.add("reasoning", shown)
            self._begun = self._begun or bool(shown)
            if not closed:
                self._held = thought[len(shown) :]
                return ""
            self._place = "behind"
        if self._place == "behind":
            text = text.lstrip()
            self._place = "done" if text else "behind"
        return text


class Reader:
    """Reads one answer's text as a message; the parts of all pieces add up to it."""

    def __init__(self, thoughts: Thoughts | None, calls: AnswerParser | None) -> None:
        self._thoughts = thoughts
        self._calls = calls

    @property
    def has_called(self) -> bool:
        """True once a call has been read."""
        return self._calls is not None and self._calls.calls > 0

    def read(self, text: str, *, ended: bool) -> MessageParts:
        """A complete answer. `ended`: by itself; then a call whose arguments aren't JSON is content."""
        if self._calls is not None:
            self._calls.whole, self._calls.ended = True, ended
        return self.add(text, last=True)

    def add(self, text: str, *, last: bool) -> MessageParts:
        """The parts that this text makes final; `last`: no more text will follow."""
        parts = MessageParts()
        if self._thoughts is not None:
            text = self._thoughts.add(text, parts, last=last)
        if self._calls is None:
            parts.add("content", text)
        else:
            self._calls.add(text, parts, last=last)
        return parts
