"""Prompts on disk: `prompts-00000.parquet` in order, and beside them why others were rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice

import pyarrow as pa

from fledge.data.parquet import read_rows, to_parquet
from fledge.errors import DataError
from fledge.storage import Manifest, join

_PROMPTS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("source", pa.string()),
        ("category", pa.string()),
        ("turns", pa.list_(pa.string())),
    ]
)
_REJECTS = pa.schema(
    [("attempt", pa.int64()), ("category", pa.string()), ("reason", pa.string()), ("hash", pa.string())]
)


@dataclass(frozen=True)
class Prompt:
    """A user's turns, to be answered in order."""

    prompt_id: str  # a hash of the turns
    source: str  # "self": written by the target
    category: str
    turns: list[str]


@dataclass(frozen=True)
class Reject:
    """An attempt that was not kept. Its text is never stored."""

    attempt: int
    category: str
    reason: str
    hash: str  # salted


@dataclass(frozen=True)
class PromptSummary:
    """What a folder of prompts holds."""

    prompts: int
    attempts: int
    tokens: int  # of the prompts' own text
    categories: dict[str, int]
    rejected: dict[str, int]  # reason -> count


class PromptWriter:
    """Adds shards of attempts: rejects first, so that a shard of prompts is the sign that its attempts are done."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._prompts = Manifest.load(url)
        self._rejects = Manifest.load(join(url, "rejects")).truncated(len(self._prompts.shards))

    @property
    def shards(self) -> int:
        """Shards written."""
        return len(self._prompts.shards)

    def write(self, prompts: Sequence[Prompt], rejects: Sequence[Reject], tokens: int) -> None:
        """Write one shard of each; either may be empty."""
        number = f"{self.shards:05d}.parquet"
        data = to_parquet([asdict(reject) for reject in rejects], _REJECTS)
        self._rejects = self._rejects.write_shard(f"rejects-{number}", data, records=len(rejects), tokens=0)
        data = to_parquet([asdict(prompt) for prompt in prompts], _PROMPTS)
        self._prompts = self._prompts.write_shard(
            f"prompts-{number}", data, records=len(prompts), tokens=tokens
        )


def read_prompts(url: str, skip: int = 0) -> Iterator[Prompt]:
    """All prompts of a folder in order, without the first `skip`; one shard in memory at a time."""
    manifest = Manifest.load(url)
    if not manifest.shards:
        raise DataError(f"no prompts in {url}; run `fledge prompts` first or name another folder")
    for shard in manifest.shards:
        if skip >= shard.records:
            skip -= shard.records
            continue
        rows = read_rows(manifest, shard, _PROMPTS)
        yield from (Prompt(**row) for row in islice(rows, skip, None))
        skip = 0


def prompt_summary(url: str) -> PromptSummary:
    """Read a folder of prompts and its rejects once and count."""
    manifest, rejects = Manifest.load(url), Manifest.load(join(url, "rejects"))
    categories = (
        Counter(prompt.category for prompt in read_prompts(url)) if manifest.records else Counter[str]()
    )
    reasons: Counter[str] = Counter()
    for shard in rejects.shards:
        reasons.update(row["reason"] for row in read_rows(rejects, shard, _REJECTS))
    return PromptSummary(
        prompts=manifest.records,
        attempts=manifest.records + rejects.records,
        tokens=manifest.tokens,
        categories=dict(sorted(categories.items())),
        rejected=dict(sorted(reasons.items())),
    )
