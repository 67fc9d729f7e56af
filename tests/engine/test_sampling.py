"""Coins depend on seed and position only; draws follow the processed distribution; filters keep what they promise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fledge.engine.sampling import (
    RowSampling,
    choose,
    processed_weights,
    sample,
    seed_key,
    uniform,
)

WORD = (1 << 64) - 1


def rows(
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seed: int = 0,
) -> RowSampling:
    return RowSampling(
        temperature=torch.full((count,), temperature),
        top_k=torch.full((count,), top_k, dtype=torch.int64),
        top_p=torch.full((count,), top_p),
        min_p=torch.full((count,), min_p),
        seed_key=torch.full((count,), seed_key(seed), dtype=torch.int64),
        sampled=None,
        truncates=top_k > 0 or top_p < 1,
    )


def naive_kept(
    logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> dict[int, float]:
    """Token -> probability, written out token by token."""
    probability = (logits.double() / temperature).softmax(0).tolist()
    order = sorted(range(len(probability)), key=lambda token: -probability[token])
    if top_k:
        order = order[:top_k]
    total = sum(probability[token] for token in order)
    kept, mass = [], 0.0
    for token in order:
        if mass >= top_p * total:
            break
        kept.append(token)
        mass += probability[token]
    kept = [token for token in kept if probability[token] >= min_p * probability[order[0]]]
    mass = sum(probability[token] for token in kept)
    return {token: probability[token] / mass for token in kept}


def test_coins_match_splitmix64_written_in_python() -> None:
    key = seed_key(12345)
    for position in (0, 1, 77, 100_000):
        z = (key + (position + 1) * 0x9E3779B97F4A7C15) & WORD
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
        z ^= z >> 31
        coin = uniform(torch.tensor([key]), torch.tensor([position]))
        assert coin.item() == (z >> 40) / 2**24


def test_coins_are_uniform_and_uncorrelated_between_neighbouring_seeds_and_positions() -> None:
    keys = torch.tensor([seed_key(seed) for seed in range(200)])
    coins = uniform(keys[:, None], torch.arange(500)).double()
    assert coins.min() >= 0
    assert coins.max() < 1
    assert abs(coins.mean().item() - 0.5) < 0.003
    counts = torch.histc(coins.float(), bins=50, min=0, max=1)
    chi_square = ((counts - 2000) ** 2 / 2000).sum().item()
    assert chi_square < 49 + 4 * math.sqrt(98)
    centred = coins - 0.5
    assert abs((centred[:, 1:] * centred[:, :-1]).mean().item()) < 0.002
    assert abs((centred[1:] * centred[:-1]).mean().item()) < 0.002


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 1.0, 0.0),
        (1.3, 5, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.8, 12, 0.8, 0.05),
        (1.0, 1, 1.0, 0.0),
        (1.0, 999, 0.01, 0.0),
    ],
)
def test_filters_keep_what_a_naive_reading_keeps(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = torch.randn(20, 40, generator=torch.Generator().manual_seed(3)) * 2
    weights = processed_weights(
        logits, rows(20, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    )
    for row, line in enumerate(logits):
        expected = naive_kept(line, temperature, top_k, top_p, min_p)
        assert set(weights[row].nonzero().flatten().tolist()) == set(expected)
        probability = weights[row] / weights[row].sum()
        for token, value in expected.items():
            assert probability[token].item() == pytest.approx(value, rel=1e-4)


def test_rows_keep_their_own_parameters() -> None:
    logits = torch.randn(3, 30, generator=torch.Generator().manual_seed(1))
    mixed = RowSampling(
        temperature=torch.tensor([1.0, 0.5, 2.0]),
        top_k=torch.tensor([0, 3, 0]),
        top_p=torch.tensor([1.0, 1.0, 0.5]),
        min_p=torch.tensor([0.2, 0.0, 0.0]),
        seed_key=torch.zeros(3, dtype=torch.int64),
        sampled=None,
        truncates=True,
    )
    weights = processed_weights(logits, mixed)
    settings = [(1.0, 0, 1.0, 0.2), (0.5, 3, 1.0, 0.0), (2.0, 0, 0.5, 0.0)]
    for row, setting in enumerate(settings):
        assert set(weights[row].nonzero().flatten().tolist()) == set(naive_kept(logits[row], *setting))


def test_draws_follow_the_processed_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0, 1.5])
    draws = 200_000
    setting = rows(draws, temperature=0.8, top_p=0.97, seed=9)
    coins = uniform(setting.seed_key, torch.arange(draws))
    chosen = sample(logits.expand(draws, -1), setting, coins)
    expected = naive_kept(logits, 0.8, 0, 0.97, 0.0)
    counts = torch.bincount(chosen, minlength=6).tolist()
    assert {token for token, count in enumerate(counts) if count} == set(expected)
    chi_square = sum((counts[t] - p * draws) ** 2 / (p * draws) for t, p in expected.items())
    assert chi_square < 20.5  # p = 0.001 at 5 degrees of freedom


def test_extreme_coins_stay_inside_the_distribution() -> None:
    logits = torch.tensor([[-200.0, 0.0, -200.0], [-200.0, -200.0, 0.0]])
    for coin in (0.0, 1 - 2**-24):
        assert sample(logits, rows(2), torch.full((2,), coin)).tolist() == [1, 2]


def test_greedy_rows_are_argmax_beside_sampled_ones() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(5))
    setting = rows(6, temperature=1.0, seed=4)
    temperature = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    mixed = setting._replace(temperature=temperature, sampled=torch.tensor([1, 3]))
    position = torch.arange(6)
    chosen, alone = choose(logits, mixed, position), choose(logits, setting, position)
    assert chosen[[0, 2, 4, 5]].tolist() == logits.argmax(1)[[0, 2, 4, 5]].tolist()
    assert chosen[[1, 3]].tolist() == alone[[1, 3]].tolist()


def test_a_decoders_own_sampler_gets_the_same_coins() -> None:
    seen: list[Tensor] = []

    def sampler(
        logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, coins: Tensor
    ) -> Tensor:
        seen.append(coins)
        return logits.argmax(-1)

    setting, position = rows(4, seed=8), torch.arange(4)
    choose(torch.randn(4, 9), setting, position, sampler)
    assert seen[0].tolist() == uniform(setting.seed_key, position).tolist()
    assert seen[0].dtype == torch.float32
