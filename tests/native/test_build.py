"""Compiling a folder of C++ and finding the result again."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from fledge.native import build

COMPILER = build.find_compiler() or ""
FLAGS = ("-shared", "-fPIC")

pytestmark = pytest.mark.skipif(not COMPILER, reason="kernels: no C++ compiler was found")


def write_sources(folder: Path, answer: str) -> None:
    (folder / "answer.h").write_text(f"inline int answer() {{ return {answer}; }}\n", "utf-8")
    unit = '#include "answer.h"\nextern "C" int asked() { return answer(); }\n'
    (folder / "asked.cpp").write_text(unit, "utf-8")


def test_a_header_that_changes_makes_another_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    found = []
    for answer in ("1", "2", "1"):
        write_sources(tmp_path, answer)
        path = build.compile_library(COMPILER, "asked", tmp_path, FLAGS)
        assert ctypes.CDLL(str(path)).asked() == int(answer)
        found.append(path)
    assert found[0] == found[2] != found[1]


def test_of_two_that_start_together_one_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    write_sources(tmp_path, "7")
    caplog.set_level("INFO")
    with ThreadPoolExecutor(2) as pool:
        paths = set(pool.map(lambda _: build.compile_library(COMPILER, "asked", tmp_path, FLAGS), range(2)))
    assert len(paths) == 1
    assert caplog.text.count("compiling the kernels asked") == 1


def test_the_compilers_first_error_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    write_sources(tmp_path, "unheard_of")
    with pytest.raises(RuntimeError, match=r"could not compile the kernels \(.*error.*unheard_of"):
        build.compile_library(COMPILER, "asked", tmp_path, FLAGS)


@pytest.mark.parametrize("damage", ["half", "empty", "flipped", "nothing it can read"])
def test_a_damaged_library_is_compiled_again_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    write_sources(tmp_path, "7")
    path = build.compile_library(COMPILER, "asked", tmp_path, FLAGS)
    sound = path.read_bytes()
    middle = len(sound) // 2
    flipped = sound[:middle] + bytes([sound[middle] ^ 1]) + sound[middle + 1 :]
    path.write_bytes({"half": sound[:middle], "empty": b"", "flipped": flipped}.get(damage, b"no library"))
    again = build.compile_library(COMPILER, "asked", tmp_path, FLAGS)
    assert again.read_bytes() == sound
    assert f"{path} is damaged; compiling it again" in caplog.text
    assert ctypes.CDLL(str(again)).asked() == 7
    assert [p.name for p in path.parent.iterdir()] == [again.name]


def test_a_library_has_its_name_only_once_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    write_sources(tmp_path, "7")
    steps: list[object] = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: steps.append(os.fstat(handle).st_ino))
    monkeypatch.setattr(os, "replace", lambda old, new: (steps.append("named"), replace(old, new)))
    path = build.compile_library(COMPILER, "asked", tmp_path, FLAGS)
    assert steps == [path.stat().st_ino, "named", path.parent.stat().st_ino]


def test_a_cache_that_cannot_be_written_is_said_and_another_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sources(tmp_path, "7")
    compile_library = build.compile_library
    small = lambda compiler, name, folder, flags: compile_library(compiler, name, tmp_path, FLAGS)  # noqa: E731
    monkeypatch.setattr(build, "compile_library", small)
    (tmp_path / "cache").symlink_to(tmp_path / "unmounted")
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    library, reason = build._load.__wrapped__("avx2")
    assert library is None
    assert "cache is a link to" in reason
    assert "FLEDGE_CACHE names another folder" in reason
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "other"))
    with pytest.raises(AttributeError, match="fledge_mirrored"):  # the small library is compiled and loaded
        build._load.__wrapped__("avx2")


def test_zig_compiles_where_there_is_no_other_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(name: str) -> SimpleNamespace | None:
        return SimpleNamespace(origin="/a folder/ziglang/__init__.py") if name == "ziglang" else None

    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", found)
    compiler = build.find_compiler()
    assert compiler is not None
    command = build.compiler_command(compiler, ("-march=x86-64-v4", "-O3"), ("a.cpp",), Path("a.so"))
    assert command == ["/a folder/ziglang/zig", "c++", "-march=x86_64_v4", "-O3", "a.cpp", "-o", "a.so"]
