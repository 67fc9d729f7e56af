"""The commands that make environments: what can't be used or installed doesn't end in a riddle."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests import interop

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints-cpu.txt", "install.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tests" / "interop", tmp_path / "tests" / "interop")
    return tmp_path


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def make(clone: Path, *arguments: str, goal: str = "install-user") -> subprocess.CompletedProcess[str]:
    command = ["make", *arguments, goal]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


def test_the_demo_installs_what_it_needs_once(clone: Path) -> None:
    program(clone / "python", 'mkdir -p .venv; echo "$@" >> calls')
    program(clone / ".venv" / "bin" / "fledge", 'echo "fledge $@" >> calls')
    for arguments in ((), ("FULL=1", "RUN=train.minutes=1")):
        assert make(clone, "PYTHON=./python", *arguments, goal="demo").returncode == 0
    calls = ["install.py serve,train", "fledge demo", "fledge demo --full train.minutes=1"]
    assert (clone / "calls").read_text().splitlines() == calls


def test_an_installation_that_failed_is_tried_again(clone: Path) -> None:
    program(clone / "python", "echo try >> calls; exit 1")
    program(clone / ".venv" / "bin" / "fledge", "")
    for _ in range(2):
        assert make(clone, "PYTHON=./python", goal="demo").returncode != 0
    assert (clone / "calls").read_text().splitlines() == ["try"] * 2


def test_an_environment_to_compare_with_that_cannot_be_made_is_named_and_the_others_are_used(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by = 'case "$*" in "-m venv"*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python";; *vllm.txt) exit 1;; esac'
    made_by += '; echo "$@" >> calls'
    program(clone / ".venv" / "bin" / "python", made_by)
    program(clone / "python", "true")
    made = make(clone, "PYTHON=./python", goal="interop")
    assert made.returncode != 0
    assert "tests/interop/vllm.txt can't be installed here" in made.stderr
    assert "llama.cpp can't be built here" in made.stderr  # the stand-in downloads nothing
    bare = [line for line in (clone / "calls").read_text().splitlines() if "--quiet --no-deps" in line]
    assert [line.split()[-2:] for line in bare] == [["--no-deps", "sglang==0.5.23"]]
    monkeypatch.setattr(interop, "ENVIRONMENTS", clone / interop.ENVIRONMENTS.relative_to(ROOT))
    for name in (
        "FLEDGE_SPECULATORS_PYTHON",
        "FLEDGE_VLLM_PYTHON",
        "FLEDGE_SGLANG_PYTHON",
        "FLEDGE_LLAMA_CPP",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("speculators", "sglang"):
        assert interop.interpreter(name) == str(clone / f".venv/interop/{name}/bin/python")
    with pytest.raises(pytest.skip.Exception, match="with vllm: make interop, or set FLEDGE_VLLM_PYTHON"):
        interop.interpreter("vllm")
    with pytest.raises(pytest.skip.Exception, match=r"no llama\.cpp: make interop, or set FLEDGE_LLAMA_CPP"):
        interop.llama_cpp("llama-bench")
    monkeypatch.setenv("FLEDGE_VLLM_PYTHON", "/elsewhere/python")
    assert interop.interpreter("vllm") == "/elsewhere/python"
    monkeypatch.setenv("FLEDGE_LLAMA_CPP", "/elsewhere")
    assert interop.llama_cpp("llama-bench") == Path("/elsewhere/llama-bench")
