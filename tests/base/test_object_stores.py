"""gs:// and s3:// folders: what fails for a moment is tried again, and nothing is lost or changed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import fsspec
import pytest
import torch

for package in ("gcsfs", "gcp_storage_emulator", "s3fs", "moto"):
    pytest.importorskip(package)

from fledge.base import retry, storage  # noqa: E402
from fledge.base.errors import StorageError  # noqa: E402
from fledge.base.storage import Manifest  # noqa: E402
from fledge.features import FeatureStore, verify_store, write_shard  # noqa: E402
from tests.base.object_stores import Fault, Proxy, running_gcs, running_s3  # noqa: E402
from tests.features.test_store import samples  # noqa: E402


@pytest.fixture(scope="module", params=["gs", "s3"])
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    with running_gcs() if request.param == "gs" else running_s3() as proxy:
        yield proxy


@pytest.fixture
def cloud(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    sleep = asyncio.sleep

    async def soon(seconds: float) -> None:
        await sleep(0)  # others get their turn

    monkeypatch.setattr("asyncio.sleep", soon)  # the clients' pauses between attempts
    monkeypatch.setattr(retry, "FIRST_PAUSE", 0.001)
    for name, value in proxy.environment.items():
        monkeypatch.setenv(name, value)
    kind = fsspec.get_filesystem_class(proxy.bucket.partition(":")[0])
    kind.clear_instance_cache()
    proxy.behave()
    yield proxy
    kind.clear_instance_cache()


@pytest.fixture
def folder(cloud: Proxy) -> str:
    """One that is there for this test alone."""
    return f"{cloud.bucket}/{uuid4().hex}/features"


def test_files_appear_are_listed_and_removed(cloud: Proxy, folder: str):
    storage.write_atomic(f"{folder}/a.bin", b"abcdef")
    assert storage.exists(f"{folder}/a.bin")
    assert not storage.exists(f"{folder}/b.bin")
    assert storage.file_size(f"{folder}/a.bin") == 6
    assert storage.read_ranges(f"{folder}/a.bin", [(0, 2), (3, 6), (4, 9)]) == [b"ab", b"def", b"ef"]
    assert storage.list_files(folder) == [f"{folder}/a.bin"]
    storage.remove(f"{folder}/a.bin")
    assert not storage.exists(f"{folder}/a.bin")
    with pytest.raises(StorageError, match="does not exist"):
        storage.read_bytes(f"{folder}/a.bin")


# The next test but one has the others, for single calls.
@pytest.mark.parametrize(
    "fault",
    ["503", "cut", "slow", *(pytest.param(one, marks=pytest.mark.slow) for one in ("500", "429", "reset"))],
)
def test_faults_are_tried_again_and_lose_nothing(cloud: Proxy, folder: str, fault: Fault):
    cloud.plan = lambda number: fault if number % 3 == 0 else None
    manifest = Manifest.load(folder)
    for number in range(3):
        manifest = write_shard(manifest, samples(4, 100 * number), "bf16")
    store = FeatureStore(folder)
    assert len(store.samples) == 12
    for number, info in enumerate(store.samples):
        wanted = samples(4, 100 * (number // 4))[number % 4]
        assert torch.equal(store.read(info).features, wanted.features)
    assert verify_store(folder).faults == ()
    assert cloud.faults.count(fault) > 10


def test_a_store_that_stays_broken_is_an_error_that_names_the_place(cloud: Proxy, folder: str):
    storage.write_atomic(f"{folder}/a.bin", b"abc")
    cloud.plan = lambda number: "503"
    with pytest.raises(
        StorageError, match=rf"can't read {folder}/a\.bin: .*; it stayed so 5 times; run again once"
    ):
        storage.read_bytes(f"{folder}/a.bin")
    cloud.plan = lambda number: None
    assert storage.read_bytes(f"{folder}/a.bin") == b"abc"


@pytest.mark.parametrize("fault", ["503", "500", "429", "reset"])
def test_what_the_client_gives_up_is_tried_again(cloud: Proxy, folder: str, fault: Fault, tmp_path: Path):
    url = f"{folder}/a.bin"
    storage.write_atomic(url, b"abc")
    actions: list[Callable[[], object]] = [
        lambda: storage.write_atomic(url, b"abcdef"),
        lambda: storage.read_bytes(url) == b"abcdef",
        lambda: storage.read_ranges(url, [(1, 3)]) == [b"bc"],
        lambda: storage.list_files(folder) == [url],
        lambda: storage.file_size(url) == 6,
        lambda: storage.copy_here(url, tmp_path / "copy"),
        lambda: storage.remove(url),
        lambda: not storage.exists(url),
    ]
    for action in actions:
        fail_next(cloud, fault, 8)  # clients try five or six times
        assert action() in (None, True)
        assert cloud.plan(cloud.requests) is None  # all of them failed, and then one didn't
    assert (tmp_path / "copy").read_bytes() == b"abcdef"


def fail_next(cloud: Proxy, fault: Fault, count: int) -> None:
    last = cloud.requests + count
    cloud.plan = lambda number: fault if number <= last else None


def test_a_body_that_is_cut_off_is_read_again(cloud: Proxy, folder: str):
    data = bytes(range(256)) * 64
    storage.write_atomic(f"{folder}/a.bin", data)
    fail_next(cloud, "cut", 8)
    assert storage.read_bytes(f"{folder}/a.bin") == data
    fail_next(cloud, "cut", 8)
    assert storage.read_ranges(f"{folder}/a.bin", [(5, 9000)]) == [data[5:9000]]


def test_what_cannot_pass_is_not_tried_again_and_the_stores_own_reason_is_named(cloud: Proxy):
    elsewhere = cloud.bucket.replace("bucket", "missing")
    with pytest.raises(StorageError, match=r"can't write .*missing.*; make the bucket, or check its name"):
        storage.write_atomic(f"{elsewhere}/run/fingerprint.json", b"{}")
    assert not storage.exists(f"{elsewhere}/run/fingerprint.json")
    fsspec.core.url_to_fs(elsewhere)[0].mkdir("missing")  # as the error says
    storage.write_atomic(f"{elsewhere}/run/fingerprint.json", b"{}")
    cloud.plan = lambda number: "403"
    before = cloud.requests
    with pytest.raises(
        StorageError,
        match=r"can't write .*(AccessDenied|Forbidden).*try later; check the URL, the credentials",
    ):
        storage.write_atomic(f"{cloud.bucket}/a.bin", b"abc")
    assert cloud.requests - before <= 2


def test_a_file_that_the_store_does_not_let_go_is_not_taken_for_deleted(cloud: Proxy, folder: str):
    if folder.startswith("gs"):
        pytest.skip("Google's store has no answer of this kind")
    storage.write_atomic(f"{folder}/a.bin", b"abc")
    cloud.plan = lambda number: "kept"
    with pytest.raises(
        StorageError, match=r"can't delete .*the store keeps it; check the URL, the credentials"
    ):
        storage.remove(folder)


def test_settings_that_lead_nowhere_are_said_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setattr(retry, "FIRST_PAUSE", 1000.0)
    for name, value, reason in (
        ("AWS_PROFILE", "unheard_of", "profile .unheard_of. could not be found"),
        ("AWS_ENDPOINT_URL", "nonsense", "Invalid endpoint"),
    ):
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with pytest.raises(StorageError, match=rf"can't look at s3://b/x: .*{reason}.*; check the URL"):
                storage.exists("s3://b/x")
    with pytest.raises(StorageError, match=r"can't look at s3://Bad_Bucket!/x: .*Invalid bucket name"):
        storage.exists("s3://Bad_Bucket!/x")


def test_damage_in_a_bucket_is_named(cloud: Proxy, folder: str, tmp_path: Path):
    manifest = write_shard(Manifest.load(folder), samples(3), "fp8")
    url = manifest.url(manifest.shards[0])
    data = bytearray(storage.read_bytes(url))
    data[-1] ^= 1
    storage.write_atomic(url, bytes(data))
    store = FeatureStore(folder)
    with pytest.raises(StorageError, match=r"features-00000\.safetensors is damaged: wrong checksum"):
        store.read_many(store.samples)
    storage.write_atomic(url, bytes(data[:-100]))
    with pytest.raises(StorageError, match=r"features-00000\.safetensors is damaged: it is truncated"):
        FeatureStore(folder)
    storage.remove(url)
    with pytest.raises(StorageError, match=r"features-00000\.safetensors is missing"):
        FeatureStore(folder)


def test_verify_finds_every_fault_planted_in_a_bucket_and_a_foreign_manifest_is_named(
    cloud: Proxy, folder: str
):
    cloud.plan = lambda number: "503" if number % 7 == 0 else None
    manifest = Manifest.load(folder)
    for number in range(4):
        manifest = write_shard(manifest, samples(2, 10 * number), "bf16")
    places = [manifest.url(shard) for shard in manifest.shards]
    data = bytearray(storage.read_bytes(places[0]))
    data[-1] ^= 1
    storage.write_atomic(places[0], bytes(data))
    storage.remove(places[1])
    storage.write_atomic(places[2], storage.read_bytes(places[2])[:-8])
    faults = verify_store(folder).faults
    assert len(faults) == 3
    for number, (fault, words) in enumerate(zip(faults, ("checksum", "missing", "truncated"), strict=True)):
        assert f"features-{number:05d}" in fault
        assert words in fault
    other = f"{cloud.bucket}/other"
    write_shard(Manifest.load(other), samples(2, 50), "bf16")
    storage.write_atomic(f"{folder}/manifest.json", storage.read_bytes(f"{other}/manifest.json"))
    with pytest.raises(StorageError, match=r"features-00000\.safetensors is damaged"):
        FeatureStore(folder)
