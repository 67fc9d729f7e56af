"""Reasoning of targets that think between tags before they answer."""

from __future__ import annotations

from fledge.engine.stops import overlap
from fledge.server.message import Said

OPEN, CLOSE = "<think>", "</think>"
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
            if not last and bare != OPEN and OPEN.startswith(bare):
                self._held = text
                return ""
            opened = bare.startswith(OPEN)
            text = bare.removeprefix(OPEN) if opened else text
            self._place = "within" if opened or self._inside else "done"
        if self._place == "within":
            thought, closed, text = text.partition(CLOSE)
            if not self._begun:
                thought = thought.lstrip()
            keep = 0 if closed or last else overlap(thought, CLOSE)
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
