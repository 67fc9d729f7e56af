"""What training computes in: float32 where PyTorch's bf16 products are a hundred times slower."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fledge.draft import DraftVocabulary
from fledge.train import learner as module
from fledge.train.batches import make_batch
from fledge.train.learner import Learner, fast_dtype
from fledge.train.start import random_head
from tests.heads.tiny_head import load_tiny_target
from tests.train.samples import make_sample

CPU = torch.device("cpu")


@pytest.fixture(params=[True, False])
def multiplies_bf16(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    """A processor for which oneDNN has bf16 products, and one for which it has none."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: request.param)
    module._multiplies_bf16.cache_clear()
    yield request.param
    module._multiplies_bf16.cache_clear()


def test_bf16_is_taken_where_it_is_fast(multiplies_bf16: bool) -> None:
    assert fast_dtype(torch.bfloat16, CPU) == (torch.bfloat16 if multiplies_bf16 else torch.float32)
    assert fast_dtype(torch.float32, CPU) == torch.float32
    assert fast_dtype(torch.bfloat16, torch.device("cuda")) == torch.bfloat16


def test_a_step_in_either_type_moves_the_head(multiplies_bf16: bool, tiny_target_folder: Path) -> None:
    target = load_tiny_target(tiny_target_folder, "bfloat16")
    vocabulary = DraftVocabulary.from_counts(torch.zeros(target.config.vocab_size), 128)
    learner = Learner(random_head(target, vocabulary), target.ends, torch.bfloat16, CPU)
    assert learner.dtype == learner.unrolled.weights.compute.dtype
    assert learner.dtype == fast_dtype(torch.bfloat16, CPU)
    sample = make_sample([(5, 15)], seed=0)
    learner.learn(make_batch([sample], learner.dtype), [0.5, 0.5], measure=False)
    assert learner.unrolled.weights.grad.abs().sum() > 0
