"""ggml's block types: how a file holds a matrix in blocks of few bits, as one table.

A row is cut into blocks of 32 or 256 weights. All types hold unsigned codes u, and for each
group of 16 or 32 weights a scale and perhaps a minimum, w = scale * (u - zero) - minimum. A super-block of 256 (the K
types, IQ4_XS) holds integers of few bits as scales, which one or two float16 multiply.

Layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

# What GGUF holds as plain numbers.
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# The values of IQ4_NL's and IQ4_XS' 16 codes, and of MXFP4's (OCP Microscaling Formats 1.0) times 2.
_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


class Unpacked(NamedTuple):
    """M blocks of `weights` weights each."""

    values: Tensor  # [M, ..., any shape whose order is that of the weights] uint8
    scale: Tensor  # [M, groups] float32
    minimum: Tensor | None = None  # [M, groups] float32


class BlockType(NamedTuple):
    """A block type: the bytes of a block, and what its codes mean once they are unpacked."""

    weights: int  # of a block
    size: int  # its bytes
    bits: int  # 4, 6 or 8: codes are below 2 ** bits
    group: int  # weights that share a scale
    zero: int  # code of the weight 0; 0 where groups have a minimum
    unpack: Callable[[Tensor], Unpacked]  # of blocks [M, size] uint8


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block, [M, 1] float32."""
    return blocks[:, at : at + 2].view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """[..., n] -> [..., 2, n]: all low halves of the bytes, then all high ones."""
    return torch.stack((packed & 15, packed >> 4), dim=-2)


def _pairs(packed: Tensor) -> Tensor:
    """[..., n] -> [..., 4, n]: the lowest two bits of the bytes, then the next two."""
    return torch.stack((packed & 3, (packed >> 2) & 3, (packed >> 4) & 3, packed >> 6), dim=-2)


def _bits(packed: Tensor, worth: int) -> Tensor:
    """[..., n] -> [..., 8, n]: 0 or `worth` for each bit of the bytes, all lowest bits first."""
    return torch.stack([((packed >> bit) & 1) * worth for bit in range(8)], dim=-2)


def _look_up(values: tuple[int, ...], zero: int, codes: Tensor) -> Tensor:
    """`codes` index `values`; the results are unsigned codes with that zero."""
    table = torch.tensor([value + zero for value in values], dtype=torch.uint8, device=codes.device)
    return table.index_select(0, codes.flatten().int()).view(codes.shape)


def _scales_and_minimums(blocks: Tensor, at: int) -> tuple[Tensor, Tensor]:
    """Eight scales and eight minimums of 6 bits in 12 bytes; `at`: of them, behind the two float16 they multiply."""
    first, second, third = blocks[:, at : at + 12].view(-1, 3, 4).unbind(1)
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), dim=1)
    minimums = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), dim=1)
    return _half(blocks, at - 4) * scales, _half(blocks, at - 2) * minimums


def _q4_0(blocks: Tensor) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 2:]), _half(blocks, 0))


def _q4_1(blocks: Tensor) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 4:]), _half(blocks, 0), -_half(blocks, 2))


def _five_bits(blocks: Tensor, at: int) -> Tensor:
    """Codes of 5 bits: 4 bytes with the highest bit of each, then the lower four."""
    high = _bits(blocks[:, at : at + 4], 16).transpose(1, 2).reshape(-1, 2, 16)  # bit j of all 32: weight j
    return _nibbles(blocks[:, at + 4 :]) | high


def _q5_0(blocks: Tensor) -> Unpacked:
    return Unpacked(_five_bits(blocks, 2), _half(blocks, 0))


def _q5_1(blocks: Tensor) -> Unpacked:
    return Unpacked(_five_bits(blocks, 4), _half(blocks, 0), -_half(blocks, 2))


def _q8_0(blocks: Tensor) -> Unpacked:
    return Unpacked(blocks[:, 2:] ^ 128, _half(blocks, 0))  # q + 128 of a signed byte


def _q2_k(blocks: Tensor) -> Unpacked:
    scales = blocks[:, :16]
    values = _pairs(blocks[:, 16:80].view(-1, 2, 32))
    return Unpacked(values, _half(blocks, 80) * (scales & 15), _half(blocks, 82) * (scales >> 4))


def _q3_k(blocks: Tensor) -> Unpacked:
    high = _bits(blocks[:, :32], 4).view(-1, 2, 4, 32)
    values = _pairs(blocks[:, 32:96].view(-1, 2, 32)) | high
    scales = _nibbles(blocks[:, 96:104]) | (_pairs(blocks[:, 104:108]) << 4).view(-1, 2, 8)
    return Unpacked(values, _half(blocks, 108) * (scales.view(-1, 16).float() - 32))


