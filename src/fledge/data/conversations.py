"""Conversations with the target: token ids, which of them it generated, and where turns begin.

token_ids     <user> Why ... ? <end> <assistant> | Because ... <end> | <user> And ... ? <end> <assistant> | ...
loss_mask      0     0   ... 0   0       0       |   1     ...   1   |   0     0  ...                     | 1
turn_starts    ^ 0                                 ^ first answer      ^ second user turn                   ^
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from fledge.base.errors import DataError
from fledge.base.storage import Manifest, join
from fledge.data.parquet import ShardWriter, read_rows, schema_of, to_parquet
from fledge.data.privacy import Audit

Split = Literal["train", "heldout"]

# Columns added later: the first of the published conversations (data/smollm2-135m-instruct) lack them.
_LATER = {"row": -1, "licence": "", "reasoning_tokens": 0}


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
    row: int = -1  # of the prompt in its source; -1: unknown
    licence: str = ""  # of the prompt's source
    reasoning_tokens: int = 0  # generated tokens spent on thinking

    @property
    def supervised_tokens(self) -> int:
        """Number of tokens the target generated."""
        return sum(self.loss_mask)


_IDS = pa.list_(pa.int32())
SCHEMA = schema_of(Conversation, token_ids=_IDS, turn_starts=_IDS, reasoning_tokens=pa.int32())
_REJECTS = pa.schema([("prompt_id", pa.string()), ("reason", pa.string())])


@dataclass(frozen=True)
class Answered:
    """The outcome of a prompt."""

    prompt_id: str
    conversations: tuple[Conversation, ...]
    reason: str | None = None  # why there is no conversation, or why it ended before the prompt's last turn
    audit: Audit | None = None  # of the scan of the target's texts, if any


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
    prompts: int  # answered; one yields several conversations if the template rewrites history
    reasoning_tokens: int


def is_trainable(tokens: int, supervised: int) -> bool:
    """True if a conversation of `tokens` tokens, `supervised` of them generated, supervises a position."""
    return tokens >= 3 and supervised >= 2


def _row(conversation: Conversation) -> dict[str, Any]:
    return {name: getattr(conversation, name) for name in SCHEMA.names}


def shard_bytes(conversations: Sequence[Conversation]) -> bytes:
    """One Parquet shard."""
    return to_parquet(list(map(_row, conversations)), SCHEMA)


def read_conversations(url: str, split: Split | None = None) -> Iterator[Conversation]:
    """All conversations of a folder in order, with one shard in memory at a time."""
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
        yield [Conversation(**row) for row in read_rows(manifest, shard, SCHEMA, _LATER)]


def conversation_statistics(url: str) -> ConversationStatistics:
    """Statistics of a folder, read once."""
    finish_reasons: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    temperatures: Counter[float] = Counter()
    conversations = heldout = tokens = supervised = turns = longest = prompts = reasoning = 0
    last = None
    for conversation in read_conversations(url):
        conversations += 1
        prompts += conversation.prompt_id != last  # conversations of one prompt are adjacent
        last = conversation.prompt_id
        reasoning += conversation.reasoning_tokens
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
        prompts=prompts,
        reasoning_tokens=reasoning,
    )


class ConversationWriter(ShardWriter):
    """Writes shards of answered prompts."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "conversations", SCHEMA, _REJECTS)

    def write(self, answered: Sequence[Answered]) -> None:
        """Write one shard of conversations and one of rejects; either may be empty."""
        rejects = [{"prompt_id": a.prompt_id, "reason": a.reason} for a in answered if a.reason is not None]
        conversations = [conversation for a in answered for conversation in a.conversations]
        tokens = sum(len(conversation.token_ids) for conversation in conversations)
        self.append(list(map(_row, conversations)), rejects, tokens)


def conversation_rejects(url: str) -> dict[str, int]:
    """Prompts of a folder per reason for having no conversation, or one that ended early."""
    rejects = Manifest.load(join(url, "rejects"))
    reasons = Counter(
        row["reason"] for shard in rejects.shards for row in read_rows(rejects, shard, _REJECTS)
    )
    return dict(sorted(reasons.items()))
