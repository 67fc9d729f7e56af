"""Noise on the features the head reads in training, as EAGLE (arXiv 2401.15077, sec. 4) adds it against overfitting.

Only what is fed is changed; the target's distribution that is learnt stays as it was. The noise of a conversation at a
step follows from seed, step and conversation, so it is the same after a resume and in any number of processes.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import torch

from fledge.features import FeatureSample


@dataclass(frozen=True)
class Noise:
    """Uniform noise for one step."""

    size: float  # its largest value, relative to the mean magnitude of each hidden state
    seed: int
    step: int

    def added_to(self, sample: FeatureSample) -> FeatureSample:
        """The sample with other features [n, 3 * Ht]; the three hidden states of a token have their own magnitude."""
        number = zlib.crc32(f"{self.seed} {self.step} {sample.conversation_id}".encode())
        generator = torch.Generator().manual_seed(number)
        width = sample.hidden.shape[1]
        parts = sample.features.float().view(len(sample.token_ids), -1, width)  # [n, 3, Ht]
        noise = torch.rand(parts.shape, generator=generator).mul_(2).sub_(1)
        noise *= self.size * parts.abs().mean(-1, keepdim=True)
        features = noise.add_(parts).view(sample.features.shape)
        return replace(sample, features=features.to(sample.features.dtype))
