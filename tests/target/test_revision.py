"""The hash that names a target: the same for the same content, another for another."""

from __future__ import annotations

import os
from pathlib import Path

from fledge.target import resolve_target
from tests.tiny import save_tiny_target


def test_revision_ignores_how_files_are_cut_and_follows_content(tmp_path: Path) -> None:
    def revision(
        name: str, seed: int = 0, max_shard_size: str = "5GB", chat_template: str = "{{ 1 }}"
    ) -> str:
        folder = save_tiny_target(
            tmp_path / name, seed=seed, max_shard_size=max_shard_size, chat_template=chat_template
        )
        return resolve_target(str(folder), tmp_path / "cache").revision

    first = revision("a")
    assert revision("b", max_shard_size="100KB") == first
    assert revision("c", seed=1) != first
    assert revision("d", chat_template="{{ 2 }}") != first


def test_revision_follows_a_changed_file(tmp_path: Path) -> None:
    folder = save_tiny_target(tmp_path / "t")
    first = resolve_target(str(folder), tmp_path / "cache").revision
    assert resolve_target(str(folder), tmp_path / "cache").revision == first
    save_tiny_target(folder, seed=5)
    os.utime(folder / "model.safetensors", ns=(1, 1))  # the same size; only the time tells
    assert resolve_target(str(folder), tmp_path / "cache").revision != first


def test_revision_follows_weights_whose_time_was_set_back(tmp_path: Path) -> None:
    """As tools that copy files with their times do."""
    folder = save_tiny_target(tmp_path / "t")
    first = resolve_target(str(folder), tmp_path / "cache").revision
    before = {path: path.stat() for path in folder.iterdir()}
    save_tiny_target(folder, seed=5)
    for path, times in before.items():
        assert path.stat().st_size == times.st_size
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert resolve_target(str(folder), tmp_path / "cache").revision != first


def test_a_cache_that_cannot_be_written_only_costs_time(tiny_target_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    expected = resolve_target(str(tiny_target_folder), tmp_path / "cache").revision
    assert resolve_target(str(tiny_target_folder), tmp_path / "file").revision == expected
