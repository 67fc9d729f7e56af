"""Targets in object stores: a folder at any fsspec URL, copied into the cache once."""

from __future__ import annotations

import logging
import posixpath
from fnmatch import fnmatch
from pathlib import Path

from fledge.base import storage
from fledge.base.errors import TargetError
from fledge.sources.hub import UNWANTED, WANTED
from fledge.sources.made_once import made_once

logger = logging.getLogger("fledge.note")


def is_remote(spec: str) -> bool:
    """True if this is an object store's URL rather than a local path."""
    return "://" in spec and storage.local_path(spec) is None


def remote_folder(url: str, cache: Path) -> Path:
    """The copy of a folder's files; copied again if one of them has changed."""
    files = {name: file for file in storage.list_files(url) if _is_wanted(name := posixpath.basename(file))}
    if not files:
        raise TargetError(f"there is no model in {url}: no safetensors, no GGUF file; check the URL")
    versions = "".join(f"{name} {storage.version_of(file)}\n" for name, file in files.items())
    name = posixpath.basename(url.rstrip("/")) or "target"
    key = storage.sha256(f"{url}\n{versions}".encode())[:16]

    def copy(folder: Path) -> None:
        logger.info("copying %s into the cache", url)
        for name, file in files.items():
            storage.copy_here(file, folder / name)

    return made_once(cache / "targets" / f"{name}-{key}", copy)


def _is_wanted(name: str) -> bool:
    """True if a file is one of those downloaded from the hub, or a GGUF file."""
    wanted, unwanted = (any(fnmatch(name, one) for one in globs) for globs in ((*WANTED, "*.gguf"), UNWANTED))
    return wanted and not unwanted
