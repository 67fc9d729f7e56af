"""A tiny target in float32 with an untrained head."""

from __future__ import annotations

import pytest
import torch

from fledge.draft import DraftVocabulary
from fledge.heads import Head
from fledge.target import Target
from tests.tiny import VOCAB_SIZE, TinyShape, save_tiny_target


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Three layers, float32, torch."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1)
    folder = save_tiny_target(tmp_path_factory.mktemp("bench") / "llama", shape=shape)
    return Target.load(str(folder), dtype="float32", backend="torch")


@pytest.fixture(scope="session")
def head(target: Target) -> Head:
    """As it is before training."""
    return Head.from_target(target, DraftVocabulary.from_counts(torch.ones(VOCAB_SIZE), 64))
