"""Rows of local or remote files, one at a time: JSON lines, arrays and objects, CSV and Parquet, packed or not.

A bad row (not JSON, not UTF-8, megabytes long) costs only that row.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
import logging
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from fledge.base import storage
from fledge.base.disk import neighbours
from fledge.base.errors import DataError, did_you_mean
from fledge.data.sources.messages import decode_at, loads

logger = logging.getLogger("fledge")

LARGEST_ROW = 16 * 2**20  # bytes of a line; longer ones are skipped without holding them
_CHUNK = 2**20  # bytes or characters per read
_PARQUET_ROWS = 64  # rows per read
_STORED = (
    "ETag",
    "etag",
    "md5Hash",
    "crc32c",
)  # checksums of the content, as fsspec shows them of S3, Azure and GCS
_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".txt", ".log")
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_BETWEEN = tuple(" ,\r\n\t")  # the items of an array
_LONGEST_TOKEN = 16  # characters of a JSON text, except strings
_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class BadRow:
    """A row that couldn't be read."""

    reason: str


class FileRows:
    """The rows of all files that a path, folder or glob matches, in the order of their names."""

    def __init__(self, path: str) -> None:
        self._filesystem, self._paths = _find(path)
        self._path = path

    def rows(self, skip: int = 0) -> Iterator[Any]:
        """All rows except the first `skip`."""
        for path in self._paths:
            with _read(path):
                if _kind(path) == "parquet":
                    with self._filesystem.open(path, "rb") as file:
                        parquet = pq.ParquetFile(file)
                        count = parquet.metadata.num_rows
                        if skip < count:
                            yield from islice(_parquet_rows(parquet), skip, None)
                        skip = max(0, skip - count)
                    continue
                for row in self._text_rows(path):
                    if skip:
                        skip -= 1
                    else:
                        yield row

    def digest(self) -> str:
        """A digest that changes when the rows may have changed."""
        return digest_of(self._filesystem, self._paths)

    def _text_rows(self, path: str) -> Iterator[Any]:
        kind = _kind(path)
        with self._open(path) as file:
            start = file.read(4096)
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise DataError(f"{path} is UTF-16; save it as UTF-8")
        marked = start.startswith(b"\xef\xbb\xbf")
        first_line = start[3 * marked :].lstrip().partition(b"\n")[0].rstrip()
        if kind == "json" and (
            first_line == b"{" or (first_line[:1] == b"[" and not self._holds_lists(path))
        ):
            with self._open(path, 3 * marked) as file:
                yield from _json_rows(file, path, in_array=first_line != b"{")
            return
        with self._open(path) as file:
            if kind == "csv":
                comma = ";" if first_line.count(b";") > first_line.count(b",") else ","
                separator = "\t" if ".tsv" in path.rsplit("/", 1)[-1].lower() else comma
                yield from _csv_rows(file, separator, path)
            else:
                yield from _lines(file, parse=kind == "json")

    def _holds_lists(self, path: str) -> bool:
        """True if each line is a separate list: the first is complete, and more follow."""
        with self._open(path) as file:
            lines = (line for line in split_lines(file) if line is None or line.strip())
            try:
                loads((next(lines, None) or b"").decode("utf-8-sig"))
            except (ValueError, RecursionError):
                return False  # an array over several lines, or longer than any row
            return next(lines, b"") != b""

    def _open(self, path: str, skip: int = 0) -> IO[bytes]:
        """The file, decompressed, without its first `skip` bytes."""
        if path.lower().endswith(".zst"):  # fsspec would need a package that isn't a dependency
            stream: IO[bytes] = pa.CompressedInputStream(self._filesystem.open(path, "rb"), "zstd")
        else:
            stream = self._filesystem.open(path, "rb", compression="infer")
        stream.read(skip)
        return stream


