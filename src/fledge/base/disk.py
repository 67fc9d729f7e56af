"""Local files and folders: complete, and durable across a power loss."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock


def make_folder(path: Path) -> None:
    """Create a local folder and its parents. A dangling link on the way is named in the error."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        for link in (path, *path.parents):
            if link.is_file():
                raise OSError(f"{link} is a file, not a folder") from error
            if link.is_symlink() and not link.exists():
                raise OSError(
                    f"{link} is a link to {os.readlink(link)}, which isn't there (make that folder, or delete the link)"
                ) from error
        raise


def neighbours(path: Path) -> list[str]:
    """The names in the folder of a file that may be missing, to find what a misspelt one means."""
    return os.listdir(path.parent) if path.parent.is_dir() else []


@contextmanager
def no_empty_folders(path: Path) -> Iterator[None]:
    """Afterwards, delete the folder and its parents if they were made in this block and are empty."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield
    finally:
        with suppress(OSError):  # the first that holds something ends it
            for folder in missing:
                folder.rmdir()


def file_lock(path: Path) -> BaseFileLock:
    """A lock on a file in an existing folder; on a file system without flock, the file's existence is the lock.

    filelock does that if flock returns ENOSYS. ENOLCK stays an error: it may be gone a moment later, and then two
    processes would hold different kinds of locks.
    """
    with tempfile.TemporaryFile(dir=path.parent) as probe:
        try:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno == errno.ENOTSUP:
                return SoftFileLock(path)
    return FileLock(path)


def write_through(path: Path) -> None:
    """Wait until a local file, or the names in a folder, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file, given by its consecutive parts, that appears completely or not at all."""
    # The same name each time: leftovers of a killed process are overwritten when the shard is written again.
    aside = path.with_name(f".{path.name}.partial")
    make_folder(path.parent)
    try:
        with open(aside, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def read_ranges(path: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
    """Read ranges without a memory map, which would count every touched page as this process' memory."""
    blocks = []
    with open(path, "rb", buffering=0) as file:
        for start, stop in ranges:
            data = bytearray(stop - start)
            file.seek(start)
            done = 0
            while done < len(data) and (count := file.readinto(memoryview(data)[done:])):
                done += count
            blocks.append(data[:done] if done < len(data) else data)
    return blocks
