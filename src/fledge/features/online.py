"""Features computed while training requests them, instead of read from a store.

    online    conversations -> target -> batch                        no disk; the target runs in every pass
    hybrid    conversations -> target -> batch, and into a store      the target runs in the first pass only
                                 store -> batch

The target is fledge's decoder, or servers that hold it. Only the batches that are read ahead are in memory.

A sample is the same either way: the conversation's own forward, in hybrid mode rounded as in the store from the first
pass on, so that a killed run resumes with the same values. Hybrid mode writes an ordinary feature store whose shards
contain conversations in training order.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.base.storage import Manifest
from fledge.data import Conversation, read_conversations
from fledge.features.codec import decode, encode
from fledge.features.extract import Extractor, FeatureExtractor, features_fingerprint, shard_tokens
from fledge.features.options import FeatureOptions
from fledge.features.shard import FeatureSample, SampleInfo
from fledge.features.store import FeatureStore, write_shard
from fledge.target import Target


class _Packed(NamedTuple):
    """A packed conversation: lists of Python numbers would take ten times the memory."""

    info: SampleInfo
    token_ids: Tensor  # [n] int32
    loss_mask: Tensor  # [n] uint8
    conversation: Conversation  # without its ids and mask


class OnlineFeatures:
    """The conversations of a folder, run through the target on demand."""

    def __init__(
        self,
        target: Target,
        conversations_url: str,
        options: FeatureOptions,
        keep_url: str | None = None,
        extractor: Extractor | None = None,
    ) -> None:
        """`keep_url`: the folder of the store for computed features; None: they aren't stored. `extractor`: a
        thread-safe one instead of fledge's own decoder."""
        self.url = conversations_url
        # A float32 target's products and the training step share a torch setting, so they take turns.
        self.ahead = 0 if target.dtype == torch.float32 else 2
        self.readers = 1
        self._lock: AbstractContextManager[object] = Lock()  # one thread extracts at a time
        if extractor is not None and options.server is not None and keep_url is None:
            self.ahead = self.readers = options.server.ahead if self.ahead else 0
            self._lock = nullcontext()
        self._options, self._keep_url = options, keep_url
        self._extractor = extractor or FeatureExtractor(target, options.batch_tokens)
        self._packed: dict[str, _Packed] = {}
        for number, c in enumerate(read_conversations(conversations_url)):
            if c.split == "train":
                self._packed[c.conversation_id] = _packed(number, c)
        self._fresh: list[FeatureSample] = []  # computed, not yet in a shard
        self._kept: FeatureStore | None = None
        self._places: dict[str, SampleInfo] = {}
        self._shard_tokens = shard_tokens(target.config.hidden_size, options)
        if keep_url is not None:
            features_fingerprint(target, conversations_url, options).claim(keep_url)
            self._reopen()

    def split(self, name: str) -> list[SampleInfo]:
        """The conversations of "train"; held-out ones are in the feature store."""
        return [packed.info for packed in self._packed.values() if packed.info.split == name]

    def tokens(self, info: SampleInfo) -> tuple[Tensor, Tensor]:
        """Token ids and loss mask of a conversation."""
        packed = self._packed[info.conversation_id]
        return packed.token_ids, packed.loss_mask

    def read_many(self, infos: Sequence[SampleInfo]) -> list[FeatureSample]:
        """Conversations with hidden states, without those that a server refused: those not stored yet go through the
        target together."""
        with self._lock, torch.no_grad():
            fresh = {sample.conversation_id: sample for sample in self._fresh}
            if any(i.conversation_id in fresh for i in infos):  # another pass has started: all are computed
                self._write()
            missing = [
                i for i in infos if i.conversation_id not in self._places and i.conversation_id not in fresh
            ]
            computed = self._extract(missing)
            found = [self._one(info, fresh | computed) for info in infos]
            if self._keep_url is not None:
                self._fresh += computed.values()
                if sum(len(s.token_ids) for s in self._fresh) >= self._shard_tokens:
                    self._write()
        return [sample for sample in found if sample is not None]

    def _one(self, info: SampleInfo, computed: dict[str, FeatureSample]) -> FeatureSample | None:
        """None if the server refused it."""
        place = self._places.get(info.conversation_id)
        if place is None or self._kept is None:
            return computed.get(info.conversation_id)
        return self._kept.read(place)

    def _extract(self, infos: Sequence[SampleInfo]) -> dict[str, FeatureSample]:
        conversations = []
        for info in infos:
            packed = self._packed[info.conversation_id]
            ids, mask = packed.token_ids.tolist(), packed.loss_mask.bool().tolist()
            conversations.append(replace(packed.conversation, token_ids=ids, loss_mask=mask))
        samples = self._extractor.extract(conversations) if conversations else []
        if self._keep_url is not None and self._options.codec == "fp8":
            samples = [_rounded(sample) for sample in samples]
        return {sample.conversation_id: sample for sample in samples}

    def _write(self) -> None:
        """Write the computed samples to the store as a shard."""
        assert self._keep_url is not None
        write_shard(Manifest.load(self._keep_url), self._fresh, self._options.codec)
        self._fresh = []
        self._reopen()

    def _reopen(self) -> None:
        assert self._keep_url is not None
        if Manifest.load(self._keep_url).shards:
            self._kept = FeatureStore(self._keep_url)
            self._places = {info.conversation_id: info for info in self._kept.samples}


def _rounded(sample: FeatureSample) -> FeatureSample:
    """The sample after a round trip through fp8."""
    width = sample.hidden.shape[1]
    features, hidden = (decode(*encode(states, width)) for states in (sample.features, sample.hidden))
    return replace(sample, features=features, hidden=hidden)


def conversation_infos(url: str) -> list[SampleInfo]:
    """The infos that a store of a folder's conversations would have."""
    return [_info(number, c) for number, c in enumerate(read_conversations(url))]


def _info(number: int, c: Conversation) -> SampleInfo:
    return SampleInfo(
        shard=0,
        index=number,
        split=c.split,
        category=c.category,
        temperature=c.temperature,
        tokens=len(c.token_ids),
        supervised=c.supervised_tokens,
        conversation_id=c.conversation_id,
    )


def _packed(number: int, c: Conversation) -> _Packed:
    mask = torch.tensor(c.loss_mask, dtype=torch.uint8)
    empty = replace(c, token_ids=[], loss_mask=[])
    return _Packed(_info(number, c), torch.tensor(c.token_ids, dtype=torch.int32), mask, empty)
