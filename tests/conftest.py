"""Fixtures shared by all rooms' tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported, which torch may do

import hypothesis
import pytest
from filelock import FileLock

from fledge.base import child
from fledge.native.build import cache_folder
from tests.commands.command import Fledge
from tests.kernels import pytest_runtest_setup, pytest_sessionfinish
from tests.run.small_run import write_small_recipe

if TYPE_CHECKING:
    from fledge.target import Target

# torch and transformers are imported in fixtures: the process that only hands out tests needn't wait for them.

__all__ = ["pytest_runtest_setup", "pytest_sessionfinish"]  # hooks

child._POLL_S = 0.05  # servers that tests start are there within a fraction of a second
# A cache of the tests' own: nothing passes by what an older version left there, and the user's holds no tiny targets.
# Compiled kernels alone are shared, which are found by a hash of their sources.
_CACHE = tempfile.TemporaryDirectory(prefix="fledge-tests-")
_KERNELS = cache_folder() / "native"
_KERNELS.mkdir(parents=True, exist_ok=True)
(Path(_CACHE.name) / "native").symlink_to(_KERNELS.resolve())
os.environ["FLEDGE_CACHE"] = _CACHE.name
# Timings belong in benchmarks: a busy machine must not fail a test.
hypothesis.settings.register_profile("fledge", deadline=None)
hypothesis.settings.load_profile("fledge")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tests run in a process per core."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def fledge(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fledge:
    """Calls the command line."""
    return Fledge(monkeypatch, capsys)


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of all of pytest's processes: each of xdist's has one of its own below it."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(pytestconfig, "workerinput") else own


@pytest.fixture(scope="session")
def tiny_target_folder(shared: Path) -> Path:
    """A tiny tied Llama (8 layers, hidden 64, vocabulary 512, ChatML) in bf16. Read only."""
    from tests.tiny import save_tiny_target

    return made_once(shared, "llama", save_tiny_target)


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    """The same in float32. A room or a file whose tests need another has a `target` of its own."""
    from tests.heads.tiny_head import load_tiny_target

    return load_tiny_target(tiny_target_folder)


@pytest.fixture(scope="session")
def small_recipe(tmp_path_factory: pytest.TempPathFactory, tiny_target_folder: Path) -> Path:
    """A recipe file that goes through a whole run of the tiny target in seconds."""
    return write_small_recipe(tmp_path_factory.mktemp("recipe") / "recipe.yaml", tiny_target_folder)


@pytest.fixture(scope="session")
def finished_run(shared: Path, tmp_path_factory: pytest.TempPathFactory, small_recipe: Path) -> Path:
    """The folder of a finished run of it. Read only; tests copy it."""
    from fledge.run.folder import Run
    from fledge.run.pipeline import run_pipeline  # everything there is: tests of one room needn't wait for it
    from fledge.run.recipe import load_recipe

    def run(folder: Path) -> None:
        run_pipeline(Run(load_recipe(str(small_recipe)), str(folder), command="fledge run recipe.yaml"))

    made = made_once(shared, "run", run)
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("run") / "run"))  # commands lock the folder


def made_once(shared: Path, name: str, make: Callable[[Path], object]) -> Path:
    """What the first of pytest's processes makes for all of them. Read only."""
    place, done = shared / name, shared / f"{name}.done"
    with FileLock(shared / f"{name}.lock"):
        if not done.exists():
            make(place)
            done.touch()
    return place
