"""The pool's size follows from what is free, in a container from what its limit leaves."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from fledge.engine import Engine, memory
from fledge.native import cgroup
from fledge.target.target import Target


def write_limits(folder: Path, limit: str) -> Path:
    for name, text in (
        ("memory.max", limit),
        ("memory.current", "700000"),
        ("memory.stat", "anon 5\ninactive_file 200000\nactive_file 9\n"),
    ):
        (folder / name).write_text(text + "\n", "utf-8")
    return folder


def test_a_containers_limit_counts_without_cached_files(tmp_path: Path) -> None:
    assert memory.container_limit(write_limits(tmp_path, "1000000")) == 500_000
    assert memory.container_limit(write_limits(tmp_path, "400000")) == 0
    assert memory.container_limit(write_limits(tmp_path, "max")) is None
    assert memory.container_limit(tmp_path / "nowhere") is None


def test_the_tightest_limit_of_the_groups_around_a_service_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "ROOT", tmp_path)
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "own")
    (tmp_path / "own").write_text("1:cpu:/elsewhere\n0::/jobs.slice/one\n", "utf-8")
    (tmp_path / "jobs.slice" / "one").mkdir(parents=True)
    cpu = torch.device("cpu")
    for inner, outer, free in (("1000000", "max", 500_000), ("max", "900000", 400_000)):
        write_limits(tmp_path / "jobs.slice", outer)
        write_limits(tmp_path / "jobs.slice" / "one", inner)
        assert memory.free_memory(cpu) == free
    (tmp_path / "own").unlink()
    assert memory.free_memory(cpu) > 500_000


def test_a_gpus_pool_takes_most_of_what_activations_leave(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share and the sizes; that nothing else needs memory there, only a GPU can tell."""
    monkeypatch.setattr(memory, "free_memory", lambda device: 10_000)
    assert memory.memory_for_kv(torch.device("cuda"), 2_000) == 7_200
    assert memory.memory_for_kv(torch.device("cuda"), 20_000) == 0
    few, more_rows, more_logits = (
        memory.activation_bytes(target.config, rows, logits, 2)
        for rows, logits in ((1, 0), (1024, 0), (1024, 64))
    )
    assert more_rows == 1024 * few
    assert more_logits - more_rows >= 2 * 64 * target.config.vocab_size * 4
    wide = 2 * target.config.intermediate_size + 3 * target.config.hidden_size  # gate and up; three features
    assert few > 2 * wide


def test_the_pool_takes_a_quarter_of_what_is_free_at_most(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < memory.memory_for_kv(torch.device("cpu")) <= psutil.virtual_memory().total // 4
    token = target.decoder.kv_bytes_per_token()
    limit = 700_000 - 200_000 + 4 * 500 * token  # room for 500 tokens in a quarter of it
    monkeypatch.setattr(cgroup, "ROOT", write_limits(tmp_path, str(limit)))
    monkeypatch.setattr(cgroup, "OWN", tmp_path / "none")
    pages = Engine(target, max_batch=16, max_context=200).stats().pages
    assert pages == 500 // target.decoder.page_size