def digest_of(filesystem: Any, paths: Sequence[str]) -> str:
    """Over each file's name, length and content (or the checksum that an object store provides for it)."""
    digest = hashlib.sha256()
    for path in paths:
        with _read(path):
            facts = filesystem.info(path)
            digest.update(f"{path.rsplit('/', 1)[-1]}\0{facts['size'] or 0}\0".encode())
            stored = next((facts[name] for name in _STORED if facts.get(name)), None)
            if stored is not None:
                digest.update(str(stored).encode())
                continue
            with filesystem.open(path, "rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()


def _find(path: str) -> tuple[Any, list[str]]:
    try:
        filesystem, place = storage.resolve(path)
        if place.lower().endswith(".zip") and filesystem.isfile(place):
            filesystem = fsspec.filesystem("zip", fo=filesystem.open(place, "rb"))
            files = [f for f in filesystem.find("") if _kind(f, strict=False)]
            # Of an application's export what was said, not what was attached to it.
            files = [f for f in files if f.rsplit("/", 1)[-1].startswith("conversations")] or files
        elif filesystem.isdir(place):
            files = [f for f in filesystem.find(place) if _kind(f, strict=False) and not _hidden(f, place)]
        elif filesystem.exists(place):
            files = [place]
        else:
            files = [
                f
                for f in filesystem.glob(place)
                if not filesystem.isdir(f) and not f.rsplit("/", 1)[-1].startswith(".")
            ]
    except (ImportError, ValueError, OSError, BadZipFile) as error:
        raise DataError(f"can't look at the source {path} ({error}); check the path") from error
    if not files:
        hint = did_you_mean(Path(path).name, neighbours(Path(path)))
        of_what = f"; name a file, a glob, or a folder with {', '.join(_SUFFIXES)} files"
        nothing = "" if "*" in path or filesystem.exists(place) else ": there is nothing of that name"
        raise DataError(f"the source {path} has no files{nothing}{hint or of_what}")
    for file in files:
        _kind(file)
    return filesystem, sorted(files)


@contextmanager
def _read(path: str) -> Iterator[None]:
    """Turn exceptions of file systems and formats into an error that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowInvalid) as error:
        raise DataError(
            f"{path} can't be read ({error}); fix or replace it, or leave it out of the source"
        ) from error


def _hidden(path: str, folder: str) -> bool:
    return any(part.startswith(".") for part in path.removeprefix(folder).split("/"))


def _kind(path: str, strict: bool = True) -> str:
    name = path.rsplit("/", 1)[-1].lower()
    for packed in _PACKED:
        name = name.removesuffix(packed)
    if name.endswith((".jsonl", ".ndjson", ".json", ".log")):
        return "json"
    if name.endswith((".csv", ".tsv")):
        return "csv"
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith(".txt"):
        return "text"
    if strict:
        raise DataError(f"can't tell the format of {path} from its name; use one of {', '.join(_SUFFIXES)}")
    return ""


def split_lines(file: IO[bytes], longest: int = LARGEST_ROW) -> Iterator[bytes | None]:
    """Lines with their ends; None for one longer than `longest`, which is never held in memory."""
    pending, too_long = b"", False
    while chunk := file.read(_CHUNK):
        *complete, last = (pending + chunk).split(b"\n")
        for line in complete:
            yield None if too_long or len(line) > longest else line + b"\n"
            too_long = False
        pending = last
        if len(pending) > longest:
            pending, too_long = b"", True
    if pending or too_long:
        yield None if too_long else pending


def _lines(file: IO[bytes], parse: bool) -> Iterator[Any]:
    for line in split_lines(file):
        if line is None:
            yield BadRow("too_large")
            continue
        try:
            text = line.decode("utf-8").lstrip("\ufeff")
        except UnicodeDecodeError:
            yield BadRow("encoding")
            continue
        if not text.strip():
            continue
        if not parse:
            yield text
            continue
        try:
            yield loads(text)
        except (ValueError, RecursionError):
            yield BadRow("not_json")


def _json_rows(file: IO[bytes], path: str, in_array: bool) -> Iterator[Any]:
    """The items of an array, or objects one after another, with a few MiB of text in memory."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    text, at, number, opened, ended = "", 0, 0, not in_array, False
    try:
        while True:
            while text[at : at + 1] in _BETWEEN:
                at += 1
            if not opened and at < len(text):
                opened, at = True, at + 1  # the array's bracket
                continue
            if (in_array and text[at : at + 1] == "]") or (not in_array and ended and at == len(text)):
                return
            try:
                row, end = decode_at(text, at)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or error.pos >= len(text) - _LONGEST_TOKEN
                if ended or not is_cut:
                    raise
                end = len(text)
            if end == len(text) and not ended:
                chunk = file.read(max(_CHUNK, end - at))
                ended = not chunk
                text, at = text[at:] + decode(chunk, ended), 0
                continue
            yield row
            number, at = number + 1, end
    except (
        json.JSONDecodeError,
        UnicodeDecodeError,
        RecursionError,
    ):  # whose message quotes the text: don't log it
        logger.warning("%s is damaged after its row %d; later rows are lost", path, number)
        yield BadRow("not_json")


def _csv_rows(file: IO[bytes], separator: str, path: str) -> Iterator[Any]:
    csv.field_size_limit(LARGEST_ROW)
    reader = csv.reader(_csv_text(file), delimiter=separator)
    try:
        header = next(reader, None)
    except csv.Error:
        header = None  # longer than any row
    if not header:
        raise DataError(f"{path} has no header; name its columns in the first line")
    header = [name.strip() for name in header]
    if twice := {name for name in header if name and header.count(name) > 1}:
        raise DataError(f"{path} has two columns {min(twice)}; give them different names")
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield BadRow("too_large")
            continue
        if not cells:
            continue
        if any(map(has_surrogate, cells)):
            yield BadRow("encoding")
        elif len(cells) != len(header):
            yield BadRow("columns")
        else:
            yield dict(zip(header, cells, strict=True))


def _csv_text(file: IO[bytes]) -> Iterator[str]:
    """Lines as text; invalid UTF-8 and overlong lines become a lone surrogate."""
    first = True
    for line in split_lines(file):
        text = "\udcff\n" if line is None else line.decode("utf-8", errors="surrogateescape")
        yield from re.split("(?<=\r)(?!\n)", text.lstrip("\ufeff") if first else text)  # old Macs' lines
        first = False


def has_surrogate(text: str) -> bool:
    """True if the text contains half a character, which JSON allows (`"\\ud83d"`) and UTF-8 doesn't."""
    return _HALVES.search(text) is not None


def _parquet_rows(parquet: Any) -> Iterator[Any]:
    """All columns except times, which are never used and may not fit Python's types."""
    columns = [n for n, field in enumerate(parquet.schema_arrow) if not pa.types.is_temporal(field.type)]
    for batch in parquet.iter_batches(batch_size=_PARQUET_ROWS):
        chosen = batch.select(columns)
        try:
            rows = chosen.to_pylist()
        except (ValueError, OverflowError):  # a text isn't UTF-8: some writers don't check
            rows = [_parquet_row(chosen.slice(number, 1)) for number in range(chosen.num_rows)]
        yield from rows


def _parquet_row(batch: Any) -> Any:
    try:
        return batch.to_pylist()[0]
    except (ValueError, OverflowError):
        return BadRow("encoding")
