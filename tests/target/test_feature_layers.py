"""Features of other layers than the default ones, chosen for a target or named by a head trained elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.base.errors import TargetError
from fledge.engine import Engine
from fledge.features.hooks import HookExtractor
from fledge.heads import Head
from fledge.target import Target
from tests.commands.command import Fledge
from tests.engine.conftest import noisy_head
from tests.features.test_features import make_conversations
from tests.target.paging import make_batch, scattered_pages
from tests.target.test_decoder import random_ids

LAYERS = (0, 2, 6)  # the default ones of eight are 1, 3 and 4


@pytest.mark.parametrize(("backend", "dtype"), [("torch", "float32"), ("auto", "bfloat16")])
def test_a_decoder_gives_the_layers_chosen(tiny_target_folder: Path, backend: str, dtype: str) -> None:
    target = Target.load(str(tiny_target_folder), dtype=dtype, backend=backend)  # type: ignore[arg-type]
    chosen = target.with_feature_layers(LAYERS)
    batch = make_batch([random_ids(40)], scattered_pages(1, 3))
    captured = []
    for one in (chosen, target.with_feature_layers((0, 1, 2)), target.with_feature_layers((4, 5, 6))):
        found = one.decoder.forward(batch, one.decoder.allocate_kv(3), logits="none", features=True).features
        assert found is not None
        captured.append(found.chunk(3, dim=-1))
    ours, early, late = captured
    for mine, theirs in zip(ours, (early[0], early[2], late[2]), strict=True):
        assert torch.equal(mine, theirs)
    assert target.config.feature_layers == (1, 3, 4)
    assert target.with_feature_layers((1, 3, 4)) is target


@pytest.mark.parametrize("layers", [(0, 2, 8), (-1, 2, 3), (2, 1, 3), (1, 1, 3), (1, 2)])
def test_layers_a_target_hasnt_are_refused(tiny_target_folder: Path, layers: tuple[int, ...]) -> None:
    with pytest.raises(TargetError, match="name three of this target's layers, in order, from 0 to 7"):
        Target.load(str(tiny_target_folder), feature_layers=layers)


def test_a_head_is_served_with_the_layers_it_names(tiny_target_folder: Path) -> None:
    target = Target.load(str(tiny_target_folder), dtype="float32", backend="torch")
    head = noisy_head(target)
    other = Head(head.config, head.weights, replace(head.metadata, feature_layers=LAYERS))
    engine = Engine(target, other)
    assert engine.target.config.feature_layers == LAYERS
    assert target.config.feature_layers == (1, 3, 4)
    prompts = [random_ids(20, seed=seed) for seed in range(3)]
    plainly, drafted = (e.generate(prompts, max_tokens=24, ignore_eos=True) for e in (Engine(target), engine))
    assert [c.token_ids for c in plainly] == [c.token_ids for c in drafted]


def test_transformers_hooks_take_the_layers_chosen(tiny_target_folder: Path) -> None:
    conversations = make_conversations(2)
    apart, together = (
        HookExtractor.load(str(tiny_target_folder), dtype="float32", feature_layers=layers).extract(
            conversations
        )
        for layers in (LAYERS, (0, 1, 2))
    )
    assert torch.equal(apart[0].features.chunk(3, dim=1)[1], together[0].features.chunk(3, dim=1)[2])
    assert not torch.equal(apart[0].features.chunk(3, dim=1)[2], together[0].features.chunk(3, dim=1)[2])


def test_a_run_trains_and_measures_a_head_on_the_layers_chosen(
    fledge: Fledge, small_recipe: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    fledge("run", small_recipe, "target.feature_layers=[0,2,6]", "--run-dir", folder)
    assert Head.load(str(folder / "head")).metadata.feature_layers == LAYERS
    assert json.loads((folder / "summary.json").read_text())["workloads"]["mixed"]["different"] == 0
    assert "feature_layers" in fledge.error("features", small_recipe, "--run-dir", folder)
