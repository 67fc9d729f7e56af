"""Matrices as files hold them: every block type against gguf's own reading, and what is done with raw rows."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from fledge.target.blocks import BLOCKS, FLOATS
from fledge.target.matrix import Codes, Matrix, Part

# Where each block has its float16: random bytes there may be infinities or NaN.
HALVES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "MXFP4": (),
}
K = 512


def random_rows(name: str, count: int, seed: int = 0) -> Tensor:
    """Raw rows with all bits random but those of scales, which are numbers of a usual size."""
    numbers = np.random.default_rng(seed)
    block = BLOCKS[name]
    blocks = numbers.integers(0, 256, (count * K // block.weights, block.size), dtype=np.uint8)
    for at in HALVES[name]:
        scales = numbers.normal(0, 0.02, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = numbers.integers(105, 140, len(blocks))
    return torch.from_numpy(blocks).view(count, -1)


def quantised(name: str, count: int, seed: int = 0) -> Matrix:
    return Matrix((Part(name, random_rows(name, count, seed)),), K)


def by_gguf(matrix: Matrix) -> Tensor:
    parts = [gguf.quants.dequantize(part.rows.numpy(), Type[part.format]) for part in matrix.parts]
    return torch.from_numpy(np.concatenate(parts))


def test_the_table_has_the_sizes_of_ggml() -> None:
    assert HALVES.keys() == BLOCKS.keys()
    for name, block in BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[Type[name]] == (block.weights, block.size)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_type_is_read_as_gguf_reads_it(name: str) -> None:
    matrix = quantised(name, 37)
    ours, theirs = matrix.dequantise(torch.float32), by_gguf(matrix)
    if BLOCKS[name].weights == 32:
        assert torch.equal(ours, theirs)
    else:  # a product of scales is rounded to float16
        largest = theirs.view(37, -1, 32).abs().amax(-1, keepdim=True).expand(-1, -1, 32).reshape(37, K)
        assert ((ours - theirs).abs() <= 2**-10 * largest + 1e-7).all()
    assert torch.equal(matrix.dequantise(torch.bfloat16), ours.bfloat16())


@pytest.mark.parametrize("name", BLOCKS)
def test_codes_are_within_their_bits_and_mean_what_is_dequantised(name: str) -> None:
    matrix = quantised(name, 21)
    codes = matrix.codes(5, 16)
    assert codes is not None
    assert codes.values.dtype == torch.uint8
    assert codes.values.shape == (11, K)
    assert int(codes.values.max()) < 2**codes.bits
    assert codes.scale.shape == (11, K // codes.group)
    assert codes.scale.dtype == torch.float16
    assert codes.zero == 0 or codes.minimum is None
    assert torch.equal(weights_of(codes), matrix.dequantise(torch.float32)[5:16])


def weights_of(codes: Codes) -> Tensor:
    """Their definition, written plainly."""
    scale, minimum = (
        0.0 if x is None else x.float().repeat_interleave(codes.group, dim=1) for x in codes[4:]
    )
    return scale * (codes.values.float() - codes.zero) - minimum


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_quantised_as_ggml_quantises_them(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(80, K) * 0.05).to(dtype)
    weight[3, 32:64] = 0
    weight[4, :32] = torch.arange(32) - 16  # halves between two codes
    matrix = Matrix.of(weight).quantised(name)  # type: ignore[arg-type]
    assert matrix.formats == (name.upper(),)
    assert matrix.bytes == 80 * K // 32 * BLOCKS[name.upper()].size
    expected = gguf.quants.quantize(weight.float().numpy(), Type[name.upper()])
    differing = matrix.parts[0].rows.numpy() != expected
    assert differing.sum() == 0
    step = weight.float().view(80, -1, 32).abs().amax(-1, keepdim=True) / (127 if name == "q8_0" else 8)
    error = (matrix.dequantise(torch.float32) - weight.float()).view(80, -1, 32).abs()
    assert (error <= step * 1.01).all()


def test_only_float_rows_of_whole_blocks_are_quantised() -> None:
    with pytest.raises(ValueError, match="40 columns"):
        Matrix.of(torch.ones(3, 40)).quantised("q8_0")
    with pytest.raises(ValueError, match="already, in Q4_K"):
        mixed().quantised("q8_0")


@pytest.mark.parametrize("name", FLOATS)
def test_a_float_matrix_is_the_tensor_itself(name: str) -> None:
    tensor = torch.randn(5, 40).to(FLOATS[name])
    matrix = Matrix.of(tensor)
    assert (matrix.shape, matrix.formats, matrix.bytes) == ((5, 40), (name,), tensor.nbytes)
    assert matrix.codes(0, 5) is None
    assert matrix.dequantise(tensor.dtype).data_ptr() == tensor.data_ptr()
    assert torch.equal(matrix.dequantise(torch.float32), tensor.float())


def mixed() -> Matrix:
    return Matrix.joined([quantised("Q4_K", 6), quantised("Q4_K", 4, seed=1), quantised("Q6_K", 8)])


def test_joined_parts_of_one_format_become_one() -> None:
    matrix = mixed()
    assert (matrix.shape, matrix.formats) == ((18, K), ("Q4_K", "Q6_K"))
    whole = matrix.dequantise(torch.float32)
    assert torch.equal(whole[6:10], quantised("Q4_K", 4, seed=1).dequantise(torch.float32))
    assert torch.equal(whole[10:], quantised("Q6_K", 8).dequantise(torch.float32))
    assert Matrix.joined([matrix.scaled(2.0), matrix]).formats == ("Q4_K", "Q6_K", "Q4_K", "Q6_K")


def test_rows_of_several_parts_are_selected_without_being_read() -> None:
    matrix = mixed()
    whole = matrix.dequantise(torch.float32)
    assert torch.equal(matrix.rows(slice(4, 13)).dequantise(torch.float32), whole[4:13])
    assert matrix.rows(slice(2, 5)).parts[0].rows.data_ptr() == matrix.parts[0].rows[2].data_ptr()
    for index in (torch.randperm(18), torch.tensor([17, 0, 0, 9, 10]), torch.arange(18)):
        assert torch.equal(matrix.rows(index).dequantise(torch.float32), whole[index])
    assert torch.equal(matrix.rows(slice(None, None, 3)).dequantise(torch.float32), whole[::3])
    assert matrix.rows(torch.arange(18)).formats == ("Q4_K", "Q6_K")


def test_a_factor_multiplies_weights_once_they_are_read() -> None:
    matrix = Matrix.joined([quantised("Q4_1", 4), Matrix.of(torch.randn(3, K).bfloat16())])
    plain, scaled = matrix.dequantise(torch.bfloat16), matrix.scaled(4.0).scaled(2.0)
    assert torch.equal(scaled.dequantise(torch.bfloat16), plain * 8)
    assert torch.equal(scaled.rows(slice(4, 7)).dequantise(torch.bfloat16), plain[4:] * 8)
    codes, before = scaled.codes(0, 4), matrix.codes(0, 4)
    assert codes is not None
    assert before is not None
    assert torch.equal(codes.scale, before.scale * 8)
