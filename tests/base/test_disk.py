"""Local files are whole or not there, and are read to where they were asked for."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from fledge.base import disk


@pytest.mark.parametrize("most", [1, 3, 100])
def test_ranges_are_read_whole_however_little_comes_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    class Slow(io.FileIO):
        def readinto(self, buffer: Any) -> int:
            return super().readinto(memoryview(buffer)[:most])

    data = bytes(range(50))
    (tmp_path / "a").write_bytes(data)
    monkeypatch.setattr(disk, "open", lambda path, mode, buffering: Slow(path, "rb"), raising=False)
    ranges = [(0, 5), (10, 30), (7, 7), (45, 60), (60, 70)]
    found = disk.read_ranges(str(tmp_path / "a"), ranges)
    assert found == [data[start:stop] for start, stop in ranges]  # short at the file's end


def test_a_write_that_fails_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    place = tmp_path / "new" / "file"
    disk.write_atomic(place, b"first")
    with pytest.raises(TypeError):
        disk.write_atomic(place, "no bytes")  # type: ignore[arg-type]
    assert place.read_bytes() == b"first"
    assert [path.name for path in place.parent.iterdir()] == ["file"]
    disk.write_atomic(place, b"second, longer")
    assert place.read_bytes() == b"second, longer"
