"""One process at a time in a run folder: who holds it is named, and what to do about it."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from filelock import FileLock

from fledge.run.folder import Run
from fledge.run.recipe import load_recipe
from tests.base.forked import forked
from tests.commands.command import Fledge


def test_a_run_folder_in_use(fledge: Fledge, small_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / ".lock"):
        assert "another fledge is at work" in fledge.error("run", small_recipe, "--run-dir", tmp_path / "run")


def hold(recipe: str, folder: str) -> None:
    with Run(load_recipe(recipe), folder).locked():
        (Path(folder) / "held").touch()
        time.sleep(600)


def holding(hold: Callable[..., None], recipe: Path, folder: Path, *more: object) -> BaseProcess:
    """A process that has the run's folder."""
    other = forked(hold, str(recipe), str(folder), *more)
    while not (folder / "held").exists():
        assert other.is_alive()
        time.sleep(0.01)
    return other


def test_who_uses_a_run_folder_is_named_and_no_more_once_it_is_gone(
    fledge: Fledge, small_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    other = holding(hold, small_recipe, folder)
    told = fledge.error("prompts", small_recipe, "--run-dir", folder)
    assert f"another fledge (process {other.pid} on " in told
    assert f") is at work in {folder}; wait" in told
    other.kill()
    other.join()
    assert "run `fledge prompts` first" in fledge.error("respond", small_recipe, "--run-dir", folder)


def flock_missing(*_: object) -> None:
    """`fcntl.flock` as some Lustre and FUSE mounts answer it."""
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def flock_not_supported(*_: object) -> None:
    """As some NFS and FUSE mounts answer it."""
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def hold_without_flock(
    recipe: str, folder: str, host: str, flock: Callable[..., None] = flock_missing
) -> None:
    fcntl.flock = flock
    if host:
        socket.gethostname = lambda: host
    hold(recipe, folder)


@pytest.mark.parametrize(
    ("flock", "exchange"),
    [(flock_missing, True), (flock_missing, False), (flock_not_supported, True)],
    ids=["missing", "missing, and no atomic exchange", "not supported"],
)
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_without_flock_a_run_folder_is_locked_and_a_killed_owner_does_not_keep_it(
    fledge: Fledge,
    small_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flock: Callable[..., None],
    exchange: bool,
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock)
    if not exchange:
        recovery = pytest.importorskip("filelock._soft._exclusive._recovery")  # of filelock 4
        monkeypatch.setattr(recovery, "exchange_supported", lambda: False)
    folder = tmp_path / "run"
    other = holding(hold_without_flock, small_recipe, folder, "", flock)
    assert f"another fledge (process {other.pid} on " in fledge.error(
        "prompts", small_recipe, "--run-dir", folder
    )
    other.kill()
    other.join()
    for _ in range(2):
        assert "run `fledge prompts` first" in fledge.error("respond", small_recipe, "--run-dir", folder)


@pytest.mark.parametrize("left", ["of another host", "without a record"])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_lock_that_cannot_be_known_to_be_stale_goes_as_the_error_says(
    fledge: Fledge, small_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(fcntl, "flock", flock_missing)
    folder = tmp_path / "run"
    folder.mkdir()
    if left == "without a record":
        (folder / ".lock").touch()  # as a lock with flock leaves it: the folder was copied here
        named = "another fledge is at work"
    else:
        other = holding(hold_without_flock, small_recipe, folder, "node17")
        other.kill()
        other.join()
        named = f"another fledge (process {other.pid} on node17) is at work"
    told = fledge.error("respond", small_recipe, "--run-dir", folder)
    assert named in told
    Path(told.split("if it no longer runs, delete ")[1]).unlink()
    assert "run `fledge prompts` first" in fledge.error("respond", small_recipe, "--run-dir", folder)


def test_what_fails_in_a_run_is_not_said_of_its_folder(small_recipe: Path, tmp_path: Path) -> None:
    run = Run(load_recipe(str(small_recipe)), str(tmp_path / "run"))
    with pytest.raises(ConnectionRefusedError), run.locked():
        raise ConnectionRefusedError
    with run.locked():
        pass


def test_a_run_folder_that_is_a_file(fledge: Fledge, small_recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    assert "name another --run-dir" in fledge.error("run", small_recipe, "--run-dir", tmp_path / "run")


@pytest.mark.parametrize("advice", ["make that folder", "delete the link", "name another --run-dir"])
def test_a_run_folder_that_is_a_link_to_nowhere(
    fledge: Fledge, small_recipe: Path, tmp_path: Path, advice: str
) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "unmounted")
    told = fledge.error("run", small_recipe, "--run-dir", tmp_path / "run")
    assert f"run is a link to {tmp_path}/unmounted, which isn't there" in told
    assert advice in told
    if advice == "make that folder":
        (tmp_path / "unmounted").mkdir()
    elif advice == "delete the link":
        (tmp_path / "run").unlink()
    folder = tmp_path / ("other" if advice == "name another --run-dir" else "run")
    with Run(load_recipe(str(small_recipe)), str(folder)).locked():
        assert folder.is_dir()