def _q4_k(blocks: Tensor) -> Unpacked:
    return Unpacked(_nibbles(blocks[:, 16:].view(-1, 4, 32)), *_scales_and_minimums(blocks, 4))


def _q5_k(blocks: Tensor) -> Unpacked:
    low, high = _nibbles(blocks[:, 48:].view(-1, 4, 32)), _bits(blocks[:, 16:48], 16)
    return Unpacked(low | high.view(-1, 4, 2, 32), *_scales_and_minimums(blocks, 4))


def _q6_k(blocks: Tensor) -> Unpacked:
    low = _nibbles(blocks[:, :128].view(-1, 2, 64)).view(-1, 2, 4, 32)
    values = low | (_pairs(blocks[:, 128:192].view(-1, 2, 32)) << 4)
    return Unpacked(values, _half(blocks, 208) * blocks[:, 192:208].view(torch.int8))


def _iq4_nl(blocks: Tensor) -> Unpacked:
    return Unpacked(_look_up(_NONLINEAR, 128, _nibbles(blocks[:, 2:])), _half(blocks, 0))


def _iq4_xs(blocks: Tensor) -> Unpacked:
    low = _nibbles(blocks[:, 4:8]).transpose(1, 2).reshape(-1, 8)  # here the two of one byte are neighbours
    high = _pairs(blocks[:, 2:4]).transpose(1, 2).reshape(-1, 8) << 4
    values = _look_up(_NONLINEAR, 128, _nibbles(blocks[:, 8:].view(-1, 8, 16)))
    return Unpacked(values, _half(blocks, 0) * ((low | high).float() - 32))


def _mxfp4(blocks: Tensor) -> Unpacked:
    scale = torch.exp2(blocks[:, :1].float() - 128)  # its exponent's bias is 127; values are times 2
    return Unpacked(_look_up(MXFP4, 12, _nibbles(blocks[:, 1:])), scale)


BLOCKS = {  # weights, bytes, bits, group, zero
    "Q4_0": BlockType(32, 18, 4, 32, 8, _q4_0),
    "Q4_1": BlockType(32, 20, 4, 32, 0, _q4_1),
    "Q5_0": BlockType(32, 22, 6, 32, 16, _q5_0),
    "Q5_1": BlockType(32, 24, 6, 32, 0, _q5_1),
    "Q8_0": BlockType(32, 34, 8, 32, 128, _q8_0),
    "Q2_K": BlockType(256, 84, 6, 16, 0, _q2_k),
    "Q3_K": BlockType(256, 110, 6, 16, 4, _q3_k),
    "Q4_K": BlockType(256, 144, 4, 32, 0, _q4_k),
    "Q5_K": BlockType(256, 176, 6, 32, 0, _q5_k),
    "Q6_K": BlockType(256, 210, 6, 16, 32, _q6_k),
    "IQ4_NL": BlockType(32, 18, 8, 32, 128, _iq4_nl),
    "IQ4_XS": BlockType(256, 136, 8, 32, 128, _iq4_xs),
    "MXFP4": BlockType(32, 17, 6, 32, 12, _mxfp4),
}


def packed_size(format: str) -> float:
    """Bytes of a weight as the kernels keep it: numbers in bfloat16; codes with their scales, and minimums if any."""
    if format in FLOATS:
        return 2
    block = BLOCKS[format]
    return (0.5 if block.bits == 4 else 1) + (2 if block.zero else 4) / block.group


def quantise(rows: Tensor, name: str) -> Tensor:
    """Rows [N, K] float32, K a multiple of 32, as raw rows of Q8_0 or Q4_0, rounded as ggml rounds."""
    blocks = rows.view(-1, 32)
    if name == "Q8_0":
        scale = blocks.abs().amax(dim=1, keepdim=True) / 127
        codes = _half_away(blocks * _inverse(scale)).to(torch.int8).view(torch.uint8)
    else:
        largest = blocks.gather(1, blocks.abs().argmax(dim=1, keepdim=True))
        scale = largest / -8  # the largest is code 0: its side reaches further
        codes = (blocks * _inverse(scale) + 8.5).clamp(0, 15).to(torch.uint8)
        codes = codes[:, :16] | (codes[:, 16:] << 4)
    return torch.cat((scale.half().view(torch.uint8), codes), dim=1).view(rows.shape[0], -1)


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, 1 / scale)


def _half_away(x: Tensor) -> Tensor:
    """Rounded, halves away from zero."""
    whole = x.trunc()
    return whole + (2 * (x - whole)).trunc()
