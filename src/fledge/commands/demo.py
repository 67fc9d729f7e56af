"""`fledge demo`: a race, then a run of the size that this machine does in ten minutes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fledge.commands.described import described_run, resumable

if TYPE_CHECKING:
    from fledge.run.estimate import Calibration
    from fledge.run.folder import Run

# Of the stages, as estimated; they take a fifth more, and loading, timing and the race come on top.
_SECONDS = 440.0
_FEWEST = 160  # prompts


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
    recipe, words = "full" if full else "demo", settings or []
    run = described_run([recipe, *words], run_dir)
    from fledge.base.storage import exists
    from fledge.bench import RELEASED
    from fledge.released import load_head
    from fledge.run.estimate import Calibration
    from fledge.run.pipeline import run_pipeline
    from fledge.run.race import race
    from fledge.run.recipe import RECIPE_NAME, load_recipe

    speeds = Calibration(run)
    with resumable():
        if RELEASED in run.head_urls and not exists(run.url(RECIPE_NAME)):
            race(run.target, load_head(run.target, RELEASED))
        if not full:  # in the same run, whose target is loaded; the user's settings come last
            run.recipe = load_recipe(recipe, [f"prompts.count={prompts_for(run, speeds)}", *words])
        run_pipeline(run, speeds)


def prompts_for(run: Run, speeds: Calibration) -> int:
    """The number of prompts of a run that has begun, else that of which this machine makes a head in time."""
    from fledge.base.console import say
    from fledge.base.storage import exists
    from fledge.run.estimate import prompts_within
    from fledge.run.recipe import RECIPE_NAME, load_recipe

    if exists(run.url(RECIPE_NAME)):
        return load_recipe(run.url(RECIPE_NAME)).prompts.count
    say("timing this machine")
    return min(run.recipe.prompts.count, max(_FEWEST, prompts_within(run, _SECONDS, speeds)))
