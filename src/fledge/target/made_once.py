"""Folders of the cache that take long to make: whole or not there, and never made twice."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from fledge.errors import StorageError


def made_once(final: Path, make: Callable[[Path], None]) -> Path:
    """`final`, made now if it isn't there: `make` fills a folder beside it, which is then renamed."""
    if final.exists():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(final.parent / f"{final.name}.lock"):
            if not final.exists():
                _make(final, make)
    except OSError as error:
        raise StorageError(
            f"can't write {final} ({error}): free some disk space, or set FLEDGE_CACHE to another folder"
        ) from error
    return final


def _make(final: Path, make: Callable[[Path], None]) -> None:
    prefix = f".making-{final.name}-"
    for left_over in final.parent.glob(f"{prefix}*"):  # of a killed process: the lock is ours now
        shutil.rmtree(left_over, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=prefix))
    try:
        make(scratch)
        os.chmod(scratch, 0o755)
        # A rename may reach the disk before what it renames: after a power loss the files would be there, but empty.
        for path in (*scratch.rglob("*"), scratch):
            _write_through(path)
        os.rename(scratch, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _write_through(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
