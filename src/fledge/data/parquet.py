"""Rows to Parquet bytes and back; equal rows give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from fledge.base.errors import StorageError
from fledge.base.storage import Manifest, ShardEntry, join, remedy

_SIMPLE = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_TYPES = _SIMPLE | {str | None: pa.string()} | {list[kind]: pa.list_(of) for kind, of in _SIMPLE.items()}  # type: ignore[valid-type]


def schema_of(record: type, **others: pa.DataType) -> pa.Schema:
    """A column for each field of a dataclass; `others`: columns of another type than its annotation says."""
    types = {name: _TYPES[hint] for name, hint in get_type_hints(record).items()}
    return pa.schema(list((types | others).items()))


class ShardWriter:
    """Appends shards of records, and of what was rejected: that first, so that a shard implies its rejects."""

    def __init__(self, url: str, name: str, schema: pa.Schema, rejects: pa.Schema) -> None:
        self.url = url
        self._name, self._schema, self._rejects_schema = name, schema, rejects
        self._records = Manifest.load(url)
        self._rejects = Manifest.load(join(url, "rejects")).truncated(self.shards)

    @property
    def shards(self) -> int:
        """Shards written."""
        return len(self._records.shards)

    def append(
        self, rows: Sequence[Mapping[str, Any]], rejects: Sequence[Mapping[str, Any]], tokens: int
    ) -> None:
        """Write one shard of each; either may be empty."""
        number = f"{self.shards:05d}.parquet"
        data = to_parquet(rejects, self._rejects_schema)
        self._rejects = self._rejects.write_shard(f"rejects-{number}", data, records=len(rejects), tokens=0)
        data = to_parquet(rows, self._schema)
        self._records = self._records.write_shard(
            f"{self._name}-{number}", data, records=len(rows), tokens=tokens
        )


def to_parquet(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    """A Parquet file of the rows."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_rows(
    manifest: Manifest, shard: ShardEntry, schema: pa.Schema, later: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The shard's rows, with checksum and columns checked. `later`: defaults for columns that older shards may lack."""
    data = manifest.read_shard(shard)
    try:
        table = pq.read_table(pa.BufferReader(data))
    except pa.ArrowInvalid as error:
        url = manifest.url(shard)
        raise StorageError(f"{url} is not Parquet ({error}); {remedy(url)}") from error
    absent = [name for name in schema.names if name not in table.column_names]
    missing = [name for name in absent if name not in (later or {})]
    if missing:
        url = manifest.url(shard)
        raise StorageError(
            f"{url} has no column {', '.join(missing)}: it was written by an incompatible version; {remedy(url)}"
        )
    filled = {name: (later or {})[name] for name in absent}
    rows: list[dict[str, Any]] = table.select([n for n in schema.names if n not in absent]).to_pylist()
    return [row | filled for row in rows] if filled else rows
