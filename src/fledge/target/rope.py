"""Rotary position embedding, in HF's "rotate half" convention: dimension i rotates together with i + head_dim/2."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.target.config import DecoderConfig
from fledge.target.rope_fields import SUPPORTED_SCALING


def rope_table(config: DecoderConfig, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of positions 0..length-1, each [length, head_dim // 2] float32."""
    return rope_tables(config.head_dim, config.rope_theta, config.rope_scaling, length)


def window_rope_table(config: DecoderConfig, length: int) -> tuple[Tensor, Tensor] | None:
    """The same for windowed layers; None: they rotate as all others do."""
    theta = config.window_rope_theta
    return None if theta is None else rope_tables(config.head_dim, theta, None, length)


def rope_tables(
    head_dim: int, theta: float, scaling: dict[str, Any] | None, length: int
) -> tuple[Tensor, Tensor]:
    """The same from the single values, for a head whose RoPE isn't its target's."""
    frequencies, factor = _frequencies(head_dim, theta, scaling)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)  # [length, head_dim // 2]
    return angles.cos() * factor, angles.sin() * factor


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [R, heads, head_dim] by its rows' angles, cos and sin [R, head_dim // 2] float32; x's dtype is kept."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)  # [R, 1, head_dim // 2]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rotate_half_order(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of q or k that rotate in neighbouring pairs, reordered so that dimension i rotates with i + head_dim / 2."""
    heads = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)


def _frequencies(head_dim: int, theta: float, scaling: dict[str, Any] | None) -> tuple[Tensor, float]:
    """Radians per position of each dimension pair [head_dim // 2], and the factor on cosine and sine."""
    plain = plain_frequencies(head_dim, theta)
    kind = scaling["rope_type"] if scaling else "default"
    if kind not in SUPPORTED_SCALING:
        raise TargetError(
            f"RoPE scaling {kind!r} isn't supported: use a target with {', '.join(SUPPORTED_SCALING)}"
        )
    if scaling is None or kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / float(scaling["factor"]), 1.0
    if kind == "llama3":
        return llama3_frequencies(plain, scaling), 1.0
    if kind == "frequency_factors":
        return plain / torch.tensor(scaling["factors"]), 1.0
    return _yarn(plain, head_dim, theta, scaling)


def plain_frequencies(head_dim: int, theta: float) -> Tensor:
    """Radians per position of each dimension pair [head_dim // 2], unscaled."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / theta**exponents


def llama3_frequencies(plain: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Llama 3.1: long wavelengths divided by `factor`, short ones kept, a linear ramp between."""
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    wavelength = 2 * math.pi / plain  # in this order every float is the one transformers gets
    turns = float(scaling["original_max_position_embeddings"]) / wavelength
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)  # 0: divide, 1: keep
    return (1 - keep) * plain / factor + keep * plain


def _yarn(plain: Tensor, head_dim: int, theta: float, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """YaRN (arXiv 2309.00071): the same idea with the ramp over dimensions, and attention scaled up a little."""
    factor, original = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])

    def dimension(turns: float) -> float:
        return head_dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = dimension(float(scaling.get("beta_fast") or 32.0))
    high = dimension(float(scaling.get("beta_slow") or 1.0))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high = high + 0.001 if low == high else high
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (1 - ramp) + plain / factor * ramp, _yarn_attention_factor(factor, scaling)


def _yarn_attention_factor(factor: float, scaling: dict[str, Any]) -> float:
    def get_scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return get_scale(float(scaling["mscale"])) / get_scale(float(scaling["mscale_all_dim"]))
    return get_scale(1.0)
