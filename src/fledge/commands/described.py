"""The run that a command's arguments describe: its recipe, and the folder it is in."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from fledge.run.folder import Run

DEFAULT_RUN_DIR = "runs/demo"


@contextmanager
def resumable() -> Iterator[None]:
    """On Ctrl-C, say how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on from there (evaluate and bench start over)", err=True)
        raise


def described_run(
    settings: list[str] | None,
    run_dir: str | None,
    extra: list[str] | None = None,
    heads: list[str] | None = None,
    ray: str | None = None,
    actors: int = 2,
) -> Run:
    """The run described by the arguments: first a recipe, unless the first one is a setting."""
    from fledge.run.recipe import load_recipe

    words = list(settings or [])
    has_recipe = bool(words) and "=" not in words[0]
    named = words.pop(0) if has_recipe else None
    folder = run_dir or _default_folder(named)
    source = named or _own_recipe(folder)
    if words and not has_recipe:
        small = ", a small one" if source == "demo" else ""
        typer.echo(f"no recipe was named: these settings change the recipe {source}{small}", err=True)
    recipe = load_recipe(source, [*words, *(extra or [])])
    # Only now, since these import torch: a misspelt key is refused at once.
    from fledge.data.ray_map import RayOptions
    from fledge.run.folder import Run

    gpus = int(recipe.target.device.startswith("cuda"))
    cluster = RayOptions(ray, actors, gpus) if ray is not None else None
    command = shlex.join(["fledge", *sys.argv[1:]])
    return Run(recipe, folder, command=command, given_heads=heads or (), ray=cluster)


def _default_folder(recipe: str | None) -> str:
    """`runs/my` for `my.yaml`; a run's own recipe.yaml is named after the run's folder."""
    if recipe is None:
        return DEFAULT_RUN_DIR
    path = PurePath(recipe)
    name = path.parent.name if path.name == "recipe.yaml" and path.parent.name else path.stem
    return f"runs/{name}"


def _own_recipe(run_dir: str) -> str:
    """The recipe the run was made with; the demo's for a new run."""
    from fledge.base.storage import exists, join
    from fledge.run.recipe import RECIPE_NAME

    saved = join(run_dir, RECIPE_NAME)
    return saved if exists(saved) else "demo"
