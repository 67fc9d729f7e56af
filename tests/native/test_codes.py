"""Weights of 4 to 8 bits: what is packed can be read back, products are exact up to rounding, and rows independent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fledge.native import ops

pytestmark = pytest.mark.kernels

FORMATS = {
    "Q8_0": ops.Format(0, 8, 1, zero=128),
    "Q5_0": ops.Format(0, 6, 1, zero=16),
    "Q5_K": ops.Format(0, 6, 1, minima=True),
    "Q6_K": ops.Format(0, 6, 2, zero=32),
    "Q2_K": ops.Format(0, 6, 2, minima=True),
    "Q4_0": ops.Format(0, 4, 1, zero=8),
    "Q4_K": ops.Format(0, 4, 1, minima=True),
}


def codes(f: ops.Format, outputs: int, inputs: int) -> tuple[Tensor, Tensor, Tensor | None]:
    values = torch.randint(0, 1 << f.bits, (outputs, inputs), dtype=torch.uint8)
    values[0, :64] = (1 << f.bits) - 1  # sums at their limits
    values[1, :64] = 0
    scale = torch.rand(outputs, inputs // 32 * f.groups).half() / 100
    minimum = torch.rand(scale.shape).half() if f.minima else None
    return values, scale, minimum


def numbers(f: ops.Format, values: Tensor, scale: Tensor, minimum: Tensor | None) -> Tensor:
    width = 32 // f.groups
    out = (values.float() - f.zero) * scale.float().repeat_interleave(width, 1)
    return out if minimum is None else out - minimum.float().repeat_interleave(width, 1)


def eight_bits(rows: int, inputs: int) -> Tensor:
    """Activations that 8 bits hold exactly: whole numbers, times a power of two for each group."""
    values = torch.randint(-127, 128, (rows, inputs // 32, 32))
    values[:, :, 7] = 127
    values[0], values[1], values[2, 1] = 127, -127, 0
    return (values * 2.0 ** torch.randint(-6, 3, (rows, inputs // 32, 1))).flatten(1)


def packed(f: ops.Format, *, outputs: int = 96, inputs: int = 160) -> tuple[ops.Weight, Tensor]:
    torch.manual_seed(0)
    parts = codes(f, outputs, inputs)
    weight = ops.Weight(inputs, [f._replace(rows=outputs)])
    weight.pack_codes(0, *parts)
    return weight, numbers(f, *parts)


@pytest.mark.parametrize("f", FORMATS.values(), ids=FORMATS)
def test_rows_are_read_back(f: ops.Format) -> None:
    weight, expected = packed(f, outputs=80)
    torch.testing.assert_close(weight.rows(0, 80), expected)


@pytest.mark.parametrize("f", FORMATS.values(), ids=FORMATS)
def test_products_with_rows_that_eight_bits_hold_are_exact(f: ops.Format) -> None:
    weight, expected = packed(f)
    rows = eight_bits(40, 160)
    reference = rows.double() @ expected.double().T
    torch.testing.assert_close(
        weight.multiply(rows).double(), reference, rtol=1e-6, atol=2e-6 * float(reference.abs().max())
    )


@pytest.mark.parametrize("inputs", [64, 160])
def test_an_outlier_costs_its_own_group_of_activations_precision(inputs: int) -> None:
    weight, expected = packed(FORMATS["Q8_0"], inputs=inputs)
    rows = torch.randn(20, inputs).bfloat16().float()
    rows[:, 3] *= 50
    step = (rows.view(20, -1, 32).abs().amax(-1) / 127).repeat_interleave(32, 1)
    error = (weight.multiply(rows) - rows @ expected.T).abs()
    assert (error <= 0.5001 * step @ expected.abs().T + 1e-4).all()
    assert error.max() > 0


@pytest.mark.parametrize("f", FORMATS.values(), ids=FORMATS)
def test_a_row_has_the_same_product_whatever_is_beside_it(f: ops.Format) -> None:
    weight, _ = packed(f)
    rows = torch.randn(300, 160)
    whole = weight.multiply(rows)
    for first, count in ((0, 1), (3, 2), (5, 3), (7, 12), (11, 13), (40, 33), (1, 260)):
        assert torch.equal(weight.multiply(rows[first : first + count]), whole[first : first + count])


def test_parts_of_several_formats_are_one_weight() -> None:
    torch.manual_seed(0)
    formats = [FORMATS["Q4_K"], FORMATS["Q6_K"]]
    parts = [codes(f, 64, 128) for f in formats]
    weight = ops.Weight(128, [f._replace(rows=64) for f in formats])
    for number, part in enumerate(parts):
        weight.pack_codes(number * 64, *part)
    expected = torch.cat([numbers(f, *part) for f, part in zip(formats, parts, strict=True)])
    torch.testing.assert_close(weight.rows(0, 128), expected)
    rows = eight_bits(5, 128)
    torch.testing.assert_close(weight.multiply(rows), rows @ expected.T, rtol=1e-5, atol=1e-2)


def test_a_format_that_the_kernels_lack_is_no_crash() -> None:
    with pytest.raises(MemoryError, match="64 x 64"):
        ops.Weight(64, [ops.Format(64, 7, 3)])
