"""A model folder's weight files, and cached digests of files."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from fledge.base.errors import TargetError

_FORMAT = 3  # raise it when the hashed content or method changes


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, single or sharded; [] if there are none or one is missing."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            files = [folder / name for name in sorted(shards)]
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise TargetError(f"{index} can't be read ({error!r}): download it again") from error
    else:
        files = [folder / "model.safetensors"]
    return files if all(file.exists() for file in files) else []


def cached_digest(files: list[Path], cache: Path, compute: Callable[[], str], *, also: str = "") -> str:
    """`compute()`, or its cached result if no file has changed its size or times; `also`: what else it depends on."""
    stamps: list[list[str | int]] = []
    for file in files:
        status = file.stat()
        # A tool that resets the modification time can't reset the change time.
        stamps.append([str(file.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns])
    key = hashlib.sha256(json.dumps([_FORMAT, also, [stamp[0] for stamp in stamps]]).encode()).hexdigest()[
        :32
    ]
    note = cache / "revisions" / f"{key}.json"
    try:
        cached = json.loads(note.read_text(encoding="utf-8"))
        if cached["stamps"] == stamps:
            return str(cached["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # missing or foreign note: recompute
    digest = compute()
    _write_note(note, json.dumps({"stamps": stamps, "digest": digest}))
    return digest


def _write_note(note: Path, text: str) -> None:
    """Write to a temporary file, then rename. The note only saves time, so an unwritable cache is not an error."""
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=note.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(name, note)
    except OSError:
        return
