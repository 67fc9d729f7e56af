"""Files that appear completely or not at all, on any fsspec URL (`file`, `gs://`, `s3://`, `memory://`).

    stage folder        written
    fingerprint.json    first: the folder's inputs
    part-00000.parquet  each shard under a temporary name, then renamed (local), or in one PUT (object store)
    manifest.json       after each shard: its length, checksum and counts

A shard missing from the manifest was interrupted between the last two steps and is written again.
"""

from __future__ import annotations

import errno
import json
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from fledge.base import disk
from fledge.base.checksums import sealed, sha256, unsealed
from fledge.base.errors import FledgeError, StorageError, did_you_mean, one_line
from fledge.base.retry import ATTEMPTS, botocore_error, is_transient, retried

MANIFEST_NAME = "manifest.json"
FINGERPRINT_NAME = "fingerprint.json"
T = TypeVar("T")
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
_VERSION = 1  # of manifest.json
_DEEPEST = 4  # folders between a stage's file and its fingerprint.json: pool/NAME/rejects
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def join(url: str, *parts: str) -> str:
    """`url/part/...` for paths and URLs alike."""
    return posixpath.join(str(url), *parts)


def local_path(url: str) -> Path | None:
    """The path of a local URL (for memory mapping), or None for a remote one."""
    filesystem, path = resolve(url)
    return Path(path) if isinstance(filesystem, LocalFileSystem) else None


def exists(url: str) -> bool:
    """True if a file or folder exists."""
    return _on(url, "look at", _exists)


def list_files(url: str, suffix: str = "") -> list[str]:
    """URLs of the files directly in a folder whose name ends with `suffix`, sorted; [] if there is no folder."""

    def entries(filesystem: Any, path: str) -> list[dict[str, Any]]:
        filesystem.invalidate_cache()
        return filesystem.ls(path, detail=True) if filesystem.isdir(path) else []

    listing = _on(url, "list", entries)
    names = (posixpath.basename(entry["name"]) for entry in listing if entry["type"] == "file")
    return [join(url, name) for name in sorted(names) if name.endswith(suffix) and not name.startswith(".")]


def read_bytes(url: str) -> bytes:
    """The whole file."""
    data: bytes = _on(url, "read", lambda filesystem, path: filesystem.cat_file(path))
    return data


def file_size(url: str) -> int:
    """Bytes of a file."""
    return _on(url, "look at", _size)


def version_of(url: str) -> str:
    """A string that changes when the file does."""
    return str(_on(url, "look at", lambda filesystem, path: filesystem.ukey(path)))


def copy_here(url: str, path: Path) -> None:
    """Copy a file of any size to the local disk."""
    _on(url, "read", lambda filesystem, source: filesystem.get_file(source, str(path)))


def read_ranges(url: str, ranges: Sequence[tuple[int, int]]) -> list[bytearray]:
    """The bytes [start, stop) of a file for each pair, fetched concurrently if possible; short at the file's end."""

    def parts(filesystem: Any, path: str) -> list[Any]:
        if isinstance(filesystem, LocalFileSystem):
            return disk.read_ranges(path, ranges)
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
        blocks: list[Any] = filesystem.cat_ranges([path] * len(ranges), starts, stops, on_error="raise")
        return blocks

    blocks = _on(url, "read", parts)
    if any(len(data) > stop - start for data, (start, stop) in zip(blocks, ranges, strict=True)):
        raise StorageError(f"{url} can't be read in parts: the store ignores byte ranges; use another store")
    return [data if isinstance(data, bytearray) else bytearray(data) for data in blocks]


def read_json(url: str) -> Any:
    """The file's JSON value."""
    data = read_bytes(url)
    try:
        return json.loads(data)
    except ValueError as error:
        raise StorageError(f"{url} is not valid JSON ({error}); {remedy(url)}") from error


def read_sealed(url: str) -> dict[str, Any]:
    """Read and check a file written by `write_sealed`."""
    try:
        return unsealed(read_json(url))
    except ValueError as error:
        raise StorageError(f"{url} is damaged ({error}); {remedy(url)}") from error


