"""`fledge cache`: what is kept is listed with its size, and deleted by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.command import Fledge


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path))
    for name in ("one-v5", "two-v5"):
        (tmp_path / "targets" / name).mkdir(parents=True)
        (tmp_path / "targets" / name / "config.json").write_bytes(b"x" * 1000)
        (tmp_path / "targets" / f"{name}.lock").touch()
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "fledge-avx2-1.so").write_bytes(b"x" * 500)
    (tmp_path / "revisions").mkdir()
    return tmp_path


def test_entries_are_listed_with_their_sizes(fledge: Fledge, kept: Path) -> None:
    lines = fledge("cache").splitlines()
    assert [line.split()[-1] for line in lines[:4]] == [
        "targets/one-v5",
        "targets/two-v5",
        "native/fledge-avx2-1.so",
        "revisions",
    ]
    assert lines[0].split()[:2] == ["1.0", "kB"]
    assert lines[-1].split()[:2] == ["2.5", "kB"]
    assert str(kept) in lines[-1]


def test_an_entry_or_a_kind_is_deleted_by_name(fledge: Fledge, kept: Path) -> None:
    fledge("cache", "--delete", "one-v5", "--delete", "native")
    left = sorted(str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file())
    assert left == ["targets/two-v5.lock", "targets/two-v5/config.json"]
    assert (kept / "revisions").is_dir()


def test_a_name_that_is_not_there_deletes_nothing(fledge: Fledge, kept: Path) -> None:
    assert "did you mean two-v5" in fledge.error("cache", "--delete", "tow-v5")
    assert ".." in fledge.error("cache", "--delete", "../../etc")
    assert (kept / "targets" / "two-v5" / "config.json").exists()


def test_an_empty_cache_is_no_error(fledge: Fledge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "nothing"))
    assert "0 B" in fledge("cache")
