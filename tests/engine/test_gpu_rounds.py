"""Rounds on a GPU that isn't there (`fake_gpu`): right devices, no waits of the host, few launches.

What a GPU computes isn't tested here, for nothing is computed: `make gpu` is for that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fledge.native.build import find_compiler, unfit_machine

_ROOT = Path(__file__).parents[2]
# By scenario: the most launches of a round, of a target of 4 layers with 2 draft levels.
_MOST = {
    "plain, 64": 170,
    "lookup alone, 4": 260,
    "greedy, 1": 495,
    "greedy, 64": 505,
    "log probabilities, 1": 510,
    "sampled, 1": 690,
    "filtered, 1": 755,
    "all kinds, 64": 955,
    "catching up, 4": 575,
    "starting anew, 4": 580,
    "second device, 4": 770,
    "recorded, greedy, 3": 20,
    "recorded, filtered, 3": 20,
    "second device, recorded, 3": 20,
}
_FAULTS = {
    "planted: a value is read",
    "planted: a value is read while a round is recorded",
    "planted: another device",
}
_FORWARDS = "second device, forwards alone"
# Rounds that are launched and recorded, greedy and drawn, and both devices; each takes seconds.
_FEW = {"starting anew, 4", "recorded, filtered, 3", _FORWARDS}
_ALL = {*_MOST, *_FAULTS, _FORWARDS}


@pytest.fixture(
    scope="module",
    params=[pytest.param(_FEW, id="few"), pytest.param(_ALL, id="all", marks=pytest.mark.slow)],
)
def report(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """Of a process of its own, since torch itself is changed there."""
    compiler = find_compiler()
    if not compiler or "ziglang" in compiler or unfit_machine():
        pytest.skip(
            "kernels: the stand-in for a GPU needs a compiler that links with PyTorch, g++ or clang++"
        )
    pytest.importorskip(
        "triton", reason="the stand-in for a GPU counts Triton's launches, and it isn't installed"
    )
    command = [sys.executable, "-m", "tests.engine.fake_gpu", "--only", *sorted(request.param)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    assert set(found) == request.param
    return found


def test_all_tensors_of_a_round_are_on_its_device(report: dict[str, dict[str, Any]]) -> None:
    assert {name: of["error"] for name, of in report.items() if of["error"] and name not in _FAULTS} == {}


def test_kernels_are_launched_on_the_device_of_their_tensors(report: dict[str, dict[str, Any]]) -> None:
    """Triton launches on the present device, whatever its arguments' is."""
    assert {name: of["astray"] for name, of in report.items() if of["astray"]} == {}


def test_the_host_waits_for_no_value_and_no_copy(report: dict[str, dict[str, Any]]) -> None:
    """In rounds, prefills, joining and leaving; but where a head begins anew, the lengths are read."""
    waits = {
        name: [wait for of_kind in of["waits"].values() for wait in of_kind] for name, of in report.items()
    }
    anew = waits.pop("starting anew, 4")
    assert len(anew) == 1
    assert "engine/drafters/eagle.py" in anew[0]
    assert {name: found for name, found in waits.items() if found and name not in _FAULTS} == {}


def test_a_round_is_a_limited_number_of_launches(report: dict[str, dict[str, Any]]) -> None:
    most = {name: max(of["launches"]["decode"]) for name, of in report.items() if name in _MOST}
    assert {name: count for name, count in most.items() if count > _MOST[name]} == {}


@pytest.mark.slow
@pytest.mark.parametrize("report", [_ALL], ids=["all"], indirect=True)
def test_planted_faults_are_found(report: dict[str, dict[str, Any]]) -> None:
    """What the other tests say of the engine's own rounds, they would say of these."""
    reads, records, mixes = (report[name] for name in sorted(_FAULTS))
    assert "a value is read in engine/" in reads["waits"]["decode"][0]
    assert "can't be recorded (a value is read in engine/" in records["error"]
    assert "FakeTensorDeviceMismatchError" in mixes["error"]
