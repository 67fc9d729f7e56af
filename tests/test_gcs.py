"""gs:// folders through gcsfs: what fails for a moment is tried again, and nothing is lost or changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

gcsfs = pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")

from fledge import retry, storage  # noqa: E402
from fledge.errors import StorageError  # noqa: E402
from fledge.features import FeatureStore, verify_store, write_shard  # noqa: E402
from fledge.storage import Manifest  # noqa: E402
from tests.features.test_store import samples  # noqa: E402
from tests.gcs import BUCKET, Fault, Proxy, running_gcs  # noqa: E402

FOLDER = f"gs://{BUCKET}/features"


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    async def soon(seconds: float) -> None:
        pass

    monkeypatch.setattr("gcsfs.retry.asyncio.sleep", soon)  # its pauses between attempts
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
    with running_gcs() as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        gcsfs.GCSFileSystem.clear_instance_cache()
        yield proxy
        gcsfs.GCSFileSystem.clear_instance_cache()


def test_files_appear_are_listed_and_removed(gcs: Proxy):
    storage.write_atomic(f"{FOLDER}/a.bin", b"abcdef")
    assert storage.exists(f"{FOLDER}/a.bin")
    assert not storage.exists(f"{FOLDER}/b.bin")
    assert storage.file_size(f"{FOLDER}/a.bin") == 6
    assert storage.read_ranges(f"{FOLDER}/a.bin", [(0, 2), (3, 6), (4, 9)]) == [b"ab", b"def", b"ef"]
    assert storage.list_files(FOLDER) == [f"{FOLDER}/a.bin"]
    storage.remove(f"{FOLDER}/a.bin")
    assert not storage.exists(f"{FOLDER}/a.bin")
    with pytest.raises(StorageError, match="does not exist"):
        storage.read_bytes(f"{FOLDER}/a.bin")


@pytest.mark.parametrize("fault", ["503", "reset", "cut", "slow"])
def test_faults_are_tried_again_and_lose_nothing(gcs: Proxy, fault: Fault):
    gcs.plan = lambda number: fault if number % 3 == 0 else None
    manifest = Manifest.load(FOLDER)
    for number in range(3):
        manifest = write_shard(manifest, samples(4, 100 * number), "bf16")
    store = FeatureStore(FOLDER)
    assert len(store.samples) == 12
    for number, info in enumerate(store.samples):
        wanted = samples(4, 100 * (number // 4))[number % 4]
        assert torch.equal(store.read(info).features, wanted.features)
    assert verify_store(FOLDER).faults == ()
    assert gcs.faults.count(fault) > 10


def test_a_store_that_stays_broken_is_an_error_that_names_the_place(gcs: Proxy):
    storage.write_atomic(f"{FOLDER}/a.bin", b"abc")
    gcs.plan = lambda number: "503"
    with pytest.raises(StorageError, match=r"can't read gs://bucket/features/a\.bin"):
        storage.read_bytes(f"{FOLDER}/a.bin")


def test_damage_in_a_bucket_is_named(gcs: Proxy, tmp_path: Path):
    manifest = write_shard(Manifest.load(FOLDER), samples(3), "fp8")
    url = manifest.url(manifest.shards[0])
    data = bytearray(storage.read_bytes(url))
    data[-1] ^= 1
    storage.write_atomic(url, bytes(data))
    store = FeatureStore(FOLDER)
    with pytest.raises(StorageError, match=r"features-00000\.safetensors is damaged: wrong checksum"):
        store.read_many(store.samples)
    storage.write_atomic(url, bytes(data[:-100]))
    with pytest.raises(StorageError, match=r"features-00000\.safetensors is damaged: it is truncated"):
        FeatureStore(FOLDER)
    storage.remove(url)
    with pytest.raises(StorageError, match=r"features-00000\.safetensors is missing"):
        FeatureStore(FOLDER)


def test_verify_finds_every_fault_planted_in_a_bucket_and_a_foreign_manifest_is_named(gcs: Proxy):
    gcs.plan = lambda number: "503" if number % 7 == 0 else None
    manifest = Manifest.load(FOLDER)
    for number in range(4):
        manifest = write_shard(manifest, samples(2, 10 * number), "bf16")
    places = [manifest.url(shard) for shard in manifest.shards]
    data = bytearray(storage.read_bytes(places[0]))
    data[-1] ^= 1
    storage.write_atomic(places[0], bytes(data))
    storage.remove(places[1])
    storage.write_atomic(places[2], storage.read_bytes(places[2])[:-8])
    faults = verify_store(FOLDER).faults
    assert len(faults) == 3
    for number, (fault, words) in enumerate(zip(faults, ("checksum", "missing", "truncated"), strict=True)):
        assert f"features-{number:05d}" in fault
        assert words in fault
    other = f"gs://{BUCKET}/other"
    write_shard(Manifest.load(other), samples(2, 50), "bf16")
    storage.write_atomic(f"{FOLDER}/manifest.json", storage.read_bytes(f"{other}/manifest.json"))
    with pytest.raises(StorageError, match=r"features-00000\.safetensors is damaged"):
        FeatureStore(FOLDER)
