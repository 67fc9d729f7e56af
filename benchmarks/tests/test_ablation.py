"""What an ablation varies does what it says, and its table compares like with like."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ablation import BASE, VARIANTS, AblationRow, finished_rows, main, rows_for, run_row, table
from fledge.base.errors import DataError
from fledge.train import EvaluateOptions
from tests.commands.command import Fledge
from tests.train.test_trainer import OPTIONS, features, target

__all__ = ["features", "target"]  # fixtures

QUICK = OPTIONS.model_copy(update={"epochs": 1.0, "ttt_steps": 2})
JUDGED = EvaluateOptions(depth=2, shape_tokens=0)


@pytest.fixture
def ablation(instrument: Callable[[Callable[..., Any]], Fledge]) -> Fledge:
    return instrument(main)


def test_every_row_changes_what_a_recipe_has():
    for name, changes in VARIANTS.items():
        changed = type(OPTIONS).model_validate(OPTIONS.model_dump() | dict(changes))
        assert (changed == OPTIONS) == (name == BASE)


def test_rows_that_only_a_new_head_has_are_none_when_training_goes_on(target, features: str, tmp_path: Path):
    """They would be the recipe's own training again, and the table would say that the change is worth nothing."""
    going_on = QUICK.model_copy(update={"init_head": "head"})
    assert set(rows_for(QUICK)) - set(rows_for(going_on)) == {"random", "from-target"}
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


def test_an_ablation_prints_each_change_and_writes_a_table(
    ablation: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_run / "features", tmp_path / "features")
    rows = ("--row", "recipe", "--row", "random", "--response-tokens", "400")
    output = ablation(small_recipe, "train.epochs=1", *rows, "--run-dir", tmp_path)
    assert "held-out chain tau" in output
    table = (tmp_path / "ablation" / "ablation.md").read_text()
    assert "| recipe | as it is |" in table
    assert "| random | init=random |" in table


def test_an_ablation_is_checked_before_its_first_row_is_trained(
    ablation: Fledge, small_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    rows = ("--row", "recipe", "--row", "unheard-of", "--response-tokens", "400")
    assert "there is no run in" in ablation.error(small_recipe, *rows, "--run-dir", tmp_path / "typo")
    assert not (tmp_path / "typo").exists()
    hybrid = ("features.feed=hybrid", *rows, "--run-dir", tmp_path)
    assert "an ablation needs all features stored" in ablation.error(small_recipe, *hybrid)
    shutil.copytree(finished_run / "features", tmp_path / "features")
    line = ablation.error(small_recipe, *rows, "--run-dir", tmp_path)
    assert "no row 'unheard-of'; the rows are recipe, random" in line
    assert not (tmp_path / "ablation").exists()
