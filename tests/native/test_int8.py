"""Products with 8-bit weights against float32 ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fledge.native import ops

pytestmark = pytest.mark.kernels


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def rounding_bound(rows: Tensor, weight: Tensor) -> Tensor:
    """[M, N]: the most that rounding to half a step can change each product."""
    x, w = rows.float(), weight.float()
    half = x.shape[1] % 64
    group = torch.nn.functional.pad(x, (0, half)).view(len(x), -1, 64).abs().amax(-1)  # [M, ceil(K / 64)]
    step_x = (group / 127).repeat_interleave(64, 1)[:, : x.shape[1]] / 2
    step_w = (w.abs().amax(-1) / 127)[:, None].expand_as(w) / 2
    return step_x @ w.abs().T + x.abs() @ step_w.T + step_x @ step_w.T


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 12, 13, 31, 33, 64, 300])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 32), (7, 96), (200, 64), (65, 1536)])
def test_products_are_within_the_rounding_of_weights_and_activations(
    rows: int, outputs: int, inputs: int
) -> None:
    weight, x = random(outputs, inputs, seed=1), random(rows, inputs, seed=2)
    x[:, 3] *= 50  # an outlier costs its own group of inputs precision only
    got = ops.PackedMatrix(weight, int8=True).multiply(x)
    want = x.float() @ weight.float().T
    bound = rounding_bound(x, weight)
    assert ((got - want).abs() <= 1.001 * bound + 1e-5 * want.abs().max()).all()
    typical = (got - want).pow(2).mean().sqrt() / want.pow(2).mean().sqrt()
    assert 0 < typical < 0.03


def test_values_that_eight_bits_hold_are_multiplied_exactly() -> None:
    """Whole numbers up to 127, both signs, in every place: an exchanged place or sign shows."""
    outputs, inputs = 45, 160
    generator = torch.Generator().manual_seed(3)
    weight = torch.randint(-127, 128, (outputs, inputs), generator=generator)
    x = torch.randint(-127, 128, (9, inputs), generator=generator)
    weight[:, 5], x[:, ::32] = 127, -127
    got = ops.PackedMatrix(weight.bfloat16(), int8=True).multiply(x.bfloat16())
    assert torch.equal(got.round().long(), x @ weight.T)


def test_zeros_stay_zero() -> None:
    weight = random(40, 64, seed=4)
    weight[7] = 0
    x = random(3, 64, seed=5)
    x[1] = 0
    got = ops.PackedMatrix(weight, int8=True).multiply(x)
    assert (got[:, 7] == 0).all()
    assert (got[1] == 0).all()
    assert (got[0, :7] != 0).all()


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("inputs", [64, 576, 1536])
def test_a_row_does_not_depend_on_the_rows_beside_it(int8: bool, inputs: int) -> None:
    matrix, x = ops.PackedMatrix(random(75, inputs, seed=6), int8=int8), random(70, inputs, seed=7)
    alone = torch.cat([matrix.multiply(row[None]) for row in x])
    for rows in (2, 7, 12, 13, 16, 24, 25, 32, 33, 49, 70):
        assert torch.equal(matrix.multiply(x[:rows]), alone[:rows]), rows


def test_bf16_products_agree_with_float32() -> None:
    weight, x = random(75, 1536, seed=8), random(29, 1536, seed=9)
    want = x.float() @ weight.float().T
    assert (ops.PackedMatrix(weight).multiply(x) - want).abs().max() < 1e-3 * want.abs().max()


def test_memory_is_half_of_bf16_and_a_scale_per_output() -> None:
    weight = random(64, 96, seed=10)
    assert ops.PackedMatrix(weight).bytes == 2 * 64 * 96
    assert ops.PackedMatrix(weight, int8=True).bytes == 64 * 96 + 64 * 4
