"""The feature store: a folder of shards with a manifest, on any fsspec URL.

    features/   manifest.json   features-00000.safetensors   features-00001.safetensors   ...      (see shard.py)

Opening reads headers only. A conversation is read by itself with a few ranged reads and checked against its checksum,
so memory doesn't grow with the store, and neither does the time until training starts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from torch import Tensor

from fledge.base.errors import StorageError
from fledge.base.storage import Manifest, ShardEntry, join, list_files, local_path, sha256, write_atomic
from fledge.data.options import Progress, silent
from fledge.features.codec import Codec
from fledge.features.shard import FeatureSample, SampleInfo, Shard, header_of, shard_bytes

_OPENERS = 16  # headers of a remote store read at once
_IDS_KEPT = 18  # shards whose parsed headers (remote: and ids) stay in memory: more than a shuffle's


def write_shard(manifest: Manifest, samples: Sequence[FeatureSample], codec: Codec = "bf16") -> Manifest:
    """Append one shard; it appears whole or not at all."""
    return manifest.append(put_shard(manifest.folder, len(manifest.shards), samples, codec))


def put_shard(
    folder: str, number: int, samples: Sequence[FeatureSample], codec: Codec = "bf16"
) -> ShardEntry:
    """Write the file of a shard. It belongs to the store once the manifest names it."""
    name, data = _shard_name(number), shard_bytes(samples, codec)
    write_atomic(join(folder, name), data)
    tokens = sum(len(s.token_ids) for s in samples)
    return ShardEntry(name, len(data), sha256(data), len(samples), tokens, sha256(header_of(data)))


class FeatureStore:
    """Reads a folder of feature shards. Threads may share it."""

    ahead = 2  # batches worth reading ahead

    def __init__(self, url: str) -> None:
        self.url = str(url)
        self.manifest = Manifest.load(self.url)
        if not self.manifest.shards:
            raise StorageError(
                f"no features in {self.url}; run `fledge features` first or name another folder"
            )
        numbers = range(len(self.manifest.shards))
        if local_path(self.url) is not None:  # nothing to wait for
            opened = list(map(self._open, numbers))
        else:
            with ThreadPoolExecutor(_OPENERS) as pool:
                opened = list(pool.map(self._open, numbers))
        self._shards: list[Shard] = [shard for shard, _ in opened]
        sizes = {shard.hidden_size for shard in self._shards}
        if len(sizes) > 1:
            raise StorageError(
                f"{self.url} holds shards of different targets (hidden sizes {sorted(sizes)}); "
                f"delete {self.url} and run again"
            )
        self.hidden_size = sizes.pop()
        self.samples: tuple[SampleInfo, ...] = tuple(info for _, infos in opened for info in infos)
        self._recent: OrderedDict[int, None] = OrderedDict()
        self._lock = Lock()

    def split(self, name: str) -> list[SampleInfo]:
        """The conversations of "train" or "heldout", in stored order."""
        return [info for info in self.samples if info.split == name]

    def read(self, info: SampleInfo) -> FeatureSample:
        """One conversation with its hidden states."""
        return self._used(info.shard).read(info.index)

    def read_many(self, infos: Sequence[SampleInfo]) -> list[FeatureSample]:
        """Several of them."""
        return [self.read(info) for info in infos]

    def tokens(self, info: SampleInfo) -> tuple[Tensor, Tensor]:
        """Its token ids and loss mask alone."""
        return self._used(info.shard).ids(info.index)

    def _open(self, number: int) -> tuple[Shard, list[SampleInfo]]:
        entry = self.manifest.shards[number]
        shard = Shard(self.manifest.url(entry), entry)
        infos = shard.infos(number)
        shard.forget()  # at once: all shards' parsed headers together are ten times as large
        return shard, infos

    def _used(self, number: int) -> Shard:
        """The shard; those not used for long forget their ids."""
        with self._lock:
            self._recent[number] = None
            self._recent.move_to_end(number)
            while len(self._recent) > _IDS_KEPT:
                oldest, _ = self._recent.popitem(last=False)
                self._shards[oldest].forget()
        return self._shards[number]


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
    # The next one may have been left by an extraction that was killed, and will be written again.
    known.add(_shard_name(len(known)))
    for place in list_files(url, ".safetensors"):
        if place.rsplit("/", 1)[-1] not in known:
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


def _shard_name(number: int) -> str:
    return f"features-{number:05d}.safetensors"
