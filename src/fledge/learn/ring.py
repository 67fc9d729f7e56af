"""The latest conversations, in memory: what is trained on, and the share that candidates are measured on.

    new conversation --every k-th of its group--> held out (the newest) --pushed out--> train --pushed out--> gone
                     '--------------the others--------------------------------------->

When the ring is full, the group that takes most of it loses its oldest conversation: a client that sends more than the
others gets a larger share only as long as they leave it. Batches take from the groups in turn, and each conversation a
bounded number of times. A held-out conversation has never been trained on.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, zip_longest

import torch
from torch import Tensor

from fledge.features import FeatureSample, SampleInfo
from fledge.learn.options import LearnOptions


class Ring:
    """A `FeatureSource` of the newest conversations. Thread-safe."""

    url = "memory"
    ahead = 0

    def __init__(self, options: LearnOptions) -> None:
        self.limit, self._passes = options.memory, options.passes
        self._every, self._heldout_tokens = max(2, round(1 / options.heldout)), options.heldout_tokens
        self._samples: dict[int, FeatureSample] = {}  # by number, oldest first
        self._infos: dict[int, SampleInfo] = {}
        self._size: Counter[str] = Counter()  # bytes by group
        self._came: Counter[str] = Counter()  # conversations by group
        self._drawn: Counter[int] = Counter()  # how often, by number
        self._number = 0
        self.tokens_in = 0  # ever
        self._lock = threading.RLock()

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._size.total()

    def next_number(self) -> int:
        """A number for the next conversation."""
        self._number += 1
        return self._number

    def add(self, sample: FeatureSample) -> None:
        """Take in a conversation, and drop older ones that it leaves no room for. Too large a one is left out."""
        group, supervised = sample.category, int(sample.loss_mask.sum())
        if _bytes(sample) > self.limit or not supervised:
            return
        with self._lock:
            number = int(sample.conversation_id)
            out = self._came[group] % self._every == 0
            self._came[group] += 1
            split = "heldout" if out else "train"
            self._samples[number] = sample
            self._infos[number] = SampleInfo(
                0, number, split, group, sample.temperature, len(sample.token_ids), supervised, str(number)
            )
            self._size[group] += _bytes(sample)
            self.tokens_in += len(sample.token_ids)
            while self._held_out() > self._heldout_tokens:
                if not self._release_oldest():
                    break
            while self.size > self.limit:
                fullest = max(self._size, key=lambda name: self._size[name])
                self._drop(next(n for n, info in self._infos.items() if info.category == fullest))

    def split(self, name: str) -> list[SampleInfo]:
        """The conversations of "train" or "heldout", oldest first."""
        with self._lock:
            return [info for info in self._infos.values() if info.split == name]

    def tokens(self, info: SampleInfo) -> tuple[Tensor, Tensor]:
        """Token ids and loss mask of a conversation."""
        (sample,) = self.read_many([info])
        return sample.token_ids, sample.loss_mask

    def read_many(self, infos: Sequence[SampleInfo]) -> list[FeatureSample]:
        """Several conversations with their hidden states, without any evicted meanwhile."""
        with self._lock:
            return [self._samples[info.index] for info in infos if info.index in self._samples]

    def left(self) -> list[SampleInfo]:
        """Conversations that may be trained on again."""
        return [info for info in self.split("train") if self._drawn[info.index] < self._passes]

    def draw(self, tokens: int, generator: torch.Generator) -> list[SampleInfo]:
        """A random batch of about so many tokens to train on, the groups in turn."""
        groups: defaultdict[str, list[SampleInfo]] = defaultdict(list)
        drawn: list[SampleInfo] = []
        with self._lock:
            left = self.left()
            for place in torch.randperm(len(left), generator=generator).tolist():
                groups[left[place].category].append(left[place])
            for info in filter(None, chain.from_iterable(zip_longest(*groups.values()))):
                drawn.append(info)
                self._drawn[info.index] += 1
                tokens -= info.tokens
                if tokens <= 0:
                    break
        return drawn

    def _held_out(self) -> int:
        return sum(info.tokens for info in self._infos.values() if info.split == "heldout")

    def _release_oldest(self) -> bool:
        """Train on the oldest held-out conversation of the group that has most; False: there is only one."""
        held = [info for info in self._infos.values() if info.split == "heldout"]
        if len(held) < 2:
            return False
        most = Counter[str]()
        for info in held:
            most[info.category] += info.tokens
        group = most.most_common(1)[0][0]
        oldest = next(info for info in held if info.category == group)
        self._infos[oldest.index] = replace(oldest, split="train")
        return True

    def _drop(self, number: int) -> None:
        sample = self._samples.pop(number)
        del self._infos[number], self._drawn[number]
        self._size[sample.category] -= _bytes(sample)


def _bytes(sample: FeatureSample) -> int:
    tensors = (sample.token_ids, sample.loss_mask, sample.argmax, sample.features, sample.hidden)
    return sum(t.numel() * t.element_size() for t in tensors)
