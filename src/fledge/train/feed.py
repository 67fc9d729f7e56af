"""What training reads: conversations with their features, as batches in the learner's type and on its device."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from fledge.features import FeatureSample, SampleInfo
from fledge.train.batches import TrainBatch, make_batch


class FeatureSource(Protocol):
    """Where training gets its conversations: a feature store, or a target that computes them online."""

    url: str
    ahead: int  # batches worth reading ahead
    readers: int  # threads that do

    def split(self, name: str) -> list[SampleInfo]:
        """The conversations of "train" or "heldout"."""
        ...

    def tokens(self, info: SampleInfo) -> tuple[Tensor, Tensor]:
        """Token ids and loss mask of a conversation."""
        ...

    def read_many(self, infos: Sequence[SampleInfo]) -> list[FeatureSample]:
        """Several conversations with their hidden states, without those that a server refuses."""
        ...


@dataclass(frozen=True)
class Noise:
    """Uniform noise on the features of one step, as EAGLE (arXiv 2401.15077, sec. 4) adds it against overfitting.

    Only the head's input is changed, not the target's distribution. The noise follows from seed, step and conversation,
    so it is the same after a resume and for any number of processes.
    """

    size: float  # largest value, relative to each hidden state's mean magnitude
    seed: int
    step: int

    def added_to(self, sample: FeatureSample) -> FeatureSample:
        """The sample with noisy features [n, 3 * Ht]; the noise of each hidden state follows its own magnitude."""
        number = zlib.crc32(f"{self.seed} {self.step} {sample.conversation_id}".encode())
        generator = torch.Generator().manual_seed(number)
        width = sample.hidden.shape[1]
        parts = sample.features.float().view(len(sample.token_ids), -1, width)  # [n, 3, Ht]
        noise = torch.rand(parts.shape, generator=generator).mul_(2).sub_(1)
        noise *= self.size * parts.abs().mean(-1, keepdim=True)
        features = noise.add_(parts).view(sample.features.shape)
        return replace(sample, features=features.to(sample.features.dtype))


def read_batch(
    source: FeatureSource,
    infos: Sequence[SampleInfo],
    dtype: torch.dtype,
    device: torch.device,
    noise: Noise | None = None,
) -> TrainBatch | None:
    """Read the conversations and lay them end to end; None if there are none."""
    samples = source.read_many(infos) if infos else []
    if not samples:
        return None
    if noise is not None:
        samples = [noise.added_to(sample) for sample in samples]
    return make_batch(samples, dtype).to(device)
