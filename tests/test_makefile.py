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
    for name in ("Makefile", "pyproject.toml", "constraints-cpu.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tests" / "interop", tmp_path / "tests" / "interop")
    return tmp_path


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def make(clone: Path, *arguments: str, goal: str = "install-user") -> subprocess.CompletedProcess[str]:
    command = ["make", *arguments, "PIP=true", goal]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


def test_a_python_that_is_too_old_is_named(clone: Path) -> None:
    program(clone / "python", "exit 1")
    made = make(clone, "PYTHON=./python")
    assert made.returncode != 0
    assert "./python isn't Python 3.11 or newer; name one: make PYTHON=python3.12 install-user" in made.stdout


def test_an_environment_without_pip_is_made_again(clone: Path) -> None:
    program(clone / "python", 'echo "$@" >> calls')
    program(clone / ".venv" / "bin" / "python", "exit 1")  # as a Debian without python3-venv leaves it
    assert make(clone, "PYTHON=./python").returncode == 0
    assert "-m venv --clear .venv" in (clone / "calls").read_text()


def test_an_environment_that_is_whole_is_kept(clone: Path) -> None:
    program(clone / "python", 'echo "$@" >> calls')
    program(clone / ".venv" / "bin" / "python", "exit 0")
    assert make(clone, "PYTHON=./python").returncode == 0
    assert not (clone / "calls").exists()


def test_an_environment_to_compare_with_that_cannot_be_made_is_named_and_the_other_one_is_used(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by = 'case "$*" in "-m venv"*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python";; *vllm.txt) exit 1;; esac'
    program(clone / ".venv" / "bin" / "python", made_by)
    made = make(clone, goal="interop")
    assert made.returncode != 0
    assert "tests/interop/vllm.txt can't be installed here" in made.stderr
    monkeypatch.setattr(interop, "ENVIRONMENTS", clone / interop.ENVIRONMENTS.relative_to(ROOT))
    for name in ("FLEDGE_SPECULATORS_PYTHON", "FLEDGE_VLLM_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    assert interop.interpreter("speculators") == str(clone / ".venv/interop/speculators/bin/python")
    with pytest.raises(pytest.skip.Exception, match="with vllm: make interop, or set FLEDGE_VLLM_PYTHON"):
        interop.interpreter("vllm")
    monkeypatch.setenv("FLEDGE_VLLM_PYTHON", "/elsewhere/python")
    assert interop.interpreter("vllm") == "/elsewhere/python"
