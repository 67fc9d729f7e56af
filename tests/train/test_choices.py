"""Choices of a recipe: what each of them changes in training, and that nothing else does."""

from __future__ import annotations

from pathlib import Path

import torch

from fledge.features import SampleInfo
from fledge.heads import Head
from fledge.train.batches import random_subset
from tests.train.test_trainer import OPTIONS, features, run, target

__all__ = ["features", "target"]  # fixtures

QUICK = OPTIONS.model_copy(update={"epochs": 1.0, "ttt_steps": 2})


def test_a_limit_of_response_tokens_takes_a_random_part_the_same_every_time():
    infos = [SampleInfo(0, i, "train", "", 0.0, 30, 20) for i in range(50)]
    some = random_subset(infos, 500, seed=1)
    assert sum(info.supervised for info in some) == 500
    assert some == random_subset(infos, 500, seed=1) != random_subset(infos, 500, seed=2)
    assert some == sorted(some, key=lambda info: info.index)
    assert some != infos[:25]
    assert set(some) < set(random_subset(infos, 700, seed=1))  # a larger size holds the smaller one
    assert random_subset(infos, None, seed=1) == infos == random_subset(infos, 10**6, seed=1)


def test_a_fixed_lm_head_stays_the_target_s_and_a_random_start_is_none_of_it(
    target, features: str, tmp_path: Path
):
    run(target, features, tmp_path / "fixed", QUICK.model_copy(update={"lm_head_rate": 0.0}))
    fixed = Head.load(str(tmp_path / "fixed" / "head"))
    rows = target.weights.lm_head[fixed.vocabulary.token_ids].float()
    torch.testing.assert_close(fixed.weights.lm_head.float(), rows, rtol=0, atol=0)
    run(target, features, tmp_path / "random", QUICK.model_copy(update={"init": "random"}))
    random = Head.load(str(tmp_path / "random" / "head"))
    assert torch.equal(random.weights.d2t, fixed.weights.d2t)
    copied = {"init": "target", "lm_head_rate": 0.0}
    run(target, features, tmp_path / "copied", QUICK.model_copy(update=copied))
    copy = Head.load(str(tmp_path / "copied" / "head"))
    assert torch.equal(copy.weights.lm_head, fixed.weights.lm_head)
    last = target.weights.layers[-1].gate_up.float()
    assert torch.cosine_similarity(copy.weights.gate_up.float(), last).mean() > 0.5
    assert torch.cosine_similarity(fixed.weights.gate_up.float(), last).abs().mean() < 0.3
    similar = torch.cosine_similarity(random.weights.lm_head.float(), rows)
    assert abs(float(similar.mean())) < 0.3
