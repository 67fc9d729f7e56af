"""Prompts on disk: `prompts-00000.parquet` in order, and beside them why others were rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from fledge.data.parquet import read_rows, to_parquet
from fledge.errors import DataError
from fledge.storage import Manifest, exists, join, read_json, write_json

_PROMPTS = pa.schema(
    [
        ("prompt_id", pa.string()),
        ("source", pa.string()),
        ("category", pa.string()),
        ("turns", pa.list_(pa.string())),
        ("row", pa.int64()),
        ("licence", pa.string()),
        ("system", pa.string()),
    ]
)
_REJECTS = pa.schema(
    [
        ("attempt", pa.int64()),
        ("category", pa.string()),
        ("reason", pa.string()),
        ("hash", pa.string()),
        ("detail", pa.string()),
    ]
)
END_NAME = "end.json"
SELECTION_NAME = "selection.json"
SELF_LICENCE = "own output of the target"


@dataclass(frozen=True)
class Prompt:
    """A user's turns, to be answered in order."""

    prompt_id: str  # a hash of the turns
    source: str  # "self": written by the target; else the recipe's name for the source
    category: str
    turns: list[str]
    row: int  # in its source, from 0
    licence: str  # of its source
    system: str | None = None


@dataclass(frozen=True)
class Reject:
    """An attempt or a source's row that was not kept. Its text is never stored."""

    attempt: int
    category: str
    reason: str
    hash: str  # salted; empty where there was no text
    detail: str = ""  # the evaluation file it overlaps, or the source of a duplicate


@dataclass(frozen=True)
class PromptSummary:
    """What a folder of prompts holds."""

    prompts: int
    attempts: int
    tokens: int  # of the prompts' own text
    categories: dict[str, int]
    rejected: dict[str, int]  # reason -> count


@dataclass(frozen=True)
class RejectCounts:
    """Rejects of one folder."""

    rows: int
    reasons: dict[str, int]
    details: dict[tuple[str, str], int]  # (reason, detail) -> rows


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

    @property
    def finished(self) -> bool:
        """Whether `finish` was called: nothing more is to come."""
        return exists(join(self.url, END_NAME))

    def finish(self) -> None:
        """Say that nothing more is to come."""
        write_json(join(self.url, END_NAME), {"shards": self.shards})

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


def prompt_shards(url: str) -> Iterator[list[Prompt]]:
    """A folder's shards in order; none if there are no prompts."""
    manifest = Manifest.load(url)
    for shard in manifest.shards:
        yield [Prompt(**row) for row in read_rows(manifest, shard, _PROMPTS)]


def reject_counts(url: str) -> RejectCounts:
    """Read a folder's rejects once and count."""
    rejects = Manifest.load(join(url, "rejects"))
    reasons: Counter[str] = Counter()
    details: Counter[tuple[str, str]] = Counter()
    for shard in rejects.shards:
        for row in read_rows(rejects, shard, _REJECTS):
            reasons[row["reason"]] += 1
            if row["detail"]:
                details[row["reason"], row["detail"]] += 1
    return RejectCounts(rejects.records, dict(sorted(reasons.items())), dict(sorted(details.items())))


def prompt_summary(url: str) -> PromptSummary:
    """Read a folder of prompts and its rejects once and count."""
    manifest = Manifest.load(url)
    categories = (
        Counter(prompt.category for prompt in read_prompts(url)) if manifest.records else Counter[str]()
    )
    counts = [reject_counts(url), *map(reject_counts, pool_urls(url))]
    reasons = sum((Counter(found.reasons) for found in counts), Counter[str]())
    return PromptSummary(
        prompts=manifest.records,
        attempts=manifest.records + sum(found.rows for found in counts) + surplus(url),
        tokens=manifest.tokens,
        categories=dict(sorted(categories.items())),
        rejected=dict(sorted(reasons.items())),
    )


def pool_url(url: str, source: str) -> str:
    """Where the pool of a source lies within a folder of prompts."""
    return join(url, "pool", source)


def pool_urls(url: str) -> list[str]:
    """The pools behind a folder of prompts; none where the target wrote them all."""
    return [pool_url(url, source["name"]) for source in read_selection(url).get("sources", ())]


def traffic_url(url: str) -> str:
    """Where counts of the traffic samples lie within a folder of prompts."""
    return join(url, "traffic")


def surplus(url: str) -> int:
    """Rows of the pools that were fit but not needed."""
    return int(read_selection(url).get("surplus", 0))


def read_selection(url: str) -> dict[str, Any]:
    """What the selection wrote down; empty where there was none."""
    place = join(url, SELECTION_NAME)
    return read_json(place) if exists(place) else {}


def write_selection(url: str, value: dict[str, Any]) -> None:
    """Keep what the selection did."""
    write_json(join(url, SELECTION_NAME), value)
