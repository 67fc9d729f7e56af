"""`fledge cache`: what is kept between runs besides runs, and deleting it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

_KINDS = ("targets", "native", "revisions")  # descriptions of GGUF files, compiled kernels, hashes of weights


class Kept(NamedTuple):
    """An entry of the cache."""

    kind: str
    path: Path

    @property
    def label(self) -> str:
        return self.kind if self.path.name == self.kind else f"{self.kind}/{self.path.name}"

    @property
    def files(self) -> list[Path]:
        found = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return [path for path in found if path.is_file()]


def cache(
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="delete this entry, or all of a kind; may be repeated"),
    ] = None,
) -> None:
    """Show what is cached, with sizes and age; whatever is deleted is made again when it is needed."""
    from fledge.base.console import human_bytes
    from fledge.base.errors import StorageError, did_you_mean
    from fledge.native.build import cache_folder

    folder = cache_folder()
    kept = _entries(folder)
    for name in delete or ():
        chosen = [entry for entry in kept if name in (entry.kind, entry.path.name)]
        if not chosen:
            close = did_you_mean(name, [*_KINDS, *(entry.path.name for entry in kept)])
            raise StorageError(f"{folder} holds no {name!r}{close}; see fledge cache")
        for entry in chosen:
            typer.echo(f"deleted: {entry.label}")
            _remove(entry.path)
            kept.remove(entry)
    total = 0
    for entry in kept:
        files = entry.files
        size = sum(path.stat().st_size for path in files)
        written = max((path.stat().st_mtime for path in files), default=entry.path.stat().st_mtime)
        day = time.strftime("%Y-%m-%d", time.localtime(written))
        typer.echo(f"{human_bytes(size):>10}  {day}  {entry.label}")
        total += size
    typer.echo(f"{human_bytes(total):>10}  in {folder} ($FLEDGE_CACHE names another folder)")


def _entries(folder: Path) -> list[Kept]:
    found = [
        Kept(kind, path)
        for kind in _KINDS[:2]
        for path in sorted((folder / kind).glob("*"))
        if path.suffix != ".lock"
    ]
    revisions = folder / _KINDS[2]
    return [*found, Kept(_KINDS[2], revisions)] if revisions.is_dir() else found


def _remove(path: Path) -> None:
    """Delete it whole: another process sees it complete or not at all."""
    away = path.rename(path.with_name(f".making-{path.name}-deleted"))
    if away.is_dir():
        shutil.rmtree(away)
    else:
        away.unlink()
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
