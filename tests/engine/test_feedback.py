"""When the planner hears of rounds: at once while it finds out, of several together later, of all in the end."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import pytest

from fledge.engine import Engine
from fledge.engine.feedback import _LEARNT, _TOGETHER
from fledge.target.target import Target
from tests.engine.conftest import Greedy, scripted_head


class Heard(NamedTuple):
    """One round that the planner hears of."""

    when: int  # rounds so far
    drafted: bool  # by the head
    learnt: bool


@pytest.fixture
def engine(target: Target, greedy: Greedy) -> Engine:
    """With a head that knows the answers, and a planner that believes in it from the start."""
    head = scripted_head(target, greedy(80), 0.9)
    head.strict = False  # costs are measured on an empty pool
    engine = Engine(target, head, max_batch=2, max_context=160)
    engine._core._planner.speeds.with_head = lambda requests: 1e9  # type: ignore[method-assign]
    return engine


@pytest.fixture
def heard(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Heard]:
    """Of each round heard of: how many rounds there have been, whether it drafted, and whether it was learnt from."""
    core, planner, found = engine._core, engine._core._planner, []
    observe, pass_over = planner.observe, planner.pass_over

    def hear(shape: Any, *args: Any, **more: Any) -> None:
        found.append(Heard(core._counts.rounds, shape is not None and not more["asked"], True))
        observe(shape, *args, **more)

    def hear_alike(shape: Any, *args: Any, **more: Any) -> None:
        found.append(Heard(core._counts.rounds, shape is not None and shape.depth > 0, False))
        pass_over(shape, *args, **more)

    monkeypatch.setattr(planner, "observe", hear)
    monkeypatch.setattr(planner, "pass_over", hear_alike)
    return found


def test_rounds_are_learnt_from_at_once_and_then_together(
    engine: Engine, heard: list[Heard], prompts: list[list[int]]
) -> None:
    for prompt in prompts[:6]:
        engine.generate([prompt], max_tokens=80, ignore_eos=True)
    rounds = engine.stats().rounds
    assert len(heard) == rounds
    assert sum(record.rounds for record in engine.stats().shapes) == rounds
    late = [when - number for number, (when, *_) in enumerate(heard, start=1)]
    assert set(late[:12]) == {0}
    assert max(late) == _TOGETHER - 1
    assert min(late) == 0
    lots = [list(lot) for _, lot in itertools.groupby(heard, key=lambda one: one.when)]
    assert all([one.learnt for one in lot][-_LEARNT:] == [True] * min(len(lot), _LEARNT) for lot in lots)
    assert not any(one.learnt for lot in lots for one in lot[:-_LEARNT])


def test_a_plain_round_is_learnt_from_at_once_with_all_before_it(
    engine: Engine, heard: list[Heard], prompts: list[list[int]]
) -> None:
    for prompt in prompts[:4]:
        engine.generate([prompt], max_tokens=80, ignore_eos=True)
    assert engine._core._planner.is_settled(1, drafted=True)
    drafted = [one.drafted for one in heard]
    engine._core._planner.choose = lambda requests, behind: None  # type: ignore[method-assign]
    engine.generate([prompts[5]], max_tokens=20, ignore_eos=True)
    plain = heard[len(drafted) :]
    assert [one.drafted for one in plain] == [False] * len(plain)
    assert [one.when for one in plain] == list(range(len(drafted) + 1, len(heard) + 1))


def test_plain_rounds_are_learnt_from_together_where_they_are_the_rule(
    engine: Engine, heard: list[Heard], prompts: list[list[int]]
) -> None:
    planner = engine._core._planner
    planner.speeds.with_head = lambda requests: 0.0  # type: ignore[method-assign]
    planner.speeds.lookup_gain = lambda requests: 0.0  # type: ignore[method-assign]
    planner._credit = -1e9  # no tries
    for prompt in prompts[:4]:
        engine.generate([prompt], max_tokens=60, ignore_eos=True)
    assert planner.is_settled(1, drafted=False)
    late = [when - number for number, (when, *_) in enumerate(heard, start=1)]
    assert set(late[:12]) == {0}
    assert max(late) == _TOGETHER - 1


def test_a_try_is_learnt_from_at_once(engine: Engine, heard: list[Heard], prompts: list[list[int]]) -> None:
    planner = engine._core._planner
    planner.speeds.with_head = lambda requests: 0.0  # type: ignore[method-assign]
    planner.speeds.lookup_gain = lambda requests: 0.0  # type: ignore[method-assign]
    for prompt in prompts[:6]:
        planner._credit = 1.0
        engine.generate([prompt], max_tokens=80, ignore_eos=True)
    assert planner.is_settled(1, drafted=False)
    late = [one.when - number for number, one in enumerate(heard, start=1) if one.drafted]
    assert late
    assert set(late) == {0}


def test_an_idle_engine_has_learnt_everything(
    engine: Engine, heard: list[Heard], prompts: list[list[int]]
) -> None:
    for number, prompt in enumerate(prompts[:8]):
        engine.generate([prompt], max_tokens=3 + 5 * number, ignore_eos=True)
        assert len(heard) == engine.stats().rounds
        assert not engine._core._feedback._waiting
