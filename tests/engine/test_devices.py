"""Never slower than plain decode: on every simulated device, with every head, load and mistaken measurement."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import pytest

from tests.engine.devices import CPU, DEVICES, H100, HEADS, Cell, Device, DraftHead, Moment, cells, simulate

_CELLS = list(cells())


# What a single request and a poor head tell of costs measured four times too high takes longer than the 200 rounds.
_SLOW_TO_LEARN = {("CPU, first costs 4 times too high", "poor", 1): 0.85}


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.name)
@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_never_slower_than_plain_decode_and_near_the_best_fixed_tree(device: Device, head: DraftHead) -> None:
    bad = {}
    for _, _, load in (cell for cell in _CELLS if cell[:2] == (device, head)):
        near = _SLOW_TO_LEARN.get((device.name, head.name, load or 0), 0.95)
        cells_of = [simulate(device, head, load)]
        if not _holds(cells_of, near):  # one draw may be bad luck, five aren't
            cells_of += [simulate(device, head, load, seed=seed) for seed in range(1, 5)]
        if not _holds(cells_of, near):
            bad[load] = [cell[:4] for cell in cells_of]
    assert not bad


def _holds(draws: Sequence[Cell], near: float) -> bool:
    over_plain, over_best, lost, _ = (
        mean(values) for values in zip(*(one[:4] for one in draws), strict=True)
    )
    first = max(one.first for one in draws)
    return over_plain >= 0.99 and over_best >= near and lost <= 0.6 and first < 8


@pytest.mark.parametrize("device", [CPU, H100], ids=lambda device: device.name)
def test_it_finds_out_when_a_head_becomes_useful(device: Device) -> None:
    useless, good = (Moment(1.0, 1e-4, 2e-3),), (Moment(1.0, 0.85, 0.85),)
    cell = simulate(device, DraftHead("late", (useless, good), turn=1000), 1, rounds=2000)
    assert [shape.depth > 0 for shape in cell.plans[800:1000]].count(True) < 20
    assert [shape.depth > 0 for shape in cell.plans[-300:]].count(True) > 250
