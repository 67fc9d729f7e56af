"""Low-rank estimates of the lm_head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.base.errors import RecipeError
from fledge.heads import Head
from fledge.target import Target
from fledge.train import TrainOptions
from fledge.train.candidates import estimated, second_moment
from tests.heads.tiny_head import random_head
from tests.train.test_trainer import OPTIONS, features, run, target  # noqa: F401  (fixtures)

CHOSEN = {"candidates": 12, "candidate_rank": 32}


def error(head: Head, x: torch.Tensor) -> float:
    w = head.weights
    assert w.candidate_up is not None
    assert w.candidate_down is not None
    return float((x @ w.lm_head.T - x @ w.candidate_down.T @ w.candidate_up.T).square().mean())


def test_estimates_are_best_where_the_head_puts_its_outputs(target: Target) -> None:  # noqa: F811
    head = random_head(target)
    generator = torch.Generator().manual_seed(3)
    size = head.config.hidden_size
    outputs = torch.randn(500, 40, generator=generator) @ torch.randn(40, size, generator=generator)
    weighted = estimated(head, second_moment([outputs[:200], outputs[200:]]), count=8, rank=32)
    plain = estimated(head, torch.eye(size, dtype=torch.float64), count=8, rank=32)
    assert error(weighted, outputs) < 0.7 * error(plain, outputs)
    whole = estimated(head, second_moment([outputs]), count=8, rank=size)
    assert error(whole, outputs) < 1e-4 * error(plain, outputs)


@pytest.fixture(scope="module")
def trained(target: Target, features: str, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("candidates")
    run(target, features, folder, OPTIONS.model_copy(update={"epochs": 0.5, **CHOSEN}))
    return folder / "head"


def test_a_trained_head_gets_the_candidates_asked_for(
    target: Target,  # noqa: F811
    features: str,  # noqa: F811
    trained: Path,
    tmp_path: Path,
) -> None:
    head = Head.load(str(trained))
    assert (head.config.candidates, head.config.candidate_rank) == (12, 32)
    run(target, features, tmp_path, OPTIONS.model_copy(update={"epochs": 0.5}))
    assert torch.equal(head.weights.lm_head, Head.load(str(tmp_path / "head")).weights.lm_head)


@pytest.mark.parametrize(
    ("asked", "found"),
    [({}, (12, 32)), ({"candidates": 0}, (0, 0)), ({"draft_vocab_size": 200}, (12, 32))],
)
def test_training_on_keeps_candidates_and_makes_their_estimates_again(
    target: Target,  # noqa: F811
    features: str,  # noqa: F811
    trained: Path,
    tmp_path: Path,
    asked: dict[str, int],
    found: tuple[int, int],
) -> None:
    options = TrainOptions(init_head=str(trained), epochs=0.5, batch_tokens=128, ttt_steps=2, **asked)
    run(target, features, tmp_path, options)
    head, before = Head.load(str(tmp_path / "head")), Head.load(str(trained))
    assert (head.config.candidates, head.config.candidate_rank) == found
    assert head.config.draft_vocab_size == asked.get("draft_vocab_size", before.config.draft_vocab_size)
    if found[0] and "draft_vocab_size" not in asked:
        assert not torch.equal(head.weights.candidate_up, before.weights.candidate_up)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"candidates": 129, "candidate_rank": 32}, "129 of rank 32 don't fit a head of 128 tokens"),
        ({"candidates": 9, "candidate_rank": 96}, "rank 96"),
        ({"candidate_rank": 32}, "set train.candidates"),
        ({"candidates": 0, "candidate_steps": 5}, "set train.candidates"),
    ],
)
def test_estimates_that_no_head_can_have_are_refused_before_training(
    target: Target,  # noqa: F811
    features: str,  # noqa: F811
    tmp_path: Path,
    asked: dict[str, int],
    says: str,
) -> None:
    with pytest.raises(RecipeError, match=says):
        run(target, features, tmp_path, OPTIONS.model_copy(update=asked))
    assert not list(tmp_path.iterdir())


def test_a_window_that_isnt_there_keeps_nothing() -> None:
    with pytest.raises(ValueError, match="set window, too"):
        TrainOptions(window_keeps_first=False)
