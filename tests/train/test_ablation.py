"""What an ablation varies does what it says, and its table compares like with like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.base.errors import DataError
from fledge.features import SampleInfo
from fledge.heads import Head
from fledge.train import EvaluateOptions
from fledge.train.ablation import BASE, VARIANTS, AblationRow, finished_rows, rows_for, run_row, table
from fledge.train.batches import random_subset
from tests.train.test_trainer import OPTIONS, features, run, target

__all__ = ["features", "target"]  # fixtures

QUICK = OPTIONS.model_copy(update={"epochs": 1.0, "ttt_steps": 2})
JUDGED = EvaluateOptions(depth=2, shape_tokens=0)


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


def test_every_row_changes_what_a_recipe_has():
    for name, changes in VARIANTS.items():
        changed = type(OPTIONS).model_validate(OPTIONS.model_dump() | dict(changes))
        assert name == BASE or changed != OPTIONS


def test_rows_that_only_a_new_head_has_are_none_when_training_goes_on(target, features: str, tmp_path: Path):
    """They would be the recipe's own training again, and the table would say that the change is worth nothing."""
    going_on = QUICK.model_copy(update={"init_head": "head"})
    assert set(rows_for(QUICK)) - set(rows_for(going_on)) == {
        "random",
        "from-target",
        "random-fast",
        "norms-3.1",
    }
    with pytest.raises(DataError, match=r"no row 'random' when training continues from train\.init_head"):
        run_row(target, features, going_on, JUDGED, 300, "random", str(tmp_path))


def test_the_table_compares_rows_of_the_same_making(target, features: str, tmp_path: Path):
    def row(name: str, judged: EvaluateOptions = JUDGED) -> AblationRow:
        return run_row(target, features, QUICK, judged, 300, name, str(tmp_path / "300" / name))

    base, random = row(BASE), row("random")
    assert base.response_tokens == random.response_tokens <= 300
    assert finished_rows(str(tmp_path), 300) == [base, random]
    assert row(BASE) == base  # nothing is made again
    lines = table([base, random])
    assert lines[0][3] == ""
    assert lines[1][:3] == ("random", "init=random", f"{random.tau:.3f}")
    assert lines[1][3].startswith(f"{random.tau - base.tau:+.3f} (")
    other = replace(random, made_from="")
    with pytest.raises(DataError, match="evaluated differently"):
        table([base, other])
    with pytest.raises(DataError, match="no row 'unheard-of'; the rows are recipe, random"):
        row("unheard-of")
