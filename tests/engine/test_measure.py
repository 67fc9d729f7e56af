"""Costs measured when an engine starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from fledge.engine import measure
from fledge.engine.forwards import TargetForward

_TARGET = cast(TargetForward, SimpleNamespace(decoder=SimpleNamespace(device=torch.device("cpu"))))


def test_a_slow_moment_at_the_start_does_not_stay_in_the_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = {1: 0.010, 2: 0.010, 4: 0.010, 8: 0.011, 16: 0.014}
    slow = {(1, 0), (2, 0), (16, 1), *((4, repeat) for repeat in range(9))}  # rows and repeat; 4 always
    repeats: Counter[int] = Counter()

    def time_forward(run: Callable[[], int], device: torch.device) -> float:
        rows = run()
        repeats[rows] += 1
        return honest[rows] * (3 if (rows, repeats[rows] - 1) in slow else 1)

    monkeypatch.setattr(measure, "_batch", lambda requests, width, target: requests * width)
    monkeypatch.setattr(measure, "seconds_of", time_forward)
    curve = measure._measure(list(honest), 16, lambda batch: batch, _TARGET, None)
    assert curve.rows == (1, 2, 4, 8, 16)
    assert curve.seconds == (0.010, 0.010, 0.011, 0.011, 0.014)
    assert min(repeats.values()) > 1


@pytest.mark.parametrize("width", [measure._TARGET_WIDTH, measure._HEAD_WIDTH])
def test_as_many_rows_are_timed_as_the_curve_says(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_batch", lambda requests, width, target: requests * width)
    monkeypatch.setattr(measure, "seconds_of", lambda run, device: float(run()))
    curve = measure._measure(list(measure._ROWS), width, lambda batch: batch, _TARGET, None)
    assert curve.seconds == measure._ROWS
