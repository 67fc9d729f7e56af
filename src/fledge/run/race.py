"""The demo's first minute: plain decode and the released head answer one question, beside each other.

They take turns, a round at a time: whoever has spent less time of its own goes next. So each shows the pace that it has
alone, and neither costs the other time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.columns import Columns
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from fledge.base.console import console, print_table, say
from fledge.bench.identity import compare
from fledge.bench.report.formats import times
from fledge.engine import Completion, Engine, Piece
from fledge.heads import Head
from fledge.target import Target

QUESTION = "Write a Python function that checks whether a word is a palindrome, and explain how it works."
_TOKENS = 192  # of an answer
_LINES = 12  # of its end that are shown
_PER_SECOND = 10  # times that the picture is drawn again
_SAME = {
    "identical": "the same answer",
    "near_tie": "answers that differ at a near tie",
    "different": "but different answers, which is a bug",
}


class Lane:
    """One engine's answer so far, and the time it has taken."""

    def __init__(self, name: str, engine: Engine, question: str) -> None:
        self.name = name
        self.text = ""
        self.completion: Completion | None = None  # once it is complete
        self.tokens, self.seconds, self.rounds = 0, 0.0, 0  # after the first piece, which the prefill makes
        self._begun = False
        self._pieces: Iterator[Piece] = engine.stream_sync(question, max_tokens=_TOKENS, temperature=0.0)

    def go_on(self) -> None:
        """One round."""
        begin = time.perf_counter()
        piece = next(self._pieces)
        if self._begun:
            self.seconds += time.perf_counter() - begin
            self.tokens += len(piece.token_ids)
            self.rounds += 1
        self._begun = True
        self.text += piece.text
        self.completion = piece.completion

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second, without prefill."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tau(self) -> float:
        """Tokens per round."""
        return self.tokens / self.rounds if self.rounds else 1.0


def race(target: Target, head: Head, question: str = QUESTION) -> list[Lane]:
    """Show the race, live on a terminal, and print its result. Returns plain decode's lane and the head's."""
    context = len(target.chat.prompt_ids([{"role": "user", "content": question}])) + _TOKENS + 1
    context = min(context, target.config.max_position_embeddings)
    lanes = [
        Lane(name, Engine(target, drafts, max_batch=1, max_context=context), question)
        for name, drafts in (("plain decode", None), ("with the head", head))
    ]
    say("", f"A race with the released head, one question: {question}")
    if console.is_terminal:
        with Live(_picture(lanes), console=console, refresh_per_second=_PER_SECOND, transient=True) as shown:
            _run(lanes, shown)
    else:
        _run(lanes)
    _say_result(target, *lanes)
    return lanes


def _run(lanes: Sequence[Lane], shown: Live | None = None) -> None:
    drawn = 0.0
    while running := [lane for lane in lanes if lane.completion is None]:
        min(running, key=lambda lane: lane.seconds).go_on()
        if shown is not None and time.perf_counter() - drawn > 1 / _PER_SECOND:
            shown.update(_picture(lanes))
            drawn = time.perf_counter()


def _picture(lanes: Sequence[Lane]) -> Columns:
    width = console.width // len(lanes) - 1
    return Columns([_panel(lane, width) for lane in lanes])


def _panel(lane: Lane, width: int) -> Panel:
    lines = Text(lane.text).wrap(console, width - 4)[-_LINES:]
    body = Text("\n").join([*lines, *[Text()] * (_LINES - len(lines))])
    title = f"{lane.name}: {lane.tokens_per_second:.0f} tokens/s"
    return Panel(body, title=title, width=width, border_style="green" if lane.completion else "dim")


def _say_result(target: Target, plain: Lane, fast: Lane) -> None:
    rows = [
        [lane.name, f"{lane.tokens_per_second:.0f}", f"{lane.tau:.2f}", f"{len(lane.completion.token_ids)}"]
        for lane in (plain, fast)
        if lane.completion is not None
    ]
    print_table("", ["", "tokens/s", "tokens per round", "tokens"], rows)
    assert plain.completion is not None
    assert fast.completion is not None
    same = _SAME[compare(target, plain.completion, fast.completion).outcome]
    ratio = fast.tokens_per_second / plain.tokens_per_second if plain.seconds else None
    say(f"{times(ratio)} on this question, {same}; bench measures it on many", "")
