"""Input of training: conversations with their features, as batches in the learner's type and on its device."""

from __future__ import annotations

from collections.abc import Sequence
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


def read_batch(
    source: FeatureSource, infos: Sequence[SampleInfo], dtype: torch.dtype, device: torch.device
) -> TrainBatch | None:
    """Read the conversations and lay them end to end; None if there are none."""
    samples = source.read_many(infos) if infos else []
    if not samples:
        return None
    return make_batch(samples, dtype).to(device)
