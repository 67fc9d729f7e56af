"""Coins depend on seed and position only; draws follow the processed distribution; filters keep what they promise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fledge.draft.race import Draws, foreseen, unit_times
from fledge.engine.sampling import (
    RowSampling,
    choose,
    coins,
    draws,
    processed_weights,
    sample,
    seed_key,
)
from fledge.native import ops

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
        coin = coins(torch.tensor([key]), torch.tensor([position]))
        assert coin.item() & WORD == z


def test_unit_times_are_exponential_and_uncorrelated_between_neighbours() -> None:
    keys = torch.tensor([seed_key(seed) for seed in range(40)])
    tossed = coins(keys[:, None], torch.arange(50)).flatten()
    unit = (
        (-unit_times(tossed, torch.arange(60)).double()).exp().view(40, 50, 60)
    )  # by seed, position and token
    assert unit.min() > 0
    assert unit.max() < 1
    counts = torch.histc(unit.float(), bins=50, min=0, max=1)
    chi_square = ((counts - 2400) ** 2 / 2400).sum().item()
    assert chi_square < 49 + 4 * math.sqrt(98)
    centred = unit - 0.5
    for axis in range(3):
        size = unit.shape[axis] - 1
        product = centred.narrow(axis, 0, size) * centred.narrow(axis, 1, size)
        assert abs(product.mean().item()) < 0.0015  # five standard deviations


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


HALVES = [
    0.0,
    -math.log(2),
    -2 * math.log(2),
    -3 * math.log(2),
    -3 * math.log(2),
]  # of weights 1, 1/2, 1/4, 1/8, 1/8


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 0.5, 1),  # the most probable token alone holds half: no other is needed
        (0, 0.75, 2),
        (0, 0.875, 3),
        (0, 0.51, 2),
        (0, 0.9, 5),  # the last two are as probable as each other
        (4, 1.0, 5),
        (1, 1.0, 1),
        (3, 0.5, 1),  # of what top-k left: 4/7
        (2, 0.7, 2),
    ],
)
@pytest.mark.parametrize("way", ["torch", pytest.param("kernels", marks=pytest.mark.kernels)])
def test_the_smallest_set_with_just_that_probability_is_enough(
    top_k: int, top_p: float, kept: int, way: str
) -> None:
    count = 4000
    logits = torch.tensor(HALVES).expand(count, -1).contiguous()
    setting = rows(count, top_k=top_k, top_p=top_p)
    tossed = coins(setting.seed_key, torch.arange(count))
    if way == "torch":
        assert (processed_weights(logits, setting) > 0).sum(1).unique().tolist() == [kept]
        drawn = sample(logits, setting, tossed)
    else:
        drawn = ops.sample(logits, setting.temperature, setting.top_k, setting.top_p, setting.min_p, tossed)
    assert drawn.unique().tolist() == list(range(kept))


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
    some = torch.tensor([2, 0])
    assert torch.equal(processed_weights(logits[some], mixed.of(some)), weights[some])


def test_which_of_some_rows_are_sampled() -> None:
    mixed = rows(4)._replace(temperature=torch.tensor([0.0, 1.0, 0.0, 2.0]), sampled=torch.tensor([1, 3]))
    few = mixed.of(torch.tensor([3, 0]))
    assert few.sampled is not None
    assert few.sampled.tolist() == [0]
    assert rows(4).of(torch.tensor([3, 0])).sampled is None


def test_draws_follow_the_processed_distribution() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0, 1.5])
    draws = 200_000
    setting = rows(draws, temperature=0.8, top_p=0.97, seed=9)
    chosen = sample(logits.expand(draws, -1), setting, coins(setting.seed_key, torch.arange(draws)))
    expected = naive_kept(logits, 0.8, 0, 0.97, 0.0)
    counts = torch.bincount(chosen, minlength=6).tolist()
    assert {token for token, count in enumerate(counts) if count} == set(expected)
    chi_square = sum((counts[t] - p * draws) ** 2 / (p * draws) for t, p in expected.items())
    assert chi_square < 20.5  # p = 0.001 at 5 degrees of freedom


def test_extreme_coins_stay_inside_the_distribution() -> None:
    logits = torch.tensor([[-200.0, 0.0, -200.0], [-200.0, -200.0, 0.0]])
    for coin in (0, -1, 2**63 - 1, -(2**63)):
        assert sample(logits, rows(2), torch.full((2,), coin)).tolist() == [1, 2]


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_rows_without_a_single_number_yield_a_token_and_harm_no_other(top_p: float) -> None:
    """An overflow, or a request none of whose tokens may be chosen yet. An index of -1 would end a GPU's process."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(5))
    setting, tossed = rows(4, top_k=7, top_p=top_p, seed=4), torch.arange(4)
    alone = sample(logits, setting, tossed)
    logits[1], logits[2] = -torch.inf, torch.nan
    chosen = sample(logits, setting, tossed)
    assert all(0 <= token < 50 for token in chosen.tolist())
    assert chosen[[0, 3]].tolist() == alone[[0, 3]].tolist()
    draws = Draws(*setting[:4], tossed)
    assert foreseen(logits, torch.arange(50), draws)[[0, 3]].isfinite().all()


