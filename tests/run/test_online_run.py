"""A run whose training makes its own features, stage by stage from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fledge.features import FeatureStore
from tests.commands.command import Fledge


def test_a_hybrid_run_stores_held_out_features_and_keeps_the_others_while_training(
    fledge: Fledge,
    small_recipe: Path,
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "run"
    for part in ("prompts", "conversations"):
        shutil.copytree(finished_run / part, folder / part)
    arguments = (small_recipe, "features.feed=hybrid", "train.epochs=2", "--run-dir", folder)
    fledge("features", *arguments)
    with monkeypatch.context() as torchrun:
        torchrun.setenv("WORLD_SIZE", "2")  # two would write into one store
        assert "under torchrun set it to online or offline" in fledge.error("train", *arguments)
    for stage in ("train", "evaluate"):
        fledge(stage, *arguments)
    assert {info.split for info in FeatureStore(str(folder / "features")).samples} == {"heldout"}
    kept = FeatureStore(str(folder / "train" / "features")).samples
    assert kept
    assert {info.split for info in kept} == {"train"}
    assert (folder / "head" / "model.safetensors").exists()
    assert (folder / "evaluation.json").exists()
    assert "features.feed" in fledge.error("features", small_recipe, "--run-dir", folder)
