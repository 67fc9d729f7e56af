"""Finished answers that aren't in a shard yet, saved in a file beside the shards.

    prompts   0   1   2 | 3   4   5 | 6   7   8
              written   | in the file: 4, 5 and 8, since 3 is still being answered

The file is rewritten once a minute and when the stage stops, so a kill costs a minute of work, not everything that
waits for 3. A line with the checksum precedes the Parquet data.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fledge.base.checksums import sha256
from fledge.base.errors import StorageError
from fledge.base.storage import exists, join, read_bytes, remove, write_atomic
from fledge.data.conversations import SCHEMA, Answered, Conversation
from fledge.data.generation import Job
from fledge.data.parquet import to_parquet
from fledge.data.privacy import Audit

NAME = "waiting.parquet"
_EVERY_S = 60.0  # seconds between saves
_ANSWERED = pa.schema(
    [
        ("number", pa.int64()),
        ("prompt_id", pa.string()),
        ("conversations", pa.list_(pa.struct(list(SCHEMA)))),
        ("reason", pa.string()),
        ("audit", pa.string()),
    ]
)


class Waiting:
    """Outcomes of prompts by number, from the first prompt that isn't in a shard."""

    def __init__(self, folder: str, first: int) -> None:
        """Loads what an earlier call left in the folder.

        Raises:
            StorageError: the file can't be read.
        """
        self._url = join(folder, NAME)
        self._answered: dict[int, Answered] = {}
        if exists(self._url):
            for row in _rows(self._url):
                if (number := row.pop("number")) >= first:
                    self._answered[number] = _answered(**row)
        self._saved = time.monotonic()

    def job(self, number: int, job: Job[Answered]) -> Job[Answered]:
        """A prompt's job; one that was finished before returns immediately."""
        if number not in self._answered:
            self._answered[number] = yield from job
            if time.monotonic() > self._saved + _EVERY_S:
                self.save()
        return self._answered[number]

    def forget(self, below: int) -> None:
        """Drop outcomes that are in shards now."""
        self._answered = {number: outcome for number, outcome in self._answered.items() if number >= below}

    def save(self) -> None:
        """Write the file, or delete it if it would be empty."""
        if self._answered:
            rows = [
                asdict(outcome)
                | {"number": number, "audit": json.dumps(outcome.audit.to_dict()) if outcome.audit else None}
                for number, outcome in sorted(self._answered.items())
            ]
            data = to_parquet(rows, _ANSWERED)
            write_atomic(self._url, f"{sha256(data)}\n".encode() + data)
        else:
            remove(self._url)
        self._saved = time.monotonic()


def _rows(url: str) -> list[dict[str, Any]]:
    data = read_bytes(url)
    try:
        digest, _, data = data.partition(b"\n")
        if digest != sha256(data).encode():
            raise ValueError("wrong checksum")
        rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StorageError(
            f"{url} is damaged ({error}); delete it and run again: its answers will be generated again"
        ) from error
    return rows


def _answered(
    prompt_id: str, conversations: list[dict[str, object]], reason: str | None, audit: str | None
) -> Answered:
    restored = tuple(Conversation(**row) for row in conversations)  # type: ignore[arg-type]
    counted = None if audit is None else Audit.from_dict(json.loads(audit))
    return Answered(prompt_id, restored, reason, counted)
