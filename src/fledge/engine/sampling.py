"""Token choice from a row of logits: greedy, or one draw from the row's own processed distribution.

A draw is a race (`draft/race.py`) between tokens, decided by the position's coin: 64 random bits that depend only on
the request's seed and the position of the token being drawn. The same seed therefore gives the same text with and
without speculation, in any batch and in any tree: every node of a tree draws *its* next token with the coin of *its*
position, and a child is accepted only if it is that very token. Nothing is ever rejected and redrawn, so the output
distribution is plain decode's by construction. The head runs the same race beforehand, to draft what is likely to win.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fledge.base.device import runs_triton
from fledge.draft.race import HEAD_TEMPERATURE, Draws, truncation_threshold, unit_times

_GOLDEN = 0x9E3779B97F4A7C15  # splitmix64 (Steele, Lea, Flood 2014)
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_WORD = (1 << 64) - 1
_MOST_TIMES = 1 << 24  # unit times in memory at once


class RowSampling(NamedTuple):
    """Sampling of M rows of logits; `temperature` 0 marks a greedy row."""

    temperature: Tensor  # [M] float32
    top_k: Tensor  # [M] int64, 0: all
    top_p: Tensor  # [M] float32
    min_p: Tensor  # [M] float32
    seed_key: Tensor  # [M] int64, `seed_key(seed)`
    sampled: Tensor | None  # int64 indices of the rows that aren't greedy; None: all of them
    truncates: bool  # some row uses top-k or top-p
    greedy_too: bool = False  # rows that are greedy are among the `sampled`, which then are all

    @property
    def filters(self) -> Tensor:
        """[M, 4] float32: temperature, top-k, top-p, min-p, as the CPU kernels take them."""
        return torch.stack((self.temperature, self.top_k.float(), self.top_p, self.min_p), 1)

    def of(self, rows: Tensor) -> RowSampling:
        """The sampling of these rows [R] int64. Waits for the device, if some rows are greedy and some aren't."""
        some = self.warm(rows)
        return some if self.sampled is None else some._replace(sampled=some.temperature.nonzero()[:, 0])

    def warm(self, rows: Tensor) -> RowSampling:
        """The sampling of these rows [R] int64, none of which is greedy."""
        return self._replace(
            temperature=self.temperature.index_select(0, rows),
            top_k=self.top_k.index_select(0, rows),
            top_p=self.top_p.index_select(0, rows),
            min_p=self.min_p.index_select(0, rows),
            seed_key=self.seed_key.index_select(0, rows),
            sampled=None,
        )


# A backend's own sampler: (logits [M, V] float32, temperature [M], top_k [M] int64, top_p [M], min_p [M],
# coins [M] int64) -> [M] int64, meaning what `sample` means; rows of temperature 0 yield their argmax, lowest id
# among equals.
Sampler = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def seed_key(seed: int) -> int:
    """The start of a seed's sequence of coins, as a signed 64-bit number."""
    return _signed(_mix((seed + _GOLDEN) & _WORD))


def coins(key: Tensor, position: Tensor) -> Tensor:
    """Coins, int64, for `key` (int64, from `seed_key`) at token `position`; shapes broadcast.

    Coin p of a key is output p + 1 of splitmix64 started at the key, so that every backend sees the same number.
    """
    z = key + (position.to(torch.int64) + 1) * _signed(_GOLDEN)
    z = (z ^ _shift_right(z, 30)) * _signed(_MIX_1)
    z = (z ^ _shift_right(z, 27)) * _signed(_MIX_2)
    return z ^ _shift_right(z, 31)


def draws(rows: RowSampling | None, position: Tensor) -> Draws | None:
    """Draws for the tokens of a head's M rows, at `position` [M]; None: greedy."""
    if rows is None:
        return None
    temperature, coin = rows.temperature * HEAD_TEMPERATURE, coins(rows.seed_key, position)
    return Draws(temperature, rows.top_k, rows.top_p, rows.min_p, coin, rows.truncates)


def choose(
    logits: Tensor, rows: RowSampling | None, position: Tensor, sampler: Sampler | None = None
) -> Tensor:
    """The token each row yields, [M] int64; `rows` None: all are greedy.

    `position` [M]: logical position of the token being chosen.
    """
    if rows is None:
        return logits.argmax(-1)
    tossed = coins(rows.seed_key, position)
    if sampler is not None:
        return sampler(logits, rows.temperature, rows.top_k, rows.top_p, rows.min_p, tossed)
    if rows.greedy_too:
        warm = rows.temperature > 0
        drawn = sample(logits, rows._replace(temperature=rows.temperature.where(warm, 1.0)), tossed)
        return torch.where(warm, drawn, logits.argmax(-1))
    if rows.sampled is None:
        return sample(logits, rows, tossed)
    chosen = logits.argmax(-1)
    some = rows.sampled
    chosen[some] = sample(logits[some], rows.warm(some), tossed[some])
    return chosen


def sample(logits: Tensor, rows: RowSampling, tossed: Tensor) -> Tensor:
    """One draw per row with the coins `tossed` [M]; the reference for native samplers."""
    if runs_triton(logits) and not rows.truncates:
        from fledge.draft import race_triton  # only a GPU machine needs it

        return race_triton.winners(logits, rows.temperature, rows.min_p, tossed)
    token_ids = torch.arange(logits.shape[-1], device=logits.device)
    weights = processed_weights(logits, rows)
    step = max(_MOST_TIMES // logits.shape[-1], 1)
    parts = [
        (weights[n : n + step] / unit_times(tossed[n : n + step], token_ids)).argmax(-1)
        for n in range(0, len(logits), step)
    ]
    return torch.cat(parts) if parts else tossed.new_empty(0)


def processed_weights(logits: Tensor, rows: RowSampling) -> Tensor:
    """Unnormalised probabilities after temperature, top-k, top-p and min-p; [M, V] float32, the largest is 1.

    Each filter is a threshold, so tokens exactly as probable as the last one kept are kept too.
    """
    scaled = logits.float() / rows.temperature[:, None]
    weights = (scaled - scaled.amax(-1, keepdim=True)).exp()  # [M, V]
    threshold = rows.min_p[:, None]
    if rows.truncates:
        threshold = torch.maximum(threshold, truncation_threshold(weights, rows.top_k, rows.top_p))
    return weights.masked_fill(weights < threshold, 0.0)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts arithmetically


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX_1) & _WORD
    z = ((z ^ (z >> 27)) * _MIX_2) & _WORD
    return z ^ (z >> 31)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
