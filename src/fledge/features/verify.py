"""Checking a whole feature store: every file against the manifest, every conversation against its checksum."""

from __future__ import annotations

from dataclasses import dataclass

from fledge.data.options import Progress, silent
from fledge.errors import StorageError
from fledge.features.shard import Shard
from fledge.storage import Manifest, join, list_files


@dataclass(frozen=True)
class StoreCheck:
    """What a check found."""

    shards: int
    conversations: int
    bytes: int
    faults: tuple[str, ...]  # one line each, the file first; none: the store is sound


def verify_store(url: str, progress: Progress = silent) -> StoreCheck:
    """Read everything once and name every fault."""
    manifest = Manifest.load(url)
    if not manifest.shards:
        raise StorageError(f"no features in {url}; run `fledge features` first or name another folder")
    faults: list[str] = []
    done = 0
    for entry in manifest.shards:
        try:
            shard = Shard(manifest.url(entry), entry)
        except StorageError as error:
            faults.append(str(error))
        else:
            found = _conversation_faults(shard)
            if not found:
                try:
                    manifest.read_shard(entry)
                except StorageError as error:
                    found.append(str(error))
            faults += found
        done += entry.bytes
        progress(done, manifest.size, f"{len(faults)} faults")
    known = {entry.name for entry in manifest.shards}
    for place in list_files(url, ".safetensors"):
        if place.rsplit("/", 1)[-1] not in known and place.rsplit("/", 1)[-1] != _next_name(manifest):
            faults.append(
                f"{place} isn't in {join(url, 'manifest.json')}: the manifest is another store's, or old"
            )
    return StoreCheck(len(manifest.shards), manifest.records, manifest.size, tuple(faults))


def _conversation_faults(shard: Shard) -> list[str]:
    faults = []
    for index in range(len(shard.lengths)):
        try:
            shard.read(index)
        except StorageError as error:
            faults.append(str(error))
    return faults


def _next_name(manifest: Manifest) -> str:
    """The file that a killed extraction may have left; it will be written again."""
    return f"features-{len(manifest.shards):05d}.safetensors"
