"""Prompts on disk: `prompts-00000.parquet` in order, and in a subfolder why others were rejected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fledge.base.errors import DataError
from fledge.base.storage import Manifest, exists, join, read_sealed, write_json, write_sealed
from fledge.data.parquet import ShardWriter, read_rows, schema_of

UNCOVERED = "uncovered_language"  # by the rules of the privacy filter
END_NAME = "end.json"
SELECTION_NAME = "selection.json"
SELF_LICENCE = "own output of the target"


@dataclass(frozen=True)
class TrainingPrompt:
    """A user's turns, to be answered in order."""

    prompt_id: str  # a hash of the turns
    source: str  # "self": written by the target; else the recipe's name for the source
    category: str
    turns: list[str]
    row: int  # in its source, from 0
    licence: str  # of its source
    system: str | None = None
    tools: str = ""  # JSON: functions on offer, as OpenAI describes them
    template_options: str = ""  # JSON: `chat_template_kwargs` of the request
    results: str = ""  # JSON: for each turn, [tool, result] of the calls that followed it
    losses: list[str] = field(default_factory=list)  # what the row had and the target won't read

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The functions on offer."""
        return json.loads(self.tools) if self.tools else []

    @property
    def options(self) -> dict[str, Any]:
        """Options of the chat template."""
        return json.loads(self.template_options) if self.template_options else {}

    @property
    def tool_results(self) -> list[list[tuple[str, str]]]:
        """(tool, result) of the logged calls after each turn."""
        return [[(name, text) for name, text in step] for step in json.loads(self.results or "[]")]

    @property
    def context(self) -> tuple[str, ...]:
        """Everything that the target reads besides the turns; prompts that differ in it are different prompts."""
        return tuple(filter(None, (self.system, self.tools, self.template_options)))


@dataclass(frozen=True)
class Reject:
    """A rejected attempt or row of a source. Its text is never stored."""

    attempt: int
    category: str
    reason: str
    hash: str  # salted; empty if there was no text
    detail: str = ""  # the evaluation file it overlaps, or the source of a duplicate


@dataclass(frozen=True)
class PromptSummary:
    """Summary of a folder of prompts."""

    prompts: int
    attempts: int
    tokens: int  # of the prompts' own text
    categories: dict[str, int]
    rejected: dict[str, int]  # reason -> count
    losses: dict[str, int] = field(default_factory=dict)  # what kept prompts lack -> prompts

    @property
    def spare(self) -> int:
        """Prompts that fit but weren't needed."""
        return self.attempts - self.prompts - sum(self.rejected.values())


_PROMPTS, _REJECTS = schema_of(TrainingPrompt), schema_of(Reject)


class PromptWriter(ShardWriter):
    """Writes shards of attempts."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "prompts", _PROMPTS, _REJECTS)

    @property
    def finished(self) -> bool:
        """True if `finish` was called."""
        return exists(join(self.url, END_NAME))

    def finish(self) -> None:
        """Mark the folder as complete."""
        write_json(join(self.url, END_NAME), {"shards": self.shards})

    def write(self, prompts: Sequence[TrainingPrompt], rejects: Sequence[Reject], tokens: int) -> None:
        """Write one shard of each; either may be empty."""
        self.append(list(map(asdict, prompts)), list(map(asdict, rejects)), tokens)


def read_prompts(url: str, skip: int = 0) -> Iterator[TrainingPrompt]:
    """All prompts of a folder in order, without the first `skip`; one shard in memory at a time."""
    if not Manifest.load(url).shards:
        raise DataError(f"no prompts in {url}; run `fledge prompts` first or name another folder")
    for shard in prompt_shards(url, skip):
        yield from shard


def prompt_shards(url: str, skip: int = 0) -> Iterator[list[TrainingPrompt]]:
    """A folder's shards in order, without the first `skip` prompts; none if there are no prompts."""
    manifest = Manifest.load(url)
    for shard in manifest.shards:
        if skip < shard.records:
            yield [TrainingPrompt(**row) for row in read_rows(manifest, shard, _PROMPTS)[skip:]]
        skip = max(0, skip - shard.records)


def reject_counts(*urls: str) -> Counter[tuple[str, str]]:
    """(reason, detail) -> rejects of the folders; each is read once."""
    manifests = [Manifest.load(join(url, "rejects")) for url in urls]
    return Counter(
        (row["reason"], row["detail"])
        for rejects in manifests
        for shard in rejects.shards
        for row in read_rows(rejects, shard, _REJECTS)
    )


def by_reason(rejects: Mapping[tuple[str, str], int]) -> Counter[str]:
    """Reason -> rejects, in the order of the reasons."""
    counts: Counter[str] = Counter()
    for (reason, _), number in sorted(rejects.items()):
        counts[reason] += number
    return counts


def prompt_summary(url: str) -> PromptSummary:
    """Statistics of a folder of prompts and its rejects, read once."""
    manifest = Manifest.load(url)
    categories: Counter[str] = Counter()
    losses: Counter[str] = Counter()
    for shard in prompt_shards(url):
        categories.update(prompt.category for prompt in shard)
        losses.update(loss for prompt in shard for loss in prompt.losses)
    rejects = reject_counts(url, *pool_urls(url))
    surplus = int(read_selection(url).get("surplus", 0))  # fit, but not needed
    return PromptSummary(
        prompts=manifest.records,
        attempts=manifest.records + rejects.total() + surplus,
        tokens=manifest.tokens,
        categories=dict(sorted(categories.items())),
        rejected=dict(by_reason(rejects)),
        losses=dict(sorted(losses.items())),
    )


def pool_url(url: str, source: str) -> str:
    """The pool of a source within a folder of prompts."""
    return join(url, "pool", source)


def pool_urls(url: str) -> list[str]:
    """The pools of a folder of prompts; none if the target wrote all prompts."""
    return [pool_url(url, source["name"]) for source in read_selection(url).get("sources", ())]


def traffic_url(url: str) -> str:
    """The counts of the traffic samples within a folder of prompts."""
    return join(url, "traffic")


def read_selection(url: str) -> dict[str, Any]:
    """The selection's summary; empty if there was none."""
    place = join(url, SELECTION_NAME)
    return read_sealed(place) if exists(place) else {}


def write_selection(url: str, value: dict[str, Any]) -> None:
    """Store the selection's summary."""
    write_sealed(join(url, SELECTION_NAME), value)
