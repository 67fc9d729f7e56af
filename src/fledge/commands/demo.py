"""`fledge demo`: a race, then a run of the size that this machine does in ten minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fledge.base.errors import RecipeError
from fledge.commands.described import described_run, resumable

if TYPE_CHECKING:
    from fledge.run.estimate import Calibration
    from fledge.run.folder import Run

_SECONDS = (
    440.0  # of the stages as estimated, which is low by a fifth; loading, timing and the race come on top
)
_FEWEST, _MOST = 160, 1200  # prompts


def demo(
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings", show_default=False)
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="more data, training and measuring, however long they take")
    ] = False,
    run_dir: Annotated[
        str | None,
        typer.Option(help="folder or fsspec URL of the run", show_default="runs/demo or runs/full"),
    ] = None,
) -> None:
    """See it work: `run` for a small LLM, in ten minutes on two CPU cores."""
    words = list(settings or [])
    if wrong := [word for word in words if "=" not in word]:
        raise RecipeError(f"{wrong[0]!r} is not a setting; write key=value, such as train.minutes=12")
    recipe = "full" if full else "demo"
    run = described_run([recipe, *words], run_dir)
    from fledge.bench import RELEASED
    from fledge.released import load_head
    from fledge.run.estimate import Calibration
    from fledge.run.pipeline import run_pipeline
    from fledge.run.race import race

    speeds = Calibration(run)
    with resumable():
        if RELEASED in run.head_urls and not _begun(run):
            race(run.target, load_head(run.target, RELEASED))
        if not full and not any(word.startswith("prompts.count=") for word in words):
            run = described_run([recipe, *words, f"prompts.count={prompts_for(run, speeds)}"], run_dir)
        run_pipeline(run, speeds)


def prompts_for(run: Run, speeds: Calibration) -> int:
    """The number of prompts of a run that has begun, else that of which this machine makes a head in time."""
    from fledge.base.console import say
    from fledge.run.estimate import prompts_within
    from fledge.run.recipe import RECIPE_NAME, load_recipe

    if _begun(run):
        return load_recipe(run.url(RECIPE_NAME)).prompts.count
    say("timing this machine")
    return min(_MOST, max(_FEWEST, prompts_within(run, _SECONDS, speeds)))


def _begun(run: Run) -> bool:
    from fledge.base.storage import exists
    from fledge.run.recipe import RECIPE_NAME

    return exists(run.url(RECIPE_NAME))
