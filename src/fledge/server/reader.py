"""One answer's text, read as a message: reasoning first, in targets that think between tags, then words and calls."""

from __future__ import annotations

from fledge.engine.stops import overlap
from fledge.server.message import Said
from fledge.server.tool_calls import CallReader

THINK, THOUGHT = "<think>", "</think>"
# By the names that vLLM and SGLang have for it: whether an answer is reasoning until it says otherwise.
REASONING_PARSERS = {"qwen3": False, "deepseek_r1": True}


class Thoughts:
    """Takes reasoning out of an answer's text; white space around the tags belongs to neither."""

    def __init__(self, *, inside: bool) -> None:
        """`inside`: the answer begins with reasoning, whether it opens it or the prompt has."""
        self._inside = inside
        self._place = "beginning"  # then within, behind, and after white space there: done
        self._begun = False
        self._held = ""

    def add(self, text: str, said: Said, *, last: bool) -> str:
        """Put what is reasoning into `said`, and return what is not."""
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
            said.reasoning += shown
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
