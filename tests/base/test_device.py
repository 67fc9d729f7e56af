"""What goes between host and device in one copy arrives as it was, whatever kinds of numbers lie side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from fledge.base import device as transfer
from fledge.base.device import to_device, to_host, write

CPU = torch.device("cpu")


class Pair(NamedTuple):
    tokens: Tensor
    rest: list[Any]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the device had memory of its own; page-locked memory needs a driver."""
    empty = torch.empty
    monkeypatch.setattr(transfer, "shared", lambda device: False)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **options: empty(*size, **options))


@pytest.mark.usefixtures("apart")
def test_arrays_of_all_kinds_and_odd_sizes_reach_the_device() -> None:
    arrays = [
        np.array([1, -2, 3], np.int32),
        np.arange(10, dtype=np.int64).reshape(2, 5).T,
        np.zeros(0, np.int64),
        np.array([True, False, True]),
        np.array([[0.5, -np.inf]], np.float32),
    ]
    for found, array in zip(to_device(CPU, *arrays), arrays, strict=True):
        assert torch.equal(found, torch.from_numpy(array.copy()))
    kept = torch.zeros(2, 3, dtype=torch.int32)
    write(kept[1], arrays[0])
    assert kept.tolist() == [[0, 0, 0], [1, -2, 3]]


@pytest.mark.usefixtures("apart")
def test_a_nest_of_results_reaches_the_host() -> None:
    wide = torch.arange(12).view(3, 4)
    value = Pair(
        wide[:, 1:2], [torch.tensor([True, False, True]), None, (wide.t().float(), "text"), wide[:, :0]]
    )
    found = to_host(value)
    assert isinstance(found, Pair)
    assert torch.equal(found.tokens, wide[:, 1:2])
    flags, nothing, (floats, text), empty = found.rest
    assert flags.tolist() == [True, False, True]
    assert (nothing, text, empty.shape) == (None, "text", (3, 0))
    assert torch.equal(floats, wide.t().float())
    wide.zero_()
    assert found.tokens.tolist() == [[1], [5], [9]]


def test_on_a_cpu_nothing_is_copied() -> None:
    array, tensor = np.arange(3), torch.arange(3)
    assert to_device(CPU, array)[0].data_ptr() == array.ctypes.data
    assert to_host([tensor])[0] is tensor
