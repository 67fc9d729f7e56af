"""The kernels have as many threads as the process may use cores, unless the environment says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fledge.base.errors import EngineError
from fledge.native import build, cgroup, ops
from fledge.train import library


@pytest.mark.parametrize(
    ("limit", "cores"), [("150000 100000", 1), ("50000 100000", 1), ("800000 100000", 8)]
)
def test_a_containers_limit_counts_in_whole_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, cores: int
) -> None:
    (tmp_path / "cpu.max").write_text(limit + "\n", "utf-8")
    assert build.container_cores(tmp_path) == cores
    (tmp_path / "a.slice" / "job").mkdir(parents=True)
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "own")
    (tmp_path / "own").write_text(
        "0::/a.slice/job\n", "utf-8"
    )  # of a service or a batch job, within its slice
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
    monkeypatch.delenv("FLEDGE_THREADS", raising=False)
    assert build.default_threads() == min(cores, 4)
    monkeypatch.setenv("FLEDGE_THREADS", "7")
    assert build.default_threads() == 7


def test_the_kernels_have_64_threads_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(96)))
    monkeypatch.delenv("FLEDGE_THREADS", raising=False)
    monkeypatch.setattr(build, "own_groups", list)
    assert build.default_threads() == 64


def test_without_a_limit_all_cores_count(tmp_path: Path) -> None:
    assert build.container_cores(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n", "utf-8")
    assert build.container_cores(tmp_path) is None


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5", "65"])
def test_what_is_no_number_of_threads_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FLEDGE_THREADS", value)
    with pytest.raises(EngineError, match=r"FLEDGE_THREADS is .* use a number"):
        build.default_threads()


@pytest.mark.parametrize("value", ["off", "false", "avx512"])
def test_unknown_kernels_are_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FLEDGE_NATIVE", value)
    for asked in (build.unavailable_reason, library.load_library.__wrapped__):
        with pytest.raises(EngineError, match=r"FLEDGE_NATIVE is .* use 0"):
            asked()


@pytest.mark.kernels
@pytest.mark.parametrize("blocks", [1, 3, 64, 4099])
def test_reading_memory_leaves_no_block_out(blocks: int) -> None:
    words = torch.arange(blocks * 64, dtype=torch.int64) ** 2
    assert ops.read(words) == int(words.sum())
