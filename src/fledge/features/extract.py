"""The `features` stage: conversations through the target in large prefills, hidden states stored.

Conversations are packed end to end, each a request with its own pages, so no row is padding:

    rows   | conversation 0 ......... | conversation 1 .... | conversation 2 ........... |   <= batch_tokens
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, dropwhile, islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from fledge.base.ahead import read_ahead
from fledge.base.errors import DataError
from fledge.base.fingerprint import Fingerprint, make_fingerprint
from fledge.base.storage import Manifest, sha256
from fledge.data import Conversation, Progress, read_conversations
from fledge.data.options import silent
from fledge.features.codec import bytes_per_token
from fledge.features.options import FeatureOptions
from fledge.features.shard import FeatureSample, Shard
from fledge.features.store import write_shard
from fledge.sources.gguf import open_gguf
from fledge.target import Target
from fledge.target.batch import ForwardBatch

FORMAT = 2
_LOGIT_ROWS = 256  # rows whose logits exist at once
T = TypeVar("T")


class Extractor(Protocol):
    """Turns conversations into samples."""

    hidden_size: int
    shards_ahead: int  # worth extracting at once, each whole; 0: batch by batch, by the caller's thread

    def extract(self, conversations: list[Conversation]) -> list[FeatureSample]:
        """The conversations' samples, in order; without those that a server refused."""
        ...


class Extraction(NamedTuple):
    """A filled store."""

    store: Manifest
    refused: int  # conversations that a server refused, over all calls that filled it


def extract_features(
    target: Target,
    conversations_url: str,
    options: FeatureOptions,
    output_url: str,
    progress: Progress = silent,
    extractor: Extractor | None = None,
) -> Extraction:
    """Fill a feature store from a folder of conversations, or resume an earlier call.

    `extractor` runs the target; None: fledge's own decoder.
    """
    features_fingerprint(target, conversations_url, options).claim(output_url)
    extractor = extractor or FeatureExtractor(target, options.batch_tokens)
    wanted, total = wanted_sizes(conversations_url, options)
    manifest = Manifest.load(output_url)
    remaining = wanted_conversations(conversations_url, options)
    if manifest.records:  # after the last stored one: a server may have refused some before it
        last = Shard(manifest.url(manifest.shards[-1]), manifest.shards[-1]).infos(0)[-1].conversation_id
        remaining = islice(dropwhile(lambda c: c.conversation_id != last, remaining), 1, None)
    first = done = manifest.tokens
    start, lock, ahead = time.perf_counter(), Lock(), extractor.shards_ahead
    progress(done, total, "")

    def samples_of(group: list[Conversation]) -> list[FeatureSample]:
        nonlocal done
        samples: list[FeatureSample] = []
        for batch in [group] if ahead else by_tokens(group, options.batch_tokens, tokens_of):
            samples += extractor.extract(batch)
            with lock:
                done += sum(map(tokens_of, batch))
                progress(done, total, f"{(done - first) / (time.perf_counter() - start):,.0f} tokens/s")
        return samples

    groups = by_tokens(remaining, shard_tokens(extractor.hidden_size, options), tokens_of)
    for samples in read_ahead(groups, samples_of, ahead, threads=ahead):
        if samples:
            manifest = write_shard(manifest, samples, options.codec)
    if total and not manifest.records:
        raise DataError(
            "the server refused every conversation, see its log; correct features.server and run again"
        )
    return Extraction(manifest, wanted - manifest.records)


def wanted_conversations(url: str, options: FeatureOptions) -> Iterator[Conversation]:
    """The conversations whose features are stored, in order: all, or the held-out ones if training computes its own."""
    return (c for c in read_conversations(url) if options.feed == "offline" or c.split == "heldout")


def wanted_sizes(url: str, options: FeatureOptions) -> tuple[int, int]:
    """Number of the wanted conversations, and their tokens."""
    if options.feed == "offline":  # all of them
        manifest = Manifest.load(url)
        return manifest.records, manifest.tokens
    tokens = [tokens_of(c) for c in wanted_conversations(url, options)]
    return len(tokens), sum(tokens)


