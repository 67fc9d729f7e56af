from __future__ import annotations

import pytest
import torch

from fledge.train.optimizer import Optimizer, orthogonal
from fledge.train.options import TrainOptions
from fledge.train.weights import TrainableWeights


@pytest.mark.parametrize("shape", [(48, 96), (96, 48), (64, 64)])
def test_an_update_has_singular_values_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 1e-3
    values = torch.linalg.svdvals(orthogonal(matrix, torch.float32))
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_both_optimizers_go_downhill(name: str) -> None:
    """Fit a linear map through the layer's matrix and the lm_head."""
    generator = torch.Generator().manual_seed(2)
    tensors = {
        "o": torch.randn(32, 32, generator=generator),
        "lm_head": torch.randn(24, 32, generator=generator),
    }
    weights = TrainableWeights(tensors, torch.float32, torch.device("cpu"))
    options = TrainOptions(optimizer=name, learning_rate=0.02, muon_learning_rate=0.02, warmup=0.0, clip=10.0)
    optimizer = Optimizer(weights, options, total_steps=200)
    x, wanted = torch.randn(64, 32, generator=generator), torch.randn(64, 24, generator=generator)
    losses = []
    for step in range(200):
        matrices = [weights.tensors()[n].requires_grad_() for n in tensors]  # [out, in]
        y = x
        for matrix in matrices:
            y = y @ matrix.t()
        loss = (y - wanted).pow(2).mean()
        for n, gradient in zip(tensors, torch.autograd.grad(loss, matrices), strict=True):
            weights[n].grad.copy_(gradient.t() if weights[n].transposed else gradient)
        losses.append(float(loss.detach()))
        optimizer.update(step)
    assert losses[-1] < 0.2 * losses[0]
