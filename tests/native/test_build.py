"""Compiling a folder of C++ and finding the result again."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from fledge.native import build

COMPILER = build.find_compiler() or ""
FLAGS = ("-shared", "-fPIC")

pytestmark = pytest.mark.skipif(not COMPILER, reason="no C++ compiler")


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


def test_the_compilers_first_error_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEDGE_CACHE", str(tmp_path / "cache"))
    write_sources(tmp_path, "unheard_of")
    with pytest.raises(RuntimeError, match=r"could not compile the kernels \(.*error.*unheard_of"):
        build.compile_library(COMPILER, "asked", tmp_path, FLAGS)
