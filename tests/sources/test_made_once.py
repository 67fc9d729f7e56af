"""A folder that several processes want is made by one of them, whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from functools import partial
from pathlib import Path

import pytest

from fledge.base.errors import StorageError
from fledge.sources.made_once import made_once


def test_a_folder_has_its_name_only_once_its_files_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    rename = os.rename
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(os, "rename", lambda old, new: (steps.append("renamed"), rename(old, new)))

    def make(folder: Path) -> None:
        (folder / "part").mkdir()
        (folder / "part" / "weights").write_bytes(b"1")

    final = made_once(tmp_path / "made", make)
    places = (final / "part", final / "part" / "weights", final)
    assert steps == [*(path.stat().st_ino for path in places), "renamed"]


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_who_waits_for_a_lock_that_nobody_holds_is_told_what_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", missing)
    monkeypatch.setattr("fledge.sources.made_once._PATIENCE", 0.01)
    (tmp_path / "made.lock").write_text("4711\nnode17\n")  # another host's: it may be alive
    make = partial(made_once, tmp_path / "made", lambda folder: (folder / "weights").touch())
    waiting = threading.Thread(target=make, daemon=True)
    waiting.start()
    while waiting.is_alive() and "waiting for another fledge" not in caplog.text:
        waiting.join(0.01)
    assert waiting.is_alive()
    Path(caplog.messages[-1].split("if none is running, delete ")[1]).unlink()
    waiting.join(10)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["weights"]


def test_a_cache_behind_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to(tmp_path / "unmounted")
    with pytest.raises(StorageError, match=r"cache is a link to .*unmounted, which isn't there"):
        made_once(tmp_path / "cache" / "targets" / "made", lambda folder: None)
    (tmp_path / "unmounted").mkdir()
    assert made_once(tmp_path / "cache" / "targets" / "made", lambda folder: None).is_dir()
