"""Turns of steps and of training, on a clock that only moves when told."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fledge.learn import turns
from fledge.learn.turns import Turns


class Clock:
    """A process that runs or is stopped, and the seconds it ran."""

    def __init__(self) -> None:
        self.now, self.running, self.ran = 100.0, True, 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.ran += seconds if self.running else 0.0

    def move(self, running: bool) -> None:
        self.running = running


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=made.monotonic, sleep=made.sleep))
    return made


def steps(made: Turns, clock: Clock, seconds: float, step: float = 0.01) -> None:
    """Steps without a pause, as under steady traffic."""
    end = clock.now + seconds
    while clock.now < end:
        made.before_step()
        assert not clock.running  # no step beside training
        clock.sleep(step)


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_training_gets_its_share_of_the_time_under_steady_traffic(clock: Clock, share: float) -> None:
    made = Turns(share, clock.move)
    made.before_step()
    made.training(True)
    steps(made, clock, 60.0)
    assert clock.ran == pytest.approx(60 * share, rel=0.05)
    assert made.granted == pytest.approx(clock.ran, rel=0.01)


def test_a_share_of_none_is_pauses_alone(clock: Clock) -> None:
    made = Turns(0.0, clock.move)
    made.training(True)
    steps(made, clock, 10.0)
    assert clock.ran == 0.0
    made.look(busy=False)
    assert not clock.running  # the last step was a moment ago
    clock.sleep(0.1)
    made.look(busy=True)
    assert not clock.running
    made.look(busy=False)
    assert clock.running
    clock.sleep(5.0)
    made.before_step()
    assert not clock.running
    assert made.granted == pytest.approx(5.0)


def test_pauses_earn_no_slices(clock: Clock) -> None:
    made = Turns(0.5, clock.move)
    made.training(True)
    for _ in range(20):
        steps(made, clock, 0.01)
        clock.sleep(0.06)
        made.look(busy=False)
        clock.sleep(10.0)
    assert made.granted == pytest.approx(200, rel=0.01)


def test_a_process_that_waits_for_answers_is_never_stopped(clock: Clock) -> None:
    made = Turns(0.1, clock.move)
    made.before_step()
    assert clock.running
    made.training(True)
    assert not clock.running
    made.training(False)
    assert clock.running
    made.training(True)
    made.end()
    assert clock.running
