"""A training step's losses and gradients: on the device and on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fledge.draft import DraftVocabulary, HeadConfig, HeadWeights
from fledge.draft.description import weight_shapes
from fledge.heads import Head
from tests.gpu.record import Check
from tests.gpu.script import TINY, scripted

_LENGTHS = (40, 97, 200, 333)
_STEPS = [0.4, 0.3, 0.2, 0.1]
_DRAFT = 300


def training(check: Check) -> None:
    """float32: gradients within a hundredth of the CPU's. Then what a step takes in bf16."""
    from fledge.features.shard import FeatureSample
    from fledge.train.batches import make_batch
    from fledge.train.learner import Learner

    cpu, generator = torch.device("cpu"), torch.Generator().manual_seed(0)
    target = scripted(TINY, cpu, torch.float32, rate=0.5).target
    size, vocabulary = target.config.hidden_size, target.config.vocab_size
    config = HeadConfig.for_target(target.config, _DRAFT)
    drawn = {
        name: torch.ones(shape)
        if len(shape) == 1
        else torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for name, shape in weight_shapes(config).items()
    }
    d2t = DraftVocabulary.from_counts(torch.arange(vocabulary, 0, -1), _DRAFT).d2t
    samples = [
        FeatureSample(
            str(length), "any", "train", 0.0,
            torch.randint(6, vocabulary, (length,), generator=generator, dtype=torch.int32),
            (torch.arange(length) >= length // 3).to(torch.uint8),
            torch.randint(6, _DRAFT, (length,), generator=generator, dtype=torch.int32),
            torch.randn(length, 3 * size, generator=generator).bfloat16(),
            torch.randn(length, size, generator=generator).bfloat16(),
        )
        for length in _LENGTHS[: 2 if check.small else None]
    ]  # fmt: skip

    def learner_and_batch(device: torch.device, dtype: torch.dtype) -> tuple[Learner, Any]:
        head = Head(config, HeadWeights(**{n: t.clone() for n, t in drawn.items()}, d2t=d2t))
        return Learner(head, target.ends, dtype, device), make_batch(samples, dtype).to(device)

    def step(device: torch.device) -> tuple[list[float], Tensor]:
        learner, batch = learner_and_batch(device, torch.float32)
        measures = learner.learn(batch, _STEPS, measure=True)
        assert measures is not None
        return measures.losses, learner.unrolled.weights.grad.clone().cpu()

    def gradients() -> dict[str, Any]:
        (here, expected), (there, found) = step(cpu), step(check.device)
        error = float((expected - found).norm() / expected.norm())
        losses = max(abs(a - b) / a for a, b in zip(here, there, strict=True))
        return {"ok": error < 1e-2 and losses < 1e-3, "gradient_error": error, "loss_error": losses}

    def speed() -> dict[str, Any]:
        learner, batch = learner_and_batch(check.device, torch.bfloat16 if check.gpu else torch.float32)
        ms = check.ms(
            lambda: learner.learn(batch, _STEPS, measure=False), times=3 if check.small else 10, warm=2
        )
        return {"ms": round(ms, 2), "tokens": sum(len(sample.token_ids) for sample in samples)}

    check.case("gradients against the CPU's", gradients, least=60.0)
    check.case("a step", speed, least=60.0)
