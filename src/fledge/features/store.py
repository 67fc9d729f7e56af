"""The feature store: a folder of shards with a manifest, on any fsspec URL.

    features/   manifest.json   features-00000.safetensors   features-00001.safetensors   ...      (see shard.py)

Opening reads only headers. Each conversation is read separately with a few ranged reads and checked against its
checksum, so neither memory nor the time until training starts grows with the store.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

from torch import Tensor

from fledge.base.console import plural
from fledge.base.errors import StorageError
from fledge.base.storage import Manifest, ShardEntry, join, list_files, local_path, sha256, write_atomic
from fledge.data.options import Progress, silent
from fledge.features.options import Codec
from fledge.features.shard import FeatureSample, SampleInfo, Shard, header_of, shard_bytes

_OPENERS = 16  # headers of a remote store read concurrently
_IDS_KEPT = 18  # shards whose parsed headers (remote: and ids) stay in memory: more than a shuffle needs


def write_shard(manifest: Manifest, samples: Sequence[FeatureSample], codec: Codec = "bf16") -> Manifest:
    """Append one shard atomically."""
    return manifest.append(put_shard(manifest.folder, len(manifest.shards), samples, codec))


def put_shard(
    folder: str, number: int, samples: Sequence[FeatureSample], codec: Codec = "bf16"
) -> ShardEntry:
    """Write the file of a shard, which belongs to the store once it is in the manifest."""
    name, data = _shard_name(number), shard_bytes(samples, codec)
    write_atomic(join(folder, name), data)
    tokens = sum(len(s.token_ids) for s in samples)
    return ShardEntry(name, len(data), sha256(data), len(samples), tokens, sha256(header_of(data)))


class FeatureStore:
    """Reads a folder of feature shards. Thread-safe."""

    ahead = 2  # batches worth reading ahead
    readers = 1  # threads that do

    def __init__(self, url: str) -> None:
        self.url = str(url)
        self.manifest = Manifest.load(self.url)
        if not self.manifest.shards:
            raise StorageError(
                f"no features in {self.url}; run `fledge features` first or name another folder"
            )
        numbers = range(len(self.manifest.shards))
        if local_path(self.url) is not None:  # no latency to hide
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
        """Several conversations with their hidden states."""
        return [self.read(info) for info in infos]

    def tokens(self, info: SampleInfo) -> tuple[Tensor, Tensor]:
        """Token ids and loss mask of a conversation."""
        return self._used(info.shard).ids(info.index)

    def _open(self, number: int) -> tuple[Shard, list[SampleInfo]]:
        entry = self.manifest.shards[number]
        shard = Shard(self.manifest.url(entry), entry)
        infos = shard.infos(number)
        shard.forget()  # immediately: all parsed headers together would be ten times as large
        return shard, infos

    def _used(self, number: int) -> Shard:
        """The shard; the least recently used ones free their ids."""
        with self._lock:
            self._recent[number] = None
            self._recent.move_to_end(number)
            while len(self._recent) > _IDS_KEPT:
                oldest, _ = self._recent.popitem(last=False)
                self._shards[oldest].forget()
        return self._shards[number]


@dataclass(frozen=True)
class StoreCheck:
    """The result of a check."""

    shards: int
    conversations: int
    bytes: int
    faults: tuple[str, ...]  # one line each, starting with the file; empty: the store is sound


def verify_store(url: str, progress: Progress = silent) -> StoreCheck:
    """Read everything once and list every fault."""
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
            shard_faults = _conversation_faults(shard)
            if not shard_faults:
                try:
                    manifest.read_shard(entry)
                except StorageError as error:
                    shard_faults.append(str(error))
            faults += shard_faults
        done += entry.bytes
        progress(done, manifest.size, plural(len(faults), "fault"))
    listed = {entry.name for entry in manifest.shards}
    # The next one may be left over from a killed extraction, and will be overwritten.
    listed.add(_shard_name(len(listed)))
    for place in list_files(url, ".safetensors"):
        if place.rsplit("/", 1)[-1] not in listed:
            faults.append(
                f"{place} isn't in {join(url, 'manifest.json')}: the manifest is old or another store's"
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
