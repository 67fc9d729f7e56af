"""The first command of a new user: a Python that won't do, or half an environment, doesn't end in a riddle."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints-cpu.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def make(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", *arguments, "PIP=true", "install-user"]
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