def shard_tokens(hidden_size: int, options: FeatureOptions) -> int:
    """Maximum tokens per shard."""
    return max(1, options.shard_mib * 2**20 // bytes_per_token(hidden_size, options.codec))


def check_runnable(conversations: Iterable[Conversation], limit: int, vocab_size: int) -> None:
    """Raise a DataError for conversations the target can't run, since its kernels don't check."""
    for c in conversations:
        if not 1 <= len(c.token_ids) <= limit:
            raise DataError(
                f"conversation {c.conversation_id} has {len(c.token_ids)} tokens, but the target takes 1 to {limit}; "
                "lower respond.max_prompt_tokens or respond.max_new_tokens and run respond again"
            )
        if min(c.token_ids) < 0 or max(c.token_ids) >= vocab_size:
            raise DataError(
                f"conversation {c.conversation_id} has tokens beyond the target's vocabulary of {vocab_size}: "
                "it was made with another target; use conversations of this one"
            )


def sample_of(c: Conversation, argmax: Tensor, features: Tensor, hidden: Tensor) -> FeatureSample:
    """A conversation with the results of its forward; raises a DataError for hidden states that training can't use."""
    features, hidden = (t.to("cpu", torch.bfloat16).contiguous() for t in (features, hidden))
    ids, mask = torch.tensor(c.token_ids, dtype=torch.int32), torch.tensor(c.loss_mask, dtype=torch.uint8)
    sample = FeatureSample(
        c.conversation_id, c.category, c.split, c.temperature, ids, mask, argmax, features, hidden
    )
    check_finite(sample)
    return sample


def check_finite(sample: FeatureSample) -> None:
    """Raise a DataError for hidden states that training can't use."""
    if not bool(torch.isfinite(sample.features).all() and torch.isfinite(sample.hidden).all()):
        raise DataError(
            "the target's hidden states hold infinities or NaN; run it in another type (target.dtype) or with "
            "target.backend=torch"
        )


def likeliest_next(mask: Tensor, hidden: Tensor, lm_head: Callable[[Tensor], Tensor]) -> Tensor:
    """The most probable next token of each row, -1 if the next token wasn't generated, [n] int32.

    `mask` [n]: the generated tokens; `hidden` [n, Ht]: the lm_head's inputs.
    """
    best = torch.full((len(mask),), -1, dtype=torch.int32)
    rows = mask[1:].nonzero().flatten()
    for chunk in rows.split(_LOGIT_ROWS):
        best[chunk] = lm_head(hidden[chunk.to(hidden.device)]).argmax(-1).to("cpu", torch.int32)
    return best


def features_fingerprint(target: Target, conversations_url: str, options: FeatureOptions) -> Fingerprint:
    """Fingerprint of everything the store depends on; the target's batch size isn't part of it."""
    chosen = target.config.chosen_layers
    by = {"by": "transformers"} if options.device_map else {}
    if options.engine == "llama.cpp":
        file = options.gguf and open_gguf(Path(options.gguf).expanduser())
        by = {"by": "llama.cpp"} | ({"gguf": file.digest} if file else {})
    conversations = Manifest.load(conversations_url)
    if not conversations.records:
        raise DataError(f"no conversations in {conversations_url}; run `fledge respond` first")
    return make_fingerprint(
        {
            "stage": "features",
            "format": FORMAT,
            "target": {"revision": target.revision, "dtype": str(target.dtype), "chat": target.chat.hash}
            | ({"feature_layers": chosen} if chosen else {}),
            "features": options.model_dump(
                mode="json",
                exclude={"batch_tokens", "price_per_gb", "device_map", "engine", "gguf", "server"},
            )
            | by,
            "conversations": sha256("".join(shard.sha256 for shard in conversations.shards).encode()),
        }
    )


class FeatureExtractor:
    """Runs conversations through a target; owns the KV pool for that."""

    shards_ahead = 0

    def __init__(self, target: Target, batch_tokens: int) -> None:
        self._decoder = target.decoder
        self.hidden_size = target.config.hidden_size
        self._limit = target.config.max_position_embeddings
        self._vocab_size = target.config.vocab_size
        self._batch_tokens = batch_tokens
        self._kv: Tensor | None = None
        self._pages = 0

    def extract(self, conversations: list[Conversation]) -> list[FeatureSample]:
        """One forward over all conversations."""
        check_runnable(conversations, self._limit, self._vocab_size)
        lengths = [len(c.token_ids) for c in conversations]
        pages = [-(-length // self._decoder.page_size) for length in lengths]
        table = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
        for row, (end, count) in enumerate(zip(accumulate(pages), pages, strict=True)):
            table[row, :count] = torch.arange(end - count, end)
        token_ids = torch.tensor([i for c in conversations for i in c.token_ids], dtype=torch.int32)
        mask = torch.tensor([m for c in conversations for m in c.loss_mask], dtype=torch.uint8)
        following = _following_is_generated(mask, lengths)  # [R]
        rows = following.nonzero().flatten()
        zeros = torch.zeros(len(lengths), dtype=torch.int32)
        batch = ForwardBatch(
            token_ids=token_ids,
            positions=torch.cat([torch.arange(n, dtype=torch.int32) for n in lengths]),
            row_start=torch.tensor([*accumulate(lengths, initial=0)], dtype=torch.int32),
            prefix_length=zeros,
            window_offset=zeros,
            page_table=table,
            logit_rows=rows.int(),
        )
        device = self._decoder.device
        on_device = ForwardBatch(*(None if t is None else t.to(device) for t in batch))  # type: ignore[arg-type]
        out = self._decoder.forward(
            on_device,
            self._pool(sum(pages)),
            logits="argmax" if len(rows) else "none",
            features=True,
            hidden=True,
        )
        argmax = torch.full((sum(lengths),), -1, dtype=torch.int32)
        if out.argmax is not None:
            argmax[rows] = out.argmax.to("cpu", torch.int32)
        if out.features is None or out.hidden is None:
            raise DataError("the decoder returned no hidden states; use another backend for the target")
        parts = (t.split(lengths) for t in (argmax, out.features, out.hidden))
        return list(map(sample_of, conversations, *parts))

    def _pool(self, pages: int) -> Tensor:
        """A KV pool of at least `pages` pages; stale contents are overwritten before they are read."""
        if self._kv is None or pages > self._pages:
            self._pages = max(pages, 2 * -(-self._batch_tokens // self._decoder.page_size))
            self._kv = None  # free the old pool before allocating the new one
            self._kv = self._decoder.allocate_kv(self._pages)
        return self._kv


def _following_is_generated(mask: Tensor, lengths: list[int]) -> Tensor:
    """Rows whose next token was generated, [R] bool; a conversation's last row has none."""
    following = torch.cat((mask[1:], mask.new_zeros(1))).bool()
    following[torch.tensor(lengths).cumsum(0) - 1] = False
    return following


def tokens_of(conversation: Conversation) -> int:
    """Number of tokens in a conversation."""
    return len(conversation.token_ids)


def by_tokens(items: Iterable[T], limit: int, tokens_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Consecutive groups of at most `limit` tokens; a longer item forms its own group."""
    group: list[T] = []
    tokens = 0
    for item in items:
        if group and tokens + tokens_of(item) > limit:
            yield group
            group, tokens = [], 0
        group.append(item)
        tokens += tokens_of(item)
    if group:
        yield group
