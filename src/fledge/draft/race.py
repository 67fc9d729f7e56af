"""The exponential race that chooses a sampled token, which a draft head can run in advance.

Every token i has an arrival time that is exponentially distributed with its weight as the rate, and the first to arrive
is chosen: token i with probability w[i] / sum(w) (also known as the Gumbel-max trick).

    time[i] = unit_time[i] / w[i]        unit_time depends on the position's coin and on the token alone

A coin is 64 random bits derived from the request's seed and the position (`engine/sampling.py`), so it is known before
drafting. The head can compute the same unit times, and its weights are close to the target's: its own race predicts
the winner of the target's race much better than its probabilities do. The target's choice depends only on its own
weights and the coin, so drafts change no token (a coupling by shared randomness: Daliri, Musco, Suresh 2024, arXiv
2408.07978).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.base.device import runs_triton
from fledge.native.abi import HEAD_TEMPERATURE_PERCENT

_HALF = (1 << 32) - 1
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35  # murmur3's finaliser (Appleby)
_FILTERED = 1e-6  # share of its weight that a filtered token keeps

# The temperature of the head's race, per target temperature. A head gives more probability than the target to the many
# unlikely tokens, and each of them may win.
HEAD_TEMPERATURE = HEAD_TEMPERATURE_PERCENT / 100


class Draws(NamedTuple):
    """Draws by which the target will sample M tokens, at the head's temperature; 0: greedily."""

    temperature: Tensor  # [M] float32
    top_k: Tensor  # [M] int64, 0: all
    top_p: Tensor  # [M] float32
    min_p: Tensor  # [M] float32
    coin: Tensor  # [M] int64
    truncates: bool = True  # some row uses top-k or top-p


def unit_times(coins: Tensor, token_ids: Tensor) -> Tensor:
    """Exponentially distributed numbers [M, V] float32 for `coins` [M] int64 and tokens [V], equal on every backend."""
    if runs_triton(coins):
        from fledge.draft import race_triton  # only a GPU machine needs it

        return race_triton.unit_times(coins, token_ids)
    low, high = (coins & _HALF)[:, None], ((coins >> 32) & _HALF)[:, None]
    z = _mixed(_mixed((token_ids * _GOLDEN + low) & _HALF) ^ high)
    unit = ((z >> 9).to(torch.float32) + 0.5) * 2.0**-23  # in (0, 1), exact
    return -unit.log()


def foreseen(log_probs: Tensor, token_ids: Tensor, draws: Draws) -> Tensor:
    """Log probabilities [M, V] that each token wins its race, from the head's own [M, V]; greedy rows are unchanged."""
    temperature = draws.temperature[:, None]
    scaled = log_probs / temperature.clamp(min=1e-4)
    weights = (scaled - scaled.amax(-1, keepdim=True)).exp()
    least = draws.min_p[:, None]
    if draws.truncates:
        least = torch.maximum(least, truncation_threshold(weights, draws.top_k, draws.top_p))
    weights = torch.where(weights >= least, weights, _FILTERED * weights)
    won = weights.log() - unit_times(draws.coin, token_ids).log()
    return torch.where(temperature > 0, won.log_softmax(-1), log_probs)


def truncation_threshold(weights: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Weight of the last token kept by top-k and then top-p, [M, 1]."""
    ordered = weights.sort(-1, descending=True).values  # [M, V]
    vocabulary = ordered.shape[-1]
    last = torch.where(top_k > 0, top_k.clamp(max=vocabulary), vocabulary)[:, None] - 1
    kth = ordered.gather(1, last)
    ordered = ordered.masked_fill(ordered < kth, 0.0)
    mass = ordered.cumsum(-1, dtype=torch.float64)
    before = mass - ordered  # probability of everything more probable
    inside = before < top_p[:, None] * mass[:, -1:]
    # Nothing precedes the first token, so one is kept, unless the row holds NaNs, which must not affect other rows.
    count = inside.sum(-1, keepdim=True).clamp(min=1)
    nucleus = torch.where(top_p[:, None] < 1, ordered.gather(1, count - 1), kth)
    return torch.maximum(kth, nucleus)


def _mixed(z: Tensor) -> Tensor:
    z = ((z ^ (z >> 16)) * _MIX_1) & _HALF
    z = ((z ^ (z >> 13)) * _MIX_2) & _HALF
    return z ^ (z >> 16)
