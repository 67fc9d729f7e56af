"""A random head for a tiny target: every tensor matters, unlike in a freshly initialised one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from fledge.draft import DraftVocabulary
from fledge.heads import Head
from fledge.target import Target
from fledge.train.candidates import estimated

KINDS = {  # the switches and the window of each kind of head
    "eagle3": {},
    "eagle3.1": {"fc_norm": True, "norm_output": True},
    "speculators": {"norm_before_residual": True},
    "windowed": {"window": 5},
}


def load_tiny_target(folder: Path, dtype: str = "float32") -> Target:
    return Target.load(str(folder), dtype=dtype, backend="torch")


def random_head(target: Target, *, size: int = 96, seed: int = 0, window: int = 0, **switches: bool) -> Head:
    """A head with a draft vocabulary of every fourth token or so, its weights drawn around the initial ones."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.rand(target.config.vocab_size, generator=generator)
    vocabulary = DraftVocabulary.from_counts(counts, size, target.chat.turn_end_ids)
    head = Head.from_target(target, vocabulary, switches=[name for name, on in switches.items() if on])
    noisy = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in head.weights.trainable().items()
    }
    return Head(head.config, replace(head.weights, **noisy), head.metadata).with_window(window)


def estimating(head: Head, count: int = 8, rank: int = 32) -> Head:
    """The head with low-rank estimates of its lm_head, poor ones: it is random, so that no rank would do."""
    moment = torch.eye(head.config.hidden_size, dtype=torch.float64)
    return estimated(head, moment, count=count, rank=rank)
