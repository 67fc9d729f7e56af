"""A suite that skipped the kernels says so in its last line, and fails in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
LACKS = "this processor lacks avx2"
NO_COMPILER = "no C++ compiler was found"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Two tests of kernels and one of something else."""
    pytester.makeconftest("from tests.kernels import pytest_runtest_setup, pytest_sessionfinish")
    pytester.makeini("[pytest]\nmarkers = kernels")
    pytester.makepyfile(
        test_fast="import pytest\n@pytest.mark.kernels\n@pytest.mark.parametrize('n', [1, 2])\ndef test_it(n): pass",
        test_other="def test_it(): pass",
    )
    for name in ("CI", "FLEDGE_TESTS_WITHOUT_KERNELS", "FLEDGE_NATIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # some take a second to import
    return pytester


@pytest.mark.parametrize(
    ("reason", "unfit", "environment", "status"),
    [
        (LACKS, LACKS, "", 0),
        (LACKS, LACKS, "CI", 1),
        (LACKS, LACKS, "CI FLEDGE_TESTS_WITHOUT_KERNELS", 0),
        (NO_COMPILER, "", "CI FLEDGE_TESTS_WITHOUT_KERNELS", 1),  # one can be installed
    ],
)
def test_skipped_kernels_are_the_last_line_and_a_failure_in_ci(
    suite: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    unfit: str,
    environment: str,
    status: int,
) -> None:
    monkeypatch.setattr("tests.kernels.unavailable_reason", lambda: reason)
    monkeypatch.setattr("tests.kernels.unfit_machine", lambda: unfit)
    for name in environment.split():
        monkeypatch.setenv(name, "1")
    ended = suite.runpytest_inprocess()
    ended.assert_outcomes(passed=1, skipped=2)
    expected = f"kernels: 2 tests skipped because {reason}: the CPU path that users run was not tested"
    assert ended.outlines[-1].startswith(expected)
    assert ("FLEDGE_TESTS_WITHOUT_KERNELS=1" in ended.outlines[-1]) == bool(status)
    assert ended.ret == status


def test_the_processes_of_xdist_are_counted_together(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEDGE_NATIVE", "0")
    monkeypatch.setenv("CI", "true")
    ended = suite.runpytest_inprocess("-p", "xdist", "-n", "2")
    ended.assert_outcomes(passed=1, skipped=2)
    told = [line for line in ended.outlines if "kernels: " in line]
    assert told == ended.outlines[-1:]
    assert told[0].startswith("kernels: 2 tests skipped because FLEDGE_NATIVE=0 turns them off")
    assert ended.ret == 1


def test_nothing_is_said_where_they_ran(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.kernels.unavailable_reason", lambda: "")
    monkeypatch.setenv("CI", "true")
    ended = suite.runpytest_inprocess()
    ended.assert_outcomes(passed=3)
    assert "kernels: " not in ended.stdout.str()
    assert ended.ret == 0


@pytest.mark.slow
def test_this_suite_says_it() -> None:
    files = ["tests/native/test_fork.py", "tests/train/test_kernels.py"]
    environment = os.environ | {"FLEDGE_NATIVE": "0", "CI": "true"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert " passed" not in ended.stdout
    last = ended.stdout.splitlines()[-1]
    assert "FLEDGE_NATIVE=0 turns them off; those of training are off" in last
    assert ended.returncode == 1
