"""`fledge make-head`: from a model and chats to a head, by the recipe make-head and what the arguments set in it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fledge.base.errors import RecipeError
from fledge.commands.described import described_run, resumable
from fledge.sources.find import run_folder

_RECIPE = "make-head"


def make_head(
    target: Annotated[str, typer.Argument(help="GGUF file, folder, hub id or package", metavar="TARGET")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="settings such as train.minutes=60", show_default=False
        ),
    ] = None,
    chats: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            metavar="CHATS",
            help="your chats: an export of ChatGPT, Open WebUI, LM Studio and others (also zipped), a log, a folder; "
            "repeatable. Left out: the target writes all prompts itself",
            show_default=False,
        ),
    ] = None,
    prompts: Annotated[
        int, typer.Option(min=2, help="prompts in all: the target writes what the chats lack")
    ] = 1200,
    run_dir: Annotated[
        str | None,
        typer.Option(help="folder or fsspec URL of the run", show_default="runs/ and the target's name"),
    ] = None,
) -> None:
    """Make a head for your model from your chats.

    Says first what the chats give and what it will cost. The same command goes on where it was stopped.
    """
    if wrong := [word for word in settings or () if "=" not in word]:
        raise RecipeError(f"{wrong[0]!r} is not a setting; name chats with --from {wrong[0]}")
    made = [f"target.model={json.dumps(target, ensure_ascii=False)}", f"prompts.count={prompts}"]
    if chats:
        made.append(f"prompts.sources={json.dumps(_sources(chats), ensure_ascii=False)}")
    run = described_run([_RECIPE, *made, *(settings or [])], run_dir or run_folder(target))
    from fledge.run.chats import say_what_chats_give
    from fledge.run.pipeline import run_pipeline

    with resumable():
        say_what_chats_give(run)
        run_pipeline(run)


def _sources(chats: list[str]) -> list[dict[str, str | float]]:
    """The chats, all that there are, then the target."""
    yours: list[dict[str, str | float]] = [{"path": path, "licence": "own"} for path in chats]
    return [*yours, {"kind": "self", "weight": 1e-9}]
