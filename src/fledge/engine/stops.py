"""Stop strings: the answer's text ends before the first of them, wherever token and piece borders fall.

stop "END"     text so far   "the E"      given out "the "      "E" may become a stop
               + "N"         "the EN"     nothing
               + "V"         "the ENV"    "ENV"                  it didn't
"""

from __future__ import annotations

from collections.abc import Sequence

from fledge.engine.detokenize import Detokenizer, Tokenizer


class StopMatcher:
    """Passes text through until one of `stops` turns up; text that may become a stop is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stops = tuple(stops)
        self._held = ""
        self._passed = 0  # no stop ends among so many characters of `_held`

    def add(self, text: str, *, last: bool = False, early: bool = False) -> str:
        """The text that can be shown now. After a match there is none any more; `last` gives out what is held back.

        The stop that begins first counts; of several that begin there, the one given first. `early`: one may begin in
        this text, but not end.
        """
        if self.matched is not None:
            return ""
        text = self._held + text
        if early:
            self._passed = len(text)
        matches = [
            (at, order)
            for order, stop in enumerate(self._stops)
            if (at := text.find(stop, max(self._passed + 1 - len(stop), 0))) >= 0
        ]
        if matches:
            at, order = min(matches)
            self.matched, self._held = self._stops[order], ""
            return text[:at]
        keep = 0 if last else max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        self._passed = max(self._passed + keep - len(text), 0)
        return text[: len(text) - keep]


class StopWatch:
    """The text of a request with stop strings, made token by token: a match ends it at the very token."""

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str], min_tokens: int = 0, *, skip_special: bool = True
    ) -> None:
        """No stop ends within the first `min_tokens` tokens."""
        self._early = min_tokens
        self._detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
        self._matcher = StopMatcher(stops)
        self._shown: list[str] = []
        self._fresh: list[str] = []

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text."""
        return self._matcher.matched

    def add(self, token_id: int) -> bool:
        """Read one more token; True if the text has come to a stop."""
        early, self._early = self._early > 0, self._early - 1
        self._fresh.append(self._matcher.add(self._detokenizer.add([token_id]), early=early))
        return self.matched is not None

    def finish(self) -> bool:
        """No more tokens will come; True if the text that was held back held a stop."""
        rest, early = self._detokenizer.add([], last=True), self._early >= 0
        self._fresh.append(self._matcher.add(rest, last=True, early=early))
        return self.matched is not None

    def take(self) -> str:
        """The text that became certain since the last call."""
        fresh = "".join(self._fresh)
        self._fresh.clear()
        self._shown.append(fresh)
        return fresh

    @property
    def text(self) -> str:
        """All text that is certain."""
        return "".join(self._shown) + "".join(self._fresh)


def overlap(text: str, stop: str) -> int:
    """The length of the longest proper beginning of `stop`, or of another mark, with which `text` ends."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
