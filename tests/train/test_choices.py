"""Choices of a recipe: what each of them changes in training, and that nothing else does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.features import FeatureStore, SampleInfo
from fledge.heads import Head
from fledge.train.batches import random_subset
from fledge.train.feed import Noise
from tests.train.test_parallel import SMALL, train_together
from tests.train.test_trainer import OPTIONS, features, files, run, target

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


def test_noise_is_as_large_as_asked_and_belongs_to_step_and_conversation(features: str):
    store = FeatureStore(features)
    sample = store.read(store.split("train")[0])
    noise = Noise(0.2, seed=0, step=3)
    changed = noise.added_to(sample)
    assert torch.equal(changed.hidden, sample.hidden)
    width = sample.hidden.shape[1]
    before, after = (s.features.float().view(-1, 3, width) for s in (sample, changed))
    relative = (after - before) / before.abs().mean(-1, keepdim=True)
    assert 0.15 < float(relative.abs().max()) < 0.23  # rounded to bf16
    assert abs(float(relative.mean())) < 0.02
    assert torch.equal(changed.features, noise.added_to(sample).features)
    for other in (
        Noise(0.2, 0, 4).added_to(sample),
        noise.added_to(replace(sample, conversation_id="other")),
    ):
        assert not torch.equal(changed.features, other.features)


def test_noise_survives_a_resume_and_two_processes(
    target, features: str, tiny_target_folder: Path, tmp_path: Path
):
    noisy = SMALL.model_copy(update={"feature_noise": 0.3, "epochs": 1.0})

    def kill(done: float, total: float, note: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    run(target, features, tmp_path / "one", noisy)
    with pytest.raises(KeyboardInterrupt):
        run(target, features, tmp_path / "killed", noisy, progress=kill)
    run(target, features, tmp_path / "killed", noisy)
    assert files(tmp_path / "killed" / "head") == files(tmp_path / "one" / "head")
    quiet = noisy.model_copy(update={"feature_noise": 0.0})
    run(target, features, tmp_path / "quiet", quiet)
    assert files(tmp_path / "quiet" / "head") != files(tmp_path / "one" / "head")
    assert train_together(tiny_target_folder, features, str(tmp_path / "two"), options=noisy) == [0, 0]
    one, two = (Head.load(str(tmp_path / name / "head")).weights.trainable() for name in ("one", "two"))
    for name, tensor in one.items():
        assert (tensor - two[name]).norm() < 1e-2 * tensor.norm(), name


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
