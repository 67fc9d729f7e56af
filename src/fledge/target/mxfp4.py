"""Weights in MXFP4 (OCP Microscaling Formats 1.0), as OpenAI publishes GPT-OSS' experts.

A row is cut into blocks of 32 values. A block is 16 bytes with two 4-bit values each, the first in the lower half, and
one more byte with the exponent that its 32 values share.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.target.blocks import MXFP4

_EXPONENT_BIAS = 127 + 1  # MXFP4 has values times 2


def dequantise(blocks: Tensor, scales: Tensor) -> Tensor:
    """blocks [..., N / 32, 16] uint8 and scales [..., N / 32] uint8 -> [..., N] bfloat16, which holds them exactly."""

    def table(values: list[list[float]]) -> Tensor:
        return torch.tensor(values).to(device=blocks.device, dtype=torch.bfloat16)

    pairs = table([[MXFP4[byte % 16], MXFP4[byte // 16]] for byte in range(256)])
    powers = table([[2.0 ** (byte - _EXPONENT_BIAS)] for byte in range(256)])
    values = F.embedding(blocks.int(), pairs).flatten(-2)  # several times as fast as pairs[blocks]
    return (values * F.embedding(scales.int(), powers)).flatten(-2)
