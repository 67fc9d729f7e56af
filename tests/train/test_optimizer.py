from __future__ import annotations

from itertools import pairwise

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


def small(**options: object) -> tuple[TrainableWeights, Optimizer]:
    """A matrix of the layer, an lm_head and a norm, all ones, and an optimizer of 100 steps."""
    tensors = {"o": torch.ones(8, 8), "lm_head": torch.ones(6, 8), "norm": torch.ones(8)}
    weights = TrainableWeights(tensors, torch.float32, torch.device("cpu"))
    return weights, Optimizer(weights, TrainOptions(**options), total_steps=100)  # type: ignore[arg-type]


def test_the_rate_rises_evenly_to_its_peak_and_falls_by_half_a_cosine() -> None:
    _, optimizer = small(learning_rate=2.0, warmup=0.1, final_learning_rate=0.1)
    rates = [optimizer.learning_rate(step) for step in range(101)]
    assert rates[:10] == pytest.approx([0.2 * (step + 1) for step in range(10)])
    assert rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(2.0 * (0.1 + 0.9 / 2))  # half way down
    assert rates[100] == pytest.approx(0.2)
    falls = [before - after for before, after in pairwise(rates[10:])]
    assert all(fall > 0 for fall in falls)
    assert max(falls) == pytest.approx(falls[45], rel=1e-3)  # steepest in the middle


@pytest.mark.parametrize(("norm", "left"), [(0.25, 0.25), (0.5, 0.5), (8.0, 0.5)])
def test_only_what_is_longer_than_the_limit_is_shortened_to_it(norm: float, left: float) -> None:
    weights, optimizer = small(optimizer="adamw", clip=0.5, beta1=0.75)
    weights.grad.fill_(norm / weights.grad.numel() ** 0.5)
    assert optimizer.update(0) == pytest.approx(norm)  # before clipping
    assert float(optimizer.state()["first"].norm()) == pytest.approx(0.25 * left)


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_without_gradients_matrices_decay_and_norms_do_not(name: str) -> None:
    weights, optimizer = small(
        optimizer=name,
        learning_rate=0.1,
        muon_learning_rate=0.1,
        lm_head_rate=0.5,
        weight_decay=0.2,
        warmup=0.0,
    )
    optimizer.update(0)
    found = weights.tensors()
    assert torch.allclose(found["o"], torch.full((8, 8), 1 - 0.1 * 0.2))
    assert torch.allclose(found["lm_head"], torch.full((6, 8), 1 - 0.5 * 0.1 * 0.2))
    assert torch.equal(found["norm"], torch.ones(8))


def test_an_update_uses_its_gradients_up_and_refreshes_what_is_computed_with() -> None:
    weights, optimizer = small(learning_rate=0.1, warmup=0.0)
    weights.grad.fill_(1.0)
    optimizer.update(0)
    assert not weights.grad.any()
    assert torch.equal(weights.compute, weights.masters.shard)
    assert (weights.compute < 1).all()


def test_what_is_tried_out_leaves_nothing_behind() -> None:
    weights, optimizer = small(learning_rate=0.1)
    before = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    with optimizer.undone():
        weights.grad.fill_(1.0)
        optimizer.update(0)
        weights.grad.fill_(1.0)
    after = optimizer.state()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert not weights.grad.any()
    assert torch.equal(weights.compute, weights.masters.shard)
