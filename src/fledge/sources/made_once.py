"""Folders of the cache that take long to make: whole or not there, and never made twice."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import AcquireReturnProxy, Timeout

from fledge.base.disk import file_lock, make_folder, write_through
from fledge.base.errors import StorageError

logger = logging.getLogger("fledge.once")

_PATIENCE = 5.0  # seconds of waiting in silence


def made_once(final: Path, make: Callable[[Path], None]) -> Path:
    """`final`, made now if it isn't there: `make` fills a folder beside it, which is then renamed."""
    if final.exists():
        return final
    try:
        make_folder(final.parent)
        with _acquired(final.parent / f"{final.name}.lock", final):
            if not final.exists():
                _make(final, make)
    except OSError as error:
        raise StorageError(
            f"can't write {final} ({error}): free some disk space, or set FLEDGE_CACHE to another folder"
        ) from error
    return final


def _acquired(path: Path, final: Path) -> AcquireReturnProxy:
    lock = file_lock(path)
    try:
        return lock.acquire(timeout=_PATIENCE)
    except Timeout:
        logger.warning("waiting for another fledge that makes %s; if none is at work, delete %s", final, path)
        return lock.acquire()


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
            write_through(path)
        os.rename(scratch, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
