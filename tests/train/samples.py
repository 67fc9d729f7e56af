"""Feature samples for tests, with random hidden states."""

from __future__ import annotations

import torch

from fledge.features import FeatureSample


def make_sample(
    turns: list[tuple[int, int]], *, seed: int, vocab: int = 512, size: int = 64
) -> FeatureSample:
    """A conversation of (prompt tokens, answer tokens) turns."""
    generator = torch.Generator().manual_seed(seed)
    mask = [flag for prompt, answer in turns for flag in [0] * prompt + [1] * answer]
    n = len(mask)
    loss_mask = torch.tensor(mask, dtype=torch.uint8)
    argmax = torch.randint(0, vocab, (n,), generator=generator, dtype=torch.int32)
    argmax[torch.cat((loss_mask[1:], torch.zeros(1))) == 0] = -1
    return FeatureSample(
        conversation_id=f"c{seed}",
        category="test",
        split="train",
        temperature=0.0,
        token_ids=torch.randint(0, vocab, (n,), generator=generator, dtype=torch.int32),
        loss_mask=loss_mask,
        argmax=argmax,
        features=torch.randn(n, 3 * size, generator=generator).bfloat16(),
        hidden=torch.randn(n, size, generator=generator).bfloat16(),
    )
