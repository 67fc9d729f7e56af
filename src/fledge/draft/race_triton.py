"""The race in Triton: hash, exponential and argmax in one pass, instead of two dozen over 64-bit numbers.

`race.unit_times` and `engine/sampling.sample` define what these compute. Logarithm, exponential and division are the
ones torch has on a GPU: a token with a tiny time often wins, and Triton's own logarithm is too coarse for those.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import knobs
from triton.language.extra import libdevice

_BLOCK = 4096  # tokens at a time
_INTERPRETED = tl.constexpr(knobs.runtime.interpret)  # the interpreter has no libdevice


def unit_times(coins: Tensor, token_ids: Tensor) -> Tensor:
    """`race.unit_times`: [M, V] float32 for `coins` [M] int64 and tokens [V] int64."""
    coins, token_ids = coins.contiguous(), token_ids.contiguous()
    times = torch.empty(len(coins), len(token_ids), dtype=torch.float32, device=coins.device)
    with torch.cuda.device_of(coins):
        _unit_times[(len(coins), triton.cdiv(len(token_ids), _BLOCK))](
            coins, token_ids, times, len(token_ids), BLOCK=_BLOCK, num_warps=8
        )
    return times


def winners(logits: Tensor, temperature: Tensor, min_p: Tensor, coins: Tensor) -> Tensor:
    """The token of each row that wins its race, [M] int64, without top-k or top-p.

    logits [M, V]; temperature, which is positive, and min_p [M] float32; coins [M] int64.
    """
    logits = logits.contiguous()
    rows, vocabulary = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    with torch.cuda.device_of(logits):
        _winners[(rows,)](
            logits, temperature.contiguous(), min_p.contiguous(), coins.contiguous(), tokens, vocabulary,
            BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
    return tokens


@triton.jit
def _unit_times(coins, token_ids, times, vocabulary, BLOCK: tl.constexpr):
    """A block of one row."""
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(token_ids + column, mask=column < vocabulary, other=0)
    time = _unit_time(tl.load(coins + row), token)
    tl.store(times + row.to(tl.int64) * vocabulary + column, time, mask=column < vocabulary)


@triton.jit
def _winners(logits, temperature, min_p, coins, tokens, vocabulary, BLOCK: tl.constexpr):
    """One row: its largest logit first, which the weights are relative to."""
    row = tl.program_id(0)
    logits += row.to(tl.int64) * vocabulary
    hot, least, coin = tl.load(temperature + row), tl.load(min_p + row), tl.load(coins + row)
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, vocabulary, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = tl.load(logits + token, mask=token < vocabulary, other=float("-inf"))
        largest = tl.maximum(largest, logit.to(tl.float32))
    top = tl.div_rn(tl.max(largest, 0), hot)
    speed, winner = tl.full([BLOCK], -1.0, tl.float32), tl.zeros([BLOCK], tl.int32)  # 1 / the earliest time
    for start in range(0, vocabulary, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = tl.load(logits + token, mask=token < vocabulary, other=float("-inf"))
        scaled = tl.div_rn(logit.to(tl.float32), hot) - top
        weight = tl.exp(scaled) if _INTERPRETED else libdevice.exp(scaled)
        own = tl.where(weight >= least, tl.div_rn(weight, _unit_time(coin, token)), 0.0)  # 0 for NaNs, too
        winner = tl.where(own > speed, token, winner)
        speed = tl.maximum(speed, own)
    first = tl.min(tl.where(speed == tl.max(speed, 0), winner, vocabulary), 0)
    tl.store(tokens + row, first.to(tl.int64))


@triton.jit
def _unit_time(coin, token):
    z = token.to(tl.uint32) * 0x9E3779B1 + coin.to(tl.uint32)
    z = _mixed(_mixed(z) ^ (coin >> 32).to(tl.uint32))
    unit = ((z >> 9).to(tl.float32) + 0.5) * (2.0**-23)
    return -(tl.log(unit) if _INTERPRETED else libdevice.log(unit))


@triton.jit
def _mixed(z):
    z = (z ^ (z >> 16)) * 0x85EBCA6B
    z = (z ^ (z >> 13)) * 0xC2B2AE35
    return z ^ (z >> 16)
