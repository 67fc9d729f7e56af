"""Rows to Parquet bytes and back; equal rows give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fledge.base.errors import StorageError
from fledge.base.storage import Manifest, ShardEntry, remedy


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
