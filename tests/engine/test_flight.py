"""Launches run in order; their results come in order, with overlap late; time between them is the host's."""

from __future__ import annotations

import itertools
import statistics
import time
from unittest.mock import MagicMock

import pytest
import torch

from fledge.base.device import to_host
from fledge.base.errors import EngineError
from fledge.engine import Engine
from fledge.engine.flight import Flight, StreamFlight, make_flight
from fledge.engine.planner import AdaptivePlanner, FinishedRound
from fledge.target.target import Target
from tests.engine.conftest import noisy_head
from tests.engine.late_flight import LateFlight


def test_on_a_cpu_nothing_overlaps(target: Target) -> None:
    assert type(make_flight(torch.device("cpu"), 0)) is Flight
    with pytest.raises(EngineError, match="overlap needs a GPU"):
        Engine(target, overlap=True)


def test_without_overlap_a_result_is_received_at_once() -> None:
    flight, seen = Flight(), list[int]()
    for number in range(3):
        flight.launch(lambda number=number: number, lambda value, seconds: seen.append(value))
        assert seen == list(range(number + 1))
    assert not len(flight)


def test_the_newest_stay_in_flight_and_the_others_are_received_in_order() -> None:
    flight, seen = LateFlight(ahead=1), list[int]()
    for number in range(5):
        flight.launch(lambda number=number: number, lambda value, seconds: seen.append(value))
        flight.take(keep=1)
        assert seen == list(range(number))
    assert (len(flight), flight.most) == (1, 2)
    flight.clear()
    assert not len(flight)


def test_what_fails_raises_where_it_is_launched() -> None:
    flight, seen = Flight(ahead=1), list[int]()
    flight.launch(lambda: 1, lambda value, seconds: seen.append(value))

    def fail() -> None:
        raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        flight.launch(fail, lambda value, seconds: None)
    flight.finish()
    flight.launch(lambda: 2, lambda value, seconds: seen.append(value))
    flight.take(0)
    assert seen == [2]


def test_time_between_launches_is_exposed_unless_the_host_had_nothing_to_do() -> None:
    def nothing() -> None:
        return

    flight = Flight()
    with flight.step():  # begins
        pass
    flight.launch(lambda: time.sleep(0.02), lambda value, seconds: None)
    before = flight.exposed
    time.sleep(0.03)
    flight.launch(nothing, lambda value, seconds: None)
    assert flight.exposed - before >= 0.03
    before = flight.exposed
    time.sleep(0.03)
    with flight.step():  # begins
        pass
    flight.launch(nothing, lambda value, seconds: None)
    assert flight.exposed - before < 0.03


def test_the_planners_own_time_is_known_unless_something_flies_meanwhile() -> None:
    for flight, hides in ((Flight(), False), (LateFlight(ahead=1), True)):
        flight.launch(lambda: None, lambda value, seconds: None)
        with flight.planning():
            time.sleep(0.02)
        flight.settle()
        assert (flight.planned == 0) if hides else (0.02 <= flight.planned <= flight.exposed)


@pytest.mark.kernels
def test_what_learning_from_a_round_takes_says_nothing_of_the_round(
    target: Target, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kind of round that is only tried is always learnt from: by that alone it looked a fifth slower."""
    exposed: list[float] = []

    def learn(planner: AdaptivePlanner, done: FinishedRound) -> None:
        exposed.append(done.exposed)
        time.sleep(0.02)

    monkeypatch.setattr(AdaptivePlanner, "learn", learn)
    engine = Engine(target, noisy_head(target), max_batch=1)
    for prompt in prompts[:3]:  # what follows a request's last round counts for none
        engine.generate([prompt], max_tokens=12, ignore_eos=True)
    spent = [later - earlier for earlier, later in itertools.pairwise(exposed)]
    assert len(spent) > 6
    assert min(spent) > 0
    assert statistics.median(spent) < 0.01


def test_results_on_the_host_stay_what_they_are() -> None:
    tensor = torch.arange(3)
    assert to_host((1, [tensor], None))[1][0] is tensor


class _Clock:
    """A device that takes 0.5 s for each launch, as its events see it; the host waits for none of that."""

    now = 0.0

    def __init__(self, **options: bool) -> None:
        self.at = 0.0

    def record(self, stream: object) -> None:
        self.at = _Clock.now
        _Clock.now += 0.5

    def elapsed_time(self, later: _Clock) -> float:
        return 1e3 * (later.at - self.at)

    def synchronize(self) -> None:
        """The host waits."""


def test_launches_on_a_gpu_are_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock sees kernels launched, not run: the planner would learn that everything is cheap."""
    monkeypatch.setattr(torch.cuda, "Event", _Clock)
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *given: MagicMock())
    flight, seen = make_flight(torch.device("cuda"), 0), list[tuple[int, float]]()
    with flight.step():  # begins
        pass
    time.sleep(0.02)
    flight.launch(lambda: 1, lambda value, seconds: seen.append((value, seconds)))
    assert seen == [(1, 0.5)]
    time.sleep(0.02)
    flight.settle()
    assert 0.04 <= flight.exposed < 0.4  # what the host did before and behind it


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_stream_brings_results_to_pinned_memory_and_times_them() -> None:
    flight, seen = StreamFlight(torch.device("cuda"), ahead=1), []
    with torch.inference_mode(), flight.on_device():
        values = torch.arange(1000, device="cuda")
        for n in range(5):
            flight.launch(lambda n=n: (values + n, [values * n], "kept"), lambda *landed: seen.append(landed))
        flight.take(0)
        for number, ((added, (times,), kept), seconds) in enumerate(seen):
            assert added.is_pinned()
            assert torch.equal(added, torch.arange(1000) + number)
            assert torch.equal(times, torch.arange(1000) * number)
            assert kept == "kept"
            assert seconds > 0
