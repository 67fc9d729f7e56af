"""`fledge demo`: the size of a run that fits its minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fledge.commands.demo import prompts_for
from fledge.run.estimate import Calibration, estimate, prompts_within
from fledge.run.folder import Run
from fledge.run.recipe import RECIPE_NAME, load_recipe
from tests.commands.command import Fledge

_GROWING = ("prompts", "respond", "features")
_ALL = (*_GROWING, "train", "evaluate", "bench")


@pytest.fixture
def run(tmp_path: Path, tiny_target_folder: Path) -> Run:
    return Run(load_recipe("demo", [f"target.model={tiny_target_folder}"]), str(tmp_path / "run"))


def speeds_of(run: Run, tokens_per_second: float) -> Calibration:
    """A machine of this speed."""
    speeds = Calibration(run)
    for name in ("greedy", "sampled", "prefill", "train"):
        setattr(speeds, name, tokens_per_second)
    speeds.plain_ms = 5.0
    return speeds


def test_a_run_of_the_size_that_fits_takes_that_long(run: Run) -> None:
    speeds = speeds_of(run, 800.0)
    count = prompts_within(run, 500.0, speeds)

    def takes(prompts: int) -> float:
        recipe = run.recipe.model_copy(
            update={"prompts": run.recipe.prompts.model_copy(update={"count": prompts})}
        )
        return sum(row.seconds or 0.0 for row in estimate(replace(run, recipe=recipe), _ALL, speeds))

    assert count % 10 == 0
    assert takes(count - 20) < 500 < takes(count + 30)


def test_slow_machines_make_fewer_prompts_within_limits(run: Run) -> None:
    counts = [prompts_for(run, speeds_of(run, speed)) for speed in (10.0, 800.0, 1600.0, 1e6)]
    assert counts[0] == 160
    assert counts[-1] == 1200
    assert 160 < counts[1] < counts[2] < 1200


def test_a_run_that_has_begun_keeps_its_size(run: Run) -> None:
    begun = load_recipe("demo", [f"target.model={run.recipe.target.model}", "prompts.count=430"])
    begun.save(run.url(RECIPE_NAME))
    assert prompts_for(run, speeds_of(run, 1e6)) == 430


def test_a_number_of_prompts_that_the_user_names_stays(
    fledge: Fledge, tiny_target_folder: Path, tmp_path: Path
) -> None:
    named = f"target.model={tiny_target_folder}", "prompts.count = 1", "--run-dir", tmp_path / "run"
    assert "one prompt can't give both" in fledge.error("demo", *named)


def test_a_run_whose_growth_is_unknown_keeps_the_recipes_number(run: Run) -> None:
    """Prompts of a file, answers and features of servers: none of it is timed here."""
    recipe = load_recipe(
        "demo",
        [
            f"target.model={run.recipe.target.model}",
            "prompts.sources=[{path: own.jsonl, licence: own}]",
            "respond.server={url: 'http://localhost:1'}",
            "features.server=http://localhost:1",
        ],
    )
    assert prompts_for(replace(run, recipe=recipe), speeds_of(run, 1e4)) == 1200


def test_a_word_that_is_no_setting_is_refused(fledge: Fledge) -> None:
    assert "'released' is not a setting" in fledge.error("demo", "released")
