"""The demo's race: two engines in turns, each with a clock of its own, and the same answer."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fledge.engine import Engine
from fledge.run import race as module
from fledge.run.race import Lane, race
from fledge.target import Target
from tests.heads.tiny_head import random_head


def test_both_answer_alike_and_the_result_says_how_fast(
    target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, fast = race(target, random_head(target), "Why is the sky blue?")
    assert plain.completion is not None
    assert fast.completion is not None
    assert plain.completion.token_ids == fast.completion.token_ids
    assert plain.tau == 1.0 <= fast.tau
    assert plain.rounds == len(plain.completion.token_ids) - 1
    printed = capsys.readouterr().out
    assert "the same answer" in printed
    assert f"{plain.tokens_per_second:.0f}" in printed
    assert f"{fast.tokens_per_second:.0f}" in printed


def test_a_terminal_shows_both_answers_as_they_grow(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=100, highlight=False, emoji=False)
    monkeypatch.setattr(module, "console", terminal)
    lanes = race(target, random_head(target), "Why is the sky blue?")
    for lane in lanes:
        assert f"{lane.name}: " in screen.getvalue()


def test_who_is_behind_on_its_own_clock_goes_next(target: Target) -> None:
    class Timed(Lane):
        def __init__(self, name: str, seconds: float) -> None:
            self.name, self.seconds, self.left, self.each = name, 0.0, 6, seconds
            self.completion = None

        def go_on(self) -> None:
            order.append(self.name)
            self.seconds += self.each
            self.left -= 1
            self.completion = None if self.left else answer

    (answer,) = Engine(target, max_batch=1).generate(["Hello there"], max_tokens=2)
    order: list[str] = []
    module._run([Timed("slow", 2.0), Timed("fast", 1.0)])
    assert order[:6] == ["slow", "fast", "fast", "slow", "fast", "fast"]
    assert order[-3:] == ["slow"] * 3
