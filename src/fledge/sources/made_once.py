"""Cache folders that take long to create: complete or absent, and never created twice."""

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

logger = logging.getLogger("fledge.note")

_PATIENCE = 5.0  # seconds to wait silently


def made_once(final: Path, make: Callable[[Path], None]) -> Path:
    """`final`, created if missing: `make` fills a folder beside it, which is then renamed."""
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
        logger.warning("waiting for another fledge that makes %s; if none is running, delete %s", final, path)
        return lock.acquire()


def _make(final: Path, make: Callable[[Path], None]) -> None:
    prefix = f".making-{final.name}-"
    for left_over in final.parent.glob(f"{prefix}*"):  # of a killed process: we hold the lock now
        shutil.rmtree(left_over, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=final.parent, prefix=prefix))
    try:
        make(scratch)
        os.chmod(scratch, 0o755)
        # A rename may reach the disk before the renamed files: after a power loss they would exist but be empty.
        for path in (*scratch.rglob("*"), scratch):
            write_through(path)
        os.rename(scratch, final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