def remedy(url: str) -> str:
    """Remedy for a damaged file: delete the stage's folder it is in, so that the stage runs again."""
    folder = url
    for _ in range(_DEEPEST):
        folder = posixpath.dirname(folder)
        if exists(join(folder, FINGERPRINT_NAME)):
            return f"put it back from a copy, or delete {folder} and run again"
    return f"put it back from a copy, or delete {posixpath.dirname(url)} and make all of it again"


def write_atomic(url: str, *parts: bytes | memoryview) -> None:
    """Write a file, given by its consecutive parts, that appears completely or not at all, even if the process is
    killed or the disk is full."""

    def put(filesystem: Any, path: str) -> None:
        if isinstance(filesystem, LocalFileSystem):
            disk.write_atomic(Path(path), *parts)
        else:
            filesystem.pipe_file(path, b"".join(parts))

    _on(url, "write", put, sum(map(len, parts)))


def write_json(url: str, value: Any) -> None:
    """Write a JSON value, indented, with keys in the given order."""
    write_atomic(url, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def write_sealed(url: str, value: Mapping[str, Any]) -> None:
    """Write a JSON object with its checksum."""
    write_json(url, sealed(value))


def refuse_unwritable(url: str) -> None:
    """Raise a StorageError if a local file couldn't be written here, before hours of work."""
    path = local_path(url)
    if path is None:
        return
    if path.is_dir():
        raise StorageError(f"{url} is a folder; name a file in it")
    probe = f"{url}.writable"
    with disk.no_empty_folders(path.parent):
        write_atomic(probe, b"")
        remove(probe)


def remove(url: str) -> None:
    """Delete a file or folder; no error if it doesn't exist."""

    def delete(filesystem: Any, path: str) -> None:
        if _exists(filesystem, path):
            filesystem.rm(path, recursive=True)
            if _exists(filesystem, path):  # s3fs doesn't report files that the store refuses to delete
                raise PermissionError("the store keeps it")

    _on(url, "delete", delete)


@dataclass(frozen=True)
class ShardEntry:
    """A finished shard in the manifest."""

    name: str
    bytes: int
    sha256: str
    records: int
    tokens: int
    header: str | None = None  # SHA-256 of the part that is read first, for files read in parts


@dataclass(frozen=True)
class Manifest:
    """The finished shards of one folder, in order. Immutable: adding a shard returns the next manifest."""

    folder: str
    shards: tuple[ShardEntry, ...] = ()

    @classmethod
    def load(cls, folder: str) -> Manifest:
        """The folder's manifest, empty if there is none yet."""
        url = join(folder, MANIFEST_NAME)
        if not exists(url):
            return cls(folder)
        value = read_sealed(url)
        try:
            if value.get("version", _VERSION) != _VERSION:
                raise StorageError(
                    f"{url} has version {value['version']}, and this fledge reads {_VERSION}; use the version that "
                    "wrote it, or delete the folder and run again"
                )
            return cls(folder, tuple(ShardEntry(**shard) for shard in value["shards"]))
        except (KeyError, TypeError) as error:
            raise StorageError(f"{url} is not a manifest ({error!r}); {remedy(url)}") from error

    @property
    def records(self) -> int:
        """Records in all shards."""
        return sum(shard.records for shard in self.shards)

    @property
    def tokens(self) -> int:
        """Tokens in all shards."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    def url(self, shard: ShardEntry) -> str:
        """The shard's URL."""
        return join(self.folder, shard.name)

    def append(self, entry: ShardEntry) -> Manifest:
        """Save and return the manifest with one more shard."""
        if any(shard.name == entry.name for shard in self.shards):
            url = self.url(entry)
            raise StorageError(f"{self.folder} already has a shard {entry.name}; {remedy(url)}")
        grown = Manifest(self.folder, (*self.shards, entry))
        shards = [{k: v for k, v in asdict(shard).items() if v is not None} for shard in grown.shards]
        write_sealed(join(self.folder, MANIFEST_NAME), {"version": _VERSION, "shards": shards})
        return grown

    def write_shard(self, name: str, data: bytes, *, records: int, tokens: int) -> Manifest:
        """Write the shard's file, then add it to the manifest."""
        write_atomic(join(self.folder, name), data)
        return self.append(ShardEntry(name, len(data), sha256(data), records, tokens))

    def truncated(self, count: int) -> Manifest:
        """The manifest of the first `count` shards; nothing is written or deleted."""
        return Manifest(self.folder, self.shards[:count])

    def read_shard(self, shard: ShardEntry) -> bytes:
        """The shard's bytes, checked against length and checksum."""
        url = self.url(shard)
        if not exists(url):
            raise StorageError(f"{url} is missing though the manifest names it; {remedy(url)}")
        data = read_bytes(url)
        if len(data) != shard.bytes or sha256(data) != shard.sha256:
            raise StorageError(
                f"{url} is damaged: {len(data)} bytes, {shard.bytes} expected, or a wrong checksum; {remedy(url)}"
            )
        return data

    def verify(self) -> None:
        """Read every shard and check it."""
        for shard in self.shards:
            self.read_shard(shard)


def _on(url: str, verb: str, action: Callable[[Any, str], T], wanted: int | None = None) -> T:
    """action(file system, path), retried after a transient failure of a remote file system.

    Permanent failures become a StorageError: "can't {verb} {url}". `wanted`: the bytes to write.
    """
    filesystem, path = resolve(url)
    if isinstance(filesystem, LocalFileSystem):
        with _explained(url, verb, wanted):
            return action(filesystem, path)
    with _explained(url, verb, wanted, remote=True):
        return retried(lambda: action(filesystem, path), url)


def _exists(filesystem: Any, path: str) -> bool:
    """`exists` that raises if the answer is unknown, where fsspec's own returns False."""
    try:
        filesystem.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _size(filesystem: Any, path: str) -> int:
    filesystem.invalidate_cache()  # a listing may be older than the file
    return int(filesystem.info(path)["size"])


def resolve(url: str) -> tuple[Any, str]:
    """The file system of a URL or path, and the path in it."""
    text = str(url)
    if "://" not in text or text.startswith(("file://", "local://")):
        return fsspec.filesystem("file"), LocalFileSystem._strip_protocol(text)
    last = text.rpartition("::")[2]
    if "://" not in last and not last.startswith("/"):
        raise StorageError(f"can't open {url}: `::` chains file systems; take a name without it")
    try:
        filesystem, path = fsspec.core.url_to_fs(text)
    except (ImportError, ValueError) as error:
        extra = _EXTRAS.get(text.partition("://")[0])
        install = f'run pip install "fledge[{extra}]"' if extra else "install the storage's fsspec package"
        raise StorageError(f"can't open {url}: {error}; {install}") from error
    return filesystem, path


@contextmanager
def _explained(url: str, verb: str, wanted: int | None = None, *, remote: bool = False) -> Iterator[None]:
    """Turn the file system's errors into StorageErrors that name the URL."""
    try:
        yield
    except FileNotFoundError as error:
        if verb != "write":
            path = local_path(url)
            hint = did_you_mean(path.name, disk.neighbours(path)) if path else ""
            raise StorageError(
                f"{url} does not exist; check the path or run the stage that writes it{hint}"
            ) from error
        remedy = "make the bucket, or check its name" if remote else "check the path and its permissions"
        raise StorageError(f"can't write {url}: {_reason(error)}; {remedy}") from error
    except Exception as error:
        # The clients of object stores raise types of their own for any cause.
        if isinstance(error, FledgeError) or not (remote or isinstance(error, OSError)):
            raise
        if isinstance(error, OSError) and error.errno in _FULL:
            raise StorageError(
                f"no space left for {url} ({wanted or 0:,} bytes wanted); free some space and run again"
            ) from error
        remedy = "check the path and its permissions"
        if remote and is_transient(error):
            remedy = f"it stayed so {ATTEMPTS} times; run again once the store answers"
        elif remote:
            remedy = "check the URL, the credentials and what they permit"
        raise StorageError(f"can't {verb} {url}: {_reason(error)}; {remedy}") from error


def _reason(error: BaseException) -> str:
    """The store's own message."""
    return one_line(botocore_error(error) or error) or type(error).__name__
