"""Rows to Parquet bytes and back; the same rows give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fledge.errors import StorageError
from fledge.storage import Manifest, ShardEntry


def to_parquet(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> bytes:
    """A Parquet file of the rows."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_rows(manifest: Manifest, shard: ShardEntry, schema: pa.Schema) -> list[dict[str, Any]]:
    """The shard's rows, checksum and columns checked."""
    data = manifest.read_shard(shard)
    try:
        table = pq.read_table(pa.BufferReader(data))
    except pa.ArrowInvalid as error:
        raise StorageError(
            f"{manifest.url(shard)} is not Parquet ({error}); delete the folder and run again"
        ) from error
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise StorageError(
            f"{manifest.url(shard)} has no column {', '.join(missing)}: it was written by another version; "
            "delete the folder and run again"
        )
    rows: list[dict[str, Any]] = table.select(schema.names).to_pylist()
    return rows
