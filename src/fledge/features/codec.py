"""Storage of hidden states: bf16 as they are, or 8 bits with a scale per row.

    fp8     value = code * 2^exponent        code: float8 e4m3 (1 sign, 4 exponent, 3 mantissa bits), 448 at most
                                             exponent: one int8 per token and hidden state, the smallest that fits

Hidden states contain a few values a hundred times larger than the rest. Evenly spaced 8-bit codes would round the rest
to zero; a floating-point code keeps about 3 % precision for every value, large or small. With powers of two as scales,
decoding to bf16 is exact, so training reads the same values on every machine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fledge.features.options import Codec

_LARGEST = 448.0  # of float8 e4m3
_EXPONENTS = (-120, 119)  # so that code * 2^exponent is a finite bf16


def encode(hidden: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Rows [n, k * width] bf16 as codes [n, k * width] float8 and exponents [n, k] int8, one per `width` values."""
    parts = hidden.float().view(hidden.shape[0], -1, width)  # [n, k, width]
    largest = parts.abs().amax(-1) / _LARGEST  # [n, k]
    mantissa, power = torch.frexp(largest)  # largest = mantissa * 2^power, mantissa in [0.5, 1)
    exponent = torch.where(mantissa == 0.5, power - 1, power).clamp_(*_EXPONENTS)
    codes = torch.ldexp(parts, -exponent[..., None]).clamp_(-_LARGEST, _LARGEST).view(hidden.shape)
    return codes.to(torch.float8_e4m3fn), exponent.to(torch.int8)


def decode(codes: Tensor, exponents: Tensor) -> Tensor:
    """The inverse of `encode`, [n, k * width] bf16."""
    n, k = exponents.shape
    scale = torch.ldexp(torch.ones(()), exponents.float())  # [n, k]
    parts = codes.to(torch.bfloat16).view(n, k, -1)
    return (parts * scale.to(torch.bfloat16)[..., None]).view(codes.shape)


def bytes_per_token(hidden_size: int, codec: Codec) -> int:
    """Bytes per token in a store: four hidden states, token id, argmax and mask."""
    states = 4 * hidden_size * 2 if codec == "bf16" else 4 * hidden_size + 4
    return states + 4 + 4 + 1
