"""CI's steps: a step that fails fails the run, and the slow tests of killed, split and spread work are among them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.test_makefile import program

ROOT = Path(__file__).parents[1]
STEPS = ["install", "lint", "test", "test-distributed", "documentation", "audit"]


def run_ci(folder: Path, fails: str = "") -> tuple[int, list[str]]:
    """Run a copy of `.ci/run` whose steps only write their names, and one of which fails."""
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    step = 'echo "{0}" >> steps; test "{0}" != "$FAILS"'
    program(folder / "bin" / "make", step.format("$1"))
    program(folder / "bin" / "qemu-aarch64", "true")  # or a package manager would be asked for it
    program(folder / ".venv" / "bin" / "python", step.format("documentation"))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    command, environment = ["bash", ".ci/run"], os.environ | {"PATH": path, "FAILS": fails}
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return ended.returncode, (folder / "steps").read_text().split()


def test_all_steps_are_run(tmp_path: Path) -> None:
    assert run_ci(tmp_path) == (0, STEPS)


@pytest.mark.parametrize("step", STEPS[:-1])
def test_a_step_that_fails_fails_the_run(tmp_path: Path, step: str) -> None:
    status, steps = run_ci(tmp_path, fails=step)
    assert status != 0
    assert steps[-1] == step


def test_an_advisory_does_not(tmp_path: Path) -> None:
    assert run_ci(tmp_path, fails="audit") == (0, STEPS)


@pytest.mark.parametrize(
    "file",
    [
        "data/test_kill.py",
        "data/test_ray.py",
        "features/test_ray_extract.py",
        "run/test_pipeline_kill.py",
        "train/test_parallel.py",
    ],
)
def test_slow_tests_of_kills_torchrun_and_ray_are_among_them(file: str) -> None:
    text = (ROOT / "tests" / file).read_text("utf-8")
    assert text.count("@pytest.mark.slow\n@pytest.mark.distributed\n") == text.count("@pytest.mark.slow") > 0


def test_the_workflow_puts_the_repositorys_address_into_the_metadata(tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (line,) = re.findall(
        r"^ +(printf .*>> pyproject\.toml)$", (ROOT / ".github/workflows/ci.yml").read_text(), re.M
    )
    address = "https://example.org/one/fledge"
    subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env={"URL": address, "PATH": os.environ["PATH"]}, check=True
    )
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["urls"] == {"Source": address, "Issues": f"{address}/issues"}
    assert project["name"] == "fledge"
