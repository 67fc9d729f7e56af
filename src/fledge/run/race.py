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
from fledge.bench.report.formats import times
from fledge.engine import Engine, Piece
from fledge.heads import Head
from fledge.target import Target

QUESTION = "Write a Python function that checks whether a word is a palindrome, and explain how it works."
_TOKENS = 192  # of an answer
_LINES = 12  # of its end that are shown
_PER_SECOND = 10  # times that the picture is drawn again


class Lane:
    """One engine's answer so far, and the time it has taken."""

    def __init__(self, name: str, engine: Engine, question: str) -> None:
        self.name = name
        self.text, self.token_ids = "", list[int]()
        self.seconds = 0.0  # after the first token
        self.rounds = 0  # these
        self.done = False
        self._first = 0  # tokens of the first piece
        self._pieces: Iterator[Piece] = engine.stream_sync(question, max_tokens=_TOKENS, temperature=0.0)

    def go_on(self) -> None:
        """One round."""
        begin = time.perf_counter()
        piece = next(self._pieces, None)
        took = time.perf_counter() - begin
        if piece is None:
            self.done = True
            return
        if self.token_ids:
            self.seconds += took
            self.rounds += 1
        else:
            self._first = len(piece.token_ids)
        self.text += piece.text
        self.token_ids += piece.token_ids
        self.done = piece.completion is not None

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second, without prefill."""
        return (len(self.token_ids) - self._first) / self.seconds if self.seconds else 0.0

    @property
    def tau(self) -> float:
        """Tokens per round."""
        return (len(self.token_ids) - self._first) / self.rounds if self.rounds else 1.0


def race(target: Target, head: Head, question: str = QUESTION) -> list[Lane]:
    """Show the race, live on a terminal, and print its result. Returns plain decode's lane and the head's."""
    context = len(target.chat.prompt_ids([{"role": "user", "content": question}])) + _TOKENS + 1
    context = min(context, target.config.max_position_embeddings)
    engines = {
        name: Engine(target, drafts, max_batch=1, max_context=context) for name, drafts in _named(head)
    }
    lanes = [Lane(name, engine, question) for name, engine in engines.items()]
    say("", f"A race with the released head, one question: {question}")
    shown = Live(_picture(lanes), console=console, refresh_per_second=_PER_SECOND, transient=True)
    if not console.is_terminal:
        _run(lanes)
    else:
        with shown:
            _run(lanes, shown)
    _say_result(lanes)
    return lanes


def _named(head: Head) -> tuple[tuple[str, Head | None], ...]:
    return ("plain decode", None), ("with the head", head)


def _run(lanes: Sequence[Lane], shown: Live | None = None) -> None:
    drawn = 0.0
    while running := [lane for lane in lanes if not lane.done]:
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
    return Panel(body, title=title, width=width, border_style="green" if lane.done else "dim")


def _say_result(lanes: Sequence[Lane]) -> None:
    rows = [
        [lane.name, f"{lane.tokens_per_second:.0f}", f"{lane.tau:.2f}", f"{len(lane.token_ids)}"]
        for lane in lanes
    ]
    print_table("", ["", "tokens/s", "tokens per round", "tokens"], rows)
    plain, fast = lanes
    same = "the same answer" if plain.token_ids == fast.token_ids else "answers that differ at a near tie"
    ratio = fast.tokens_per_second / plain.tokens_per_second if plain.seconds else 1.0
    say(f"{times(ratio)} on this question, {same}; bench measures it on many", "")