def test_greedy_rows_are_argmax_beside_sampled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "nonzero", None)  # on a GPU the host would wait for it
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
        logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, tossed: Tensor
    ) -> Tensor:
        seen.append(tossed)
        return logits.argmax(-1)

    setting, position = rows(4, seed=8), torch.arange(4)
    choose(torch.randn(4, 9), setting, position, sampler)
    assert seen[0].tolist() == coins(setting.seed_key, position).tolist()
    assert seen[0].dtype == torch.int64


def test_a_head_that_runs_the_race_names_its_winner_more_often_than_by_probability() -> None:
    generator, count = torch.Generator().manual_seed(2), 4000
    logits = torch.randn(count, 50, generator=generator) * 2
    near = (logits + 0.5 * torch.randn(count, 50, generator=generator)).log_softmax(-1)
    setting = rows(count, seed=5)
    tossed = coins(setting.seed_key, torch.arange(count))
    winner = sample(logits, setting, tossed)
    draws = Draws(setting.temperature, setting.top_k, setting.top_p, setting.min_p, tossed)
    told = foreseen(near, torch.arange(50), draws)
    hits, guesses = ((by.argmax(-1) == winner).float().mean().item() for by in (told, near))
    assert hits > 0.15 + guesses
    greedy = draws._replace(temperature=torch.zeros(count))
    assert torch.equal(foreseen(near, torch.arange(50), greedy), near)


def test_a_head_sorts_no_probabilities_unless_some_request_truncates(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(2)).log_softmax(-1)
    drawn = draws(rows(20, min_p=0.1, seed=5), torch.arange(20))
    assert drawn is not None
    expected = foreseen(logits, torch.arange(50), drawn._replace(truncates=True))
    monkeypatch.setattr(torch.Tensor, "sort", None)
    assert torch.equal(foreseen(logits, torch.arange(50), drawn), expected)


def test_a_head_that_gives_unfit_tokens_a_share_names_more_winners_at_its_own_temperature() -> None:
    count = 4000
    logits = torch.randn(count, 50, generator=torch.Generator().manual_seed(3)) * 2.5
    flat = (0.7 * logits.softmax(-1) + 0.3 / 50).log()
    position, setting = torch.arange(count), rows(count, seed=5)
    winner = sample(logits, setting, coins(setting.seed_key, position))
    drawn = draws(setting, position)
    assert drawn is not None
    at_the_targets = drawn._replace(temperature=setting.temperature)
    hits, fewer = (
        (foreseen(flat, torch.arange(50), of).argmax(-1) == winner).float().mean().item()
        for of in (drawn, at_the_targets)
    )
    assert hits > 0.05 + fewer


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"), [(3, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.3), (6, 0.7, 0.1)]
)
def test_a_head_leaves_behind_what_the_filters_drop(top_k: int, top_p: float, min_p: float) -> None:
    logits = torch.randn(200, 30, generator=torch.Generator().manual_seed(4)) * 2
    setting = rows(200, temperature=0.8, top_k=top_k, top_p=top_p, min_p=min_p, seed=1)
    draws = Draws(*setting[:4], coins(setting.seed_key, torch.arange(200)))
    dropped = processed_weights(logits, setting) == 0
    told = foreseen(logits.log_softmax(-1), torch.arange(30), draws).exp()
    assert told[dropped].mean() < 1e-3 * told[~dropped].mean()
