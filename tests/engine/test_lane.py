"""Works run in order, one at a time; results come once; a failure stops what is behind it."""

from __future__ import annotations

import time
from collections.abc import Callable
from unittest.mock import MagicMock

import pytest
import torch

from fledge.base.errors import EngineError
from fledge.engine import Engine
from fledge.engine.lane import FutureMap, InlineLane, Lane, StreamLane, make_lane, to_host
from fledge.target.target import Target
from tests.engine.lazy_lane import LazyLane

LANES = [InlineLane, LazyLane]


@pytest.mark.parametrize("make", LANES)
def test_works_and_deferred_operations_run_in_the_order_they_were_given(make: Callable[[], Lane]) -> None:
    lane, seen = make(), list[int]()
    entries = []
    for number in range(0, 60, 3):
        lane.defer(lambda number=number: seen.append(number))
        lane.defer(lambda number=number: seen.append(number + 1))
        entries.append(lane.put(lambda number=number: seen.append(number + 2)))
    for entry in entries:
        entry.take()
    assert seen == list(range(60))


def test_on_a_cpu_nothing_overlaps(target: Target) -> None:
    assert isinstance(make_lane(torch.device("cpu")), InlineLane)
    with pytest.raises(EngineError, match="overlap needs a GPU"):
        Engine(target, overlap=True)


def test_an_inline_lane_is_done_at_once() -> None:
    seen: list[int] = []
    InlineLane().put(lambda: seen.append(1))
    assert seen == [1]


@pytest.mark.parametrize("make", LANES)
def test_a_result_is_taken_once(make: Callable[[], Lane]) -> None:
    entry = make().put(lambda: 5)
    assert entry.take().value == 5
    with pytest.raises(EngineError, match="twice"):
        entry.take()


@pytest.mark.parametrize("make", LANES)
def test_nothing_runs_behind_a_failure_until_the_lane_is_drained(make: Callable[[], Lane]) -> None:
    lane, seen = make(), list[int]()

    def fail() -> None:
        raise RuntimeError("device lost")

    first, second = lane.put(fail), lane.put(lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="device lost"):
        first.take()
    with pytest.raises(EngineError, match="reset the engine") as caught:
        second.take()
    assert isinstance(caught.value.__cause__, RuntimeError)
    lane.defer(lambda: seen.append(2))
    lane.drain()
    lane.put(lambda: seen.append(3)).take()
    assert seen == [3]


def test_the_map_keeps_the_newest_in_flight_and_hands_out_the_others_in_order() -> None:
    lane, seen = LazyLane(), list[int]()
    flight = FutureMap(lane, ahead=1)
    for number in range(5):
        flight.launch(lambda number=number: number, lambda value, seconds: seen.append(value))
        flight.take(keep=1)
        assert seen == list(range(number))
    assert (len(flight), lane.most) == (1, 2)
    flight.clear()
    assert not len(flight)


def test_time_between_works_is_exposed_unless_the_host_had_nothing_to_do() -> None:
    lane = InlineLane()
    lane.rest()
    lane.put(lambda: time.sleep(0.02)).take()
    before = lane.exposed
    time.sleep(0.03)
    lane.put(lambda: None)
    assert lane.exposed - before >= 0.03
    before = lane.exposed
    time.sleep(0.03)
    lane.rest()
    lane.put(lambda: None)
    assert lane.exposed - before < 0.03


def test_results_on_the_host_stay_what_they_are() -> None:
    tensor = torch.arange(3)
    assert to_host((1, [tensor], None))[1][0] is tensor


class _Clock:
    """A device that takes 0.5 s for each work, as its events see it; the host waits for none of that."""

    now = 0.0

    def __init__(self, **options: bool) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = _Clock.now
        _Clock.now += 0.5

    def elapsed_time(self, later: _Clock) -> float:
        return 1e3 * (later.at - self.at)

    def synchronize(self) -> None:
        """The host waits."""


def test_works_on_a_gpu_are_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock sees kernels launched, not run: the planner would learn that everything is cheap."""
    monkeypatch.setattr(torch.cuda, "Event", _Clock)
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *given: MagicMock())
    lane = make_lane(torch.device("cuda"))
    lane.rest()
    time.sleep(0.02)
    assert lane.put(lambda: 1).take() == (1, 0.5)
    time.sleep(0.02)
    lane.settle()
    assert 0.04 <= lane.exposed < 0.4  # what the host did before and behind it


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_stream_lane_brings_results_to_pinned_memory_and_times_them() -> None:
    lane = StreamLane(torch.device("cuda"))
    with torch.inference_mode():
        values = torch.arange(1000, device="cuda")
        entries = [lane.put(lambda n=n: (values + n, [values * n], "kept")) for n in range(5)]
        for number, entry in enumerate(entries):
            (added, (times,), kept), seconds = entry.take()
            assert added.is_pinned()
            assert torch.equal(added, torch.arange(1000) + number)
            assert torch.equal(times, torch.arange(1000) * number)
            assert kept == "kept"
            assert seconds > 0
