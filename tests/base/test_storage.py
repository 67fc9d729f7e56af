"""Files appear whole or not at all, on local and remote file systems; damage and mismatch are named."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import fsspec
import pytest

from fledge.base import storage
from fledge.base.errors import FingerprintError, StorageError
from fledge.base.fingerprint import Fingerprint, make_fingerprint
from fledge.base.storage import Manifest


@pytest.fixture(params=["local", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "stage")
    else:
        url = f"memory://{uuid.uuid4().hex}/stage"
        yield url
        storage.remove(url)


def test_written_bytes_come_back_and_are_listed_in_order(folder: str) -> None:
    for name in ("b.bin", "a.bin", "c.json"):
        storage.write_atomic(storage.join(folder, name), name.encode())
    assert storage.read_bytes(storage.join(folder, "a.bin")) == b"a.bin"
    assert storage.list_files(folder, ".bin") == [
        storage.join(folder, "a.bin"),
        storage.join(folder, "b.bin"),
    ]
    assert storage.list_files(storage.join(folder, "nowhere")) == []
    storage.write_atomic(storage.join(folder, "a.bin"), b"again")
    assert storage.read_bytes(storage.join(folder, "a.bin")) == b"again"


def test_a_missing_file_is_a_clear_error(folder: str) -> None:
    with pytest.raises(StorageError, match=r"absent\.bin does not exist; check"):
        storage.read_bytes(storage.join(folder, "absent.bin"))


def test_json_round_trips_and_a_broken_one_is_named(folder: str) -> None:
    url = storage.join(folder, "value.json")
    storage.write_json(url, {"b": [1, 2], "a": "ü"})
    assert storage.read_json(url) == {"b": [1, 2], "a": "ü"}
    storage.write_atomic(url, b"{")
    with pytest.raises(StorageError, match=r"value\.json is not valid JSON"):
        storage.read_json(url)


def test_local_paths_are_known_and_remote_ones_are_not(tmp_path: Path) -> None:
    assert storage.local_path(f"file://{tmp_path}/x") == tmp_path / "x"
    assert storage.local_path("memory://somewhere/x") is None


def test_an_unknown_protocol_is_a_clear_error() -> None:
    with pytest.raises(StorageError, match="install the storage's fsspec package"):
        storage.read_bytes("nosuchprotocol://bucket/x")


def test_a_store_whose_package_is_missing_says_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str) -> None:
        raise ImportError("Install it")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))["project"]
    for protocol, extra in (("gs", "gcs"), ("s3", "s3")):
        assert project["optional-dependencies"][extra]
        with pytest.raises(StorageError, match=rf'run pip install "fledge\[{extra}\]"'):
            storage.read_bytes(f"{protocol}://bucket/x")


def test_a_disk_that_fills_up_leaves_the_old_file_and_no_partial_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "shard.bin")
    storage.write_atomic(url, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StorageError, match=r"no space left for .*shard\.bin \(1,000 bytes wanted\); free some"
    ):
        storage.write_atomic(url, bytes(1000))
    assert [p.name for p in tmp_path.iterdir()] == ["shard.bin"]
    assert storage.read_bytes(url) == b"old"


def test_a_full_object_store_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def full(self: object, path: str, value: bytes) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", full)
    with pytest.raises(StorageError, match="no space left for memory://full/x"):
        storage.write_atomic("memory://full/x", b"data")


def test_a_host_that_has_no_address_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem = fsspec.filesystem("memory")
    asked: list[str] = []

    def offline(path: str) -> None:
        asked.append(path)
        raise aiohttp.ClientOSError(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(filesystem, "info", offline)
    with pytest.raises(StorageError, match=r"can't look at memory://a\.yaml: .*not known"):
        storage.exists("memory://a.yaml")
    assert len(asked) == 1


def test_deleting_is_tried_again_and_a_place_that_does_not_answer_is_not_taken_for_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filesystem = fsspec.filesystem("memory")
    monkeypatch.setattr("fledge.base.retry.FIRST_PAUSE", 0.0)
    storage.write_atomic("memory://doomed/x", b"data")
    failures = [ConnectionResetError("reset"), ConnectionResetError("reset")]
    delete = filesystem.rm

    def flaky(path: str, recursive: bool = False) -> None:
        if failures:
            raise failures.pop()
        delete(path, recursive=recursive)

    with monkeypatch.context() as patched:
        patched.setattr(filesystem, "rm", flaky)
        storage.remove("memory://doomed")
    assert not storage.exists("memory://doomed/x")
    storage.remove("memory://doomed")  # which isn't there

    def forbidden(path: str, **rest: object) -> None:
        raise PermissionError("no rights")

    monkeypatch.setattr(filesystem, "info", forbidden)
    with pytest.raises(StorageError, match="can't delete memory://doomed: no rights"):
        storage.remove("memory://doomed")


def test_a_really_full_file_system(tmp_path: Path) -> None:
    mount = tmp_path / "tiny"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        with pytest.raises(StorageError, match="no space left"):
            storage.write_atomic(str(mount / "big.bin"), bytes(1 << 20))
        assert list(mount.iterdir()) == []
        storage.write_atomic(str(mount / "small.bin"), b"fits")
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_what_a_killed_writer_left_is_neither_listed_nor_kept(tmp_path: Path) -> None:
    (tmp_path / ".shard.bin.partial").write_bytes(b"half")
    assert storage.list_files(str(tmp_path)) == []
    storage.write_atomic(str(tmp_path / "shard.bin"), b"whole")
    assert [p.name for p in tmp_path.iterdir()] == ["shard.bin"]


def test_a_file_where_a_folder_should_be_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="check the path"):
        storage.write_atomic(str(tmp_path / "file" / "shard.bin"), b"")


def test_a_place_that_cannot_be_written_is_known_beforehand(tmp_path: Path) -> None:
    storage.refuse_unwritable(str(tmp_path / "new" / "result.json"))
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("kept")
    storage.refuse_unwritable(str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == "kept"
    with pytest.raises(StorageError, match="is a folder; name a file in it"):
        storage.refuse_unwritable(str(tmp_path))
    with pytest.raises(StorageError, match="file"):
        storage.refuse_unwritable(str(tmp_path / "file" / "result.json"))


def test_manifest_grows_and_is_loaded_again(folder: str) -> None:
    manifest = Manifest.load(folder)
    assert manifest.shards == ()
    manifest = manifest.write_shard("part-0.bin", b"abc", records=2, tokens=30)
    manifest = manifest.write_shard("part-1.bin", b"defg", records=1, tokens=7)
    loaded = Manifest.load(folder)
    assert loaded == manifest
    assert (loaded.records, loaded.tokens, loaded.size) == (3, 37, 7)
    assert loaded.read_shard(loaded.shards[1]) == b"defg"
    with pytest.raises(StorageError, match="already has a shard"):
        loaded.write_shard("part-1.bin", b"", records=0, tokens=0)


@pytest.mark.parametrize("damage", [b"abX", b"ab", b""])
def test_a_damaged_shard_is_named(folder: str, damage: bytes) -> None:
    manifest = Manifest.load(folder).write_shard("part-0.bin", b"abc", records=1, tokens=1)
    storage.write_atomic(manifest.url(manifest.shards[0]), damage)
    with pytest.raises(StorageError, match=r"part-0\.bin is damaged.*put it back from a copy"):
        manifest.verify()
    make_fingerprint({}).save(folder)
    with pytest.raises(StorageError, match=f"part-0\\.bin is damaged.*or delete {folder} and run again"):
        manifest.verify()


@pytest.mark.parametrize("name", ["manifest.json", "fingerprint.json"])
def test_a_changed_digit_of_a_record_is_noticed(folder: str, name: str) -> None:
    Manifest.load(folder).write_shard("part-0.bin", b"abc", records=11, tokens=1)
    make_fingerprint({"epochs": 11}).save(folder)
    url = storage.join(folder, name)
    storage.write_atomic(url, storage.read_bytes(url).replace(b" 11", b" 12"))
    load = Manifest.load if name == "manifest.json" else Fingerprint.load
    with pytest.raises(StorageError, match=f"{name} is damaged .*wrong checksum.*delete {folder} and run"):
        load(folder)


def test_a_manifest_without_a_checksum_is_read(folder: str) -> None:
    """As those of data/ are."""
    manifest = Manifest.load(folder).write_shard("part-0.bin", b"abc", records=1, tokens=1)
    url = storage.join(folder, "manifest.json")
    storage.write_json(url, {k: v for k, v in storage.read_json(url).items() if k != "sha256"})
    assert Manifest.load(folder) == manifest


def test_a_missing_shard_is_named(folder: str) -> None:
    manifest = Manifest.load(folder).write_shard("part-0.bin", b"abc", records=1, tokens=1)
    storage.remove(manifest.url(manifest.shards[0]))
    with pytest.raises(StorageError, match=r"part-0\.bin is missing"):
        manifest.verify()


def test_fingerprint_is_stored_once_and_accepts_itself(folder: str) -> None:
    fingerprint = make_fingerprint({"format": 1, "options": {"count": 3, "seed": 7}, "files": ["a", "b"]})
    fingerprint.claim(folder)
    make_fingerprint({"files": ["a", "b"], "options": {"seed": 7, "count": 3}, "format": 1}).claim(folder)


def test_fingerprint_mismatch_names_the_fields(folder: str) -> None:
    make_fingerprint({"format": 1, "options": {"count": 3, "seed": 7}}).claim(folder)
    with pytest.raises(FingerprintError, match=r"options\.count: 3 -> 4, options\.top_p: \(absent\) -> 0\.9"):
        make_fingerprint({"format": 1, "options": {"count": 4, "seed": 7, "top_p": 0.9}}).claim(folder)


def test_a_field_that_only_one_of_two_fingerprints_has_differs() -> None:
    more, less = make_fingerprint({"a": 1, "b": {"c": None}}), make_fingerprint({"a": 1})
    assert more.differing_fields(less) == less.differing_fields(more) == ["b.c"]
    assert more.differing_fields(make_fingerprint({"b": {"c": None}, "a": 1})) == []


def test_a_folder_of_another_version_says_so(folder: str) -> None:
    make_fingerprint({"format": 1}).claim(folder)
    with pytest.raises(FingerprintError, match=r"format: 1 -> 2\); use the version of fledge that made"):
        make_fingerprint({"format": 2}).claim(folder)


def test_a_link_that_leads_nowhere_is_named_and_what_is_said_of_it_helps(tmp_path: Path) -> None:
    link = tmp_path / "runs"
    link.symlink_to(tmp_path / "unmounted")
    for url in (link / "x.bin", link / "demo" / "prompts" / "x.bin"):
        with pytest.raises(
            StorageError, match=rf"{link} is a link to {tmp_path}/unmounted, which isn't there"
        ):
            storage.write_atomic(str(url), b"x")
    (tmp_path / "unmounted").mkdir()
    storage.write_atomic(str(link / "demo" / "x.bin"), b"x")
    assert (tmp_path / "unmounted" / "demo" / "x.bin").read_bytes() == b"x"


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_two_colons_in_a_local_path_are_part_of_its_name(tmp_path: Path, prefix: str) -> None:
    url = f"{prefix}{tmp_path}/a::b/c::d.bin"
    storage.write_atomic(url, b"x")
    assert (tmp_path / "a::b" / "c::d.bin").read_bytes() == storage.read_bytes(url) == b"x"
    assert storage.list_files(f"{prefix}{tmp_path}/a::b") == [url]
    assert not (tmp_path / "a").exists()


def test_two_colons_in_a_url_are_refused_not_cut_off() -> None:
    with pytest.raises(StorageError, match=r"can't open s3://bucket/a::b: .*; take a name without it"):
        storage.write_atomic("s3://bucket/a::b", b"x")
    storage.write_atomic("memory://chained/x.bin", b"x")
    assert storage.read_bytes("simplecache::memory://chained/x.bin") == b"x"


def test_a_manifest_of_another_version_is_not_read(folder: str) -> None:
    Manifest.load(folder).write_shard("part-0.bin", b"abc", records=1, tokens=1)
    url = storage.join(folder, "manifest.json")
    storage.write_sealed(url, storage.read_sealed(url) | {"version": 99})
    with pytest.raises(
        StorageError, match=r"manifest\.json has version 99, and this fledge reads 1; .* delete the folder"
    ):
        Manifest.load(folder)
    storage.remove(folder)
    assert Manifest.load(folder).write_shard("part-0.bin", b"abc", records=1, tokens=1).records == 1
