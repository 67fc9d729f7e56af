"""The race's Triton kernels against torch, under Triton's interpreter or on a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

from fledge.draft import race
from fledge.draft.race import unit_times
from fledge.engine import sampling
from fledge.engine.sampling import RowSampling, coins, sample, seed_key

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytest.importorskip("triton", reason="Triton isn't installed: pip install 'fledge[gpu]'")

from fledge.draft import race_triton  # noqa: E402


def tossed(count: int) -> torch.Tensor:
    """Coins, half of them negative numbers."""
    return coins(torch.tensor(seed_key(3)), torch.arange(count))


@pytest.mark.parametrize("vocabulary", [1, 300, 4096, 9001])
def test_unit_times_are_torchs(vocabulary: int) -> None:
    token_ids = torch.randperm(200_000, generator=torch.Generator().manual_seed(1))[:vocabulary]
    expected = unit_times(tossed(5), token_ids)
    result = race_triton.unit_times(tossed(5).to(DEVICE), token_ids.to(DEVICE)).cpu()
    torch.testing.assert_close(result, expected, rtol=3e-7, atol=0.0)  # small times, which win, as well


@pytest.mark.parametrize(("vocabulary", "spread"), [(1, 1.0), (300, 0.1), (4096, 2.0), (9001, 4.0)])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_winners_are_the_sampled_tokens(vocabulary: int, spread: float, min_p: float) -> None:
    count, generator = 12, torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(count, vocabulary, generator=generator) * spread
    temperature = torch.rand(count, generator=generator) * 1.5 + 0.2
    none = torch.zeros(count)
    rows = RowSampling(
        temperature, none.long(), none + 1, none + min_p, none.long(), sampled=None, truncates=False
    )
    expected = sample(logits, rows, tossed(count))
    parts = (logits, temperature, rows.min_p, tossed(count))
    assert torch.equal(race_triton.winners(*(part.to(DEVICE) for part in parts)).cpu(), expected)


@pytest.mark.parametrize("truncates", [False, True])
def test_sampling_is_the_same_with_them(monkeypatch: pytest.MonkeyPatch, truncates: bool) -> None:
    """Tokens, and what a head expects them to be."""
    logits = (torch.randn(30, 500, generator=torch.Generator().manual_seed(7)) * 2).to(DEVICE)
    ones, key = torch.ones(30, device=DEVICE), torch.full((30,), seed_key(1), device=DEVICE)
    rows = RowSampling(ones, (ones * 9 * truncates).long(), ones, ones * 0, key, None, truncates)
    results = []
    for on in (False, True):
        for module in (race, sampling):
            monkeypatch.setattr(module, "runs_triton", lambda _, on=on: on)
        drawn = sampling.draws(rows, torch.arange(30, device=DEVICE))
        assert drawn is not None
        told = race.foreseen(logits.log_softmax(-1), torch.arange(500, device=DEVICE), drawn)
        results.append((sample(logits, rows, drawn.coin), told))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


def test_rows_without_a_single_number_yield_a_token_and_harm_no_other() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    parts = (torch.ones(4, device=DEVICE), torch.zeros(4, device=DEVICE), tossed(4).to(DEVICE))
    alone = race_triton.winners(logits, *parts)
    logits[1], logits[2] = -torch.inf, torch.nan
    chosen = race_triton.winners(logits, *parts)
    assert all(0 <= token < 50 for token in chosen.tolist())
    assert chosen[[0, 3]].tolist() == alone[[0, 3]].tolist()
