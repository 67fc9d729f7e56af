"""Conversations as the target had them: token ids, which of them it generated, and where turns begin.

token_ids     <user> Why ... ? <end> <assistant> | Because ... <end> | <user> And ... ? <end> <assistant> | ...
loss_mask      0     0   ... 0   0       0       |   1     ...   1   |   0     0  ...                     | 1
turn_starts    ^ 0                                 ^ first answer      ^ second user turn                   ^
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Literal

import pyarrow as pa

from fledge.data.parquet import read_rows, to_parquet
from fledge.errors import DataError
from fledge.storage import Manifest

Split = Literal["train", "heldout"]

SCHEMA = pa.schema(
    [
        ("conversation_id", pa.string()),
        ("prompt_id", pa.string()),
        ("source", pa.string()),
        ("category", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("turn_starts", pa.list_(pa.int32())),
        ("temperature", pa.float64()),
        ("finish_reason", pa.string()),
        ("split", pa.string()),
    ]
)


@dataclass(frozen=True)
class Conversation:
    """One conversation of T tokens."""

    conversation_id: str
    prompt_id: str
    source: str
    category: str
    token_ids: list[int]  # [T]
    loss_mask: list[bool]  # [T], True where the target generated the token, turn ends included
    turn_starts: list[int]  # even entries: user turns with their template; odd entries: the target's answers
    temperature: float
    finish_reason: str  # of the last answer: "stop" or "length"
    split: str

    @property
    def supervised_tokens(self) -> int:
        """Tokens the target generated."""
        return sum(self.loss_mask)


@dataclass(frozen=True)
class ConversationStatistics:
    """Counts over a folder of conversations."""

    conversations: int
    heldout: int
    tokens: int
    supervised_tokens: int
    turns: int  # answers
    finish_reasons: dict[str, int]
    categories: dict[str, int]
    temperatures: dict[float, int]
    longest: int


def shard_bytes(conversations: Sequence[Conversation]) -> bytes:
    """One Parquet shard."""
    names = [field.name for field in fields(Conversation)]
    return to_parquet([{name: getattr(c, name) for name in names} for c in conversations], SCHEMA)


def read_conversations(url: str, split: Split | None = None) -> Iterator[Conversation]:
    """All conversations of a folder in order, one shard in memory at a time."""
    for shard in conversation_shards(url):
        for conversation in shard:
            if split is None or conversation.split == split:
                yield conversation


def conversation_shards(url: str) -> Iterator[list[Conversation]]:
    """The folder's shards in order."""
    manifest = Manifest.load(url)
    if not manifest.shards:
        raise DataError(f"no conversations in {url}; run `fledge respond` first or name another folder")
    for shard in manifest.shards:
        yield [Conversation(**row) for row in read_rows(manifest, shard, SCHEMA)]


def conversation_statistics(url: str) -> ConversationStatistics:
    """Read a folder once and count."""
    finish_reasons: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    temperatures: Counter[float] = Counter()
    conversations = heldout = tokens = supervised = turns = longest = 0
    for conversation in read_conversations(url):
        conversations += 1
        heldout += conversation.split == "heldout"
        tokens += len(conversation.token_ids)
        supervised += conversation.supervised_tokens
        turns += len(conversation.turn_starts) // 2
        longest = max(longest, len(conversation.token_ids))
        finish_reasons[conversation.finish_reason] += 1
        categories[conversation.category] += 1
        temperatures[conversation.temperature] += 1
    return ConversationStatistics(
        conversations=conversations,
        heldout=heldout,
        tokens=tokens,
        supervised_tokens=supervised,
        turns=turns,
        finish_reasons=dict(sorted(finish_reasons.items())),
        categories=dict(sorted(categories.items())),
        temperatures=dict(sorted(temperatures.items())),
        longest=longest,
    )
