"""Is the speculative answer equal to the plain one? If not, was it a near-tie, or is something wrong?

    plain        The sky is blue because  sunlight ...
    speculative  The sky is blue because  the ...
                                          ^ first difference: one target forward over the common prefix shows
                                            how far apart the two tokens' logits are

A sampled token is the one with the largest logit + temperature * Gumbel noise, and the noise follows from the seed
(`draft/race.py`). So sampled answers are compared like greedy ones, with the noise added to the logits.

In bf16 two mathematically equal computations (one row or sixteen, one order of sums or another) round differently. If
the top logits are closer than one bf16 step at their magnitude, either token may win: a near-tie. In float32 there are
no near-ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch

from fledge.bench.results import Outcome
from fledge.draft.race import unit_times
from fledge.engine import Completion
from fledge.engine.sampling import coins, seed_key
from fledge.target import Decoder, Target
from fledge.target.batch import one_sequence

# Bits of the significand after the leading one: numbers in [2^e, 2^(e+1)) are 2^(e - bits) apart.
_FRACTION_BITS = {torch.bfloat16: 7, torch.float16: 10}


class Draw(NamedTuple):
    """Sampling settings of an answer; at temperature 0 the seed doesn't matter."""

    temperature: float
    seed: int


GREEDY = Draw(0.0, 0)


class Identity(NamedTuple):
    """Comparison of two answers; if they differ, where and by how much."""

    outcome: Outcome
    position: int | None = None
    gap: float | None = None
    rounding: float | None = None


def compare(target: Target, plain: Completion, speculative: Completion, draw: Draw = GREEDY) -> Identity:
    """Compare two answers to one prompt, both sampled according to `draw`. Only a difference costs a forward."""
    position = first_difference(plain.token_ids, speculative.token_ids)
    if position is None:
        return Identity("identical")
    prefix = plain.prompt_token_ids + plain.token_ids[:position]
    tokens = [answer.token_ids[position : position + 1] for answer in (plain, speculative)]
    if not all(tokens):  # one answer ends where the other continues, which equal tokens never do
        return Identity("different", position)
    logits = prefix_logits(target.decoder, prefix)
    noise = gumbel_noise(draw, len(prefix), logits) if draw.temperature else None
    return classify(logits, tokens[0][0], tokens[1][0], target.decoder.dtype, position, noise)


def classify(
    logits: torch.Tensor,
    plain: int,
    speculative: int,
    dtype: torch.dtype,
    position: int,
    noise: torch.Tensor | None = None,
) -> Identity:
    """A near-tie if both tokens' logits are within one rounding step of the top one.

    logits: [V] float32; noise: [V] float32 that sampling adds to them; None for greedy answers.
    """
    scores = logits if noise is None else logits + noise
    gap = float(scores.max()) - min(float(scores[plain]), float(scores[speculative]))
    rounding = rounding_step(float(logits.max()), dtype)
    outcome: Outcome = "near_tie" if rounding > 0.0 and gap <= rounding else "different"
    return Identity(outcome, position, gap, rounding)


def gumbel_noise(draw: Draw, position: int, logits: torch.Tensor) -> torch.Tensor:
    """[V] float32: the noise that sampling the token at logical `position` adds to the logits [V]."""
    coin = coins(torch.tensor([seed_key(draw.seed)]), torch.tensor([position])).to(logits.device)
    return -draw.temperature * unit_times(coin, torch.arange(len(logits), device=logits.device))[0].log()


def rounding_step(value: float, dtype: torch.dtype) -> float:
    """The distance between adjacent numbers of a 16-bit dtype at `value`; 0 for float32."""
    bits = _FRACTION_BITS.get(dtype)
    if bits is None or value == 0.0 or not math.isfinite(value):
        return 0.0
    return 2.0 ** (math.floor(math.log2(abs(value))) - bits)


def first_difference(plain: Sequence[int], speculative: Sequence[int]) -> int | None:
    """The first index at which two answers differ (one may end there); None if they are equal."""
    pairs = enumerate(zip_longest(plain, speculative))
    return next((index for index, (one, other) in pairs if one != other), None)


def prefix_logits(decoder: Decoder, token_ids: Sequence[int]) -> torch.Tensor:
    """The logits after `token_ids`, from one causal forward: [V] float32."""
    batch = one_sequence(token_ids, decoder.page_size, decoder.device)
    batch = batch._replace(logit_rows=batch.row_start[1:] - 1)
    kv = decoder.allocate_kv(batch.page_table.numel())
    logits = decoder.forward(batch, kv, logits="logits").logits
    if logits is None:
        raise RuntimeError("the decoder returned no logits although they were requested")
    return logits[0].float()
