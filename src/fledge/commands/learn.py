"""`fledge learn`: the heads that `fledge serve --learn` has learnt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

learn_app = typer.Typer(help="Heads that a server has learnt.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--learn-folder", help="as in `fledge serve`")]
_DEFAULT = Path("learned")


@learn_app.command("list")
def list_(folder: Folder = _DEFAULT) -> None:
    """Show the versions, each with its tau on held-out traffic and that of the head before it."""
    from fledge.learn import Versions

    versions = Versions(folder)
    serves, pinned = versions.to_serve(), versions.pinned()
    for card in versions.cards():
        notes = ["rolled back"] if card.rolled_back else []
        notes += ["pinned"] if card.number == pinned else []
        notes += ["served next"] if card.number == serves else []
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(card.created))
        interval = f"{card.low:+.2f} to {card.high:+.2f}" if card.low is not None else "-"
        typer.echo(
            f"{card.number:6d}  {when}  tau {card.before:.2f} -> {card.tau:.2f} ({interval})  "
            f"{card.steps:,} steps, {card.tokens:,} tokens  {', '.join(notes)}".rstrip()
        )
    if not versions.cards():
        typer.echo(f"{folder} holds no versions yet")


@learn_app.command()
def pin(
    version: Annotated[str, typer.Argument(help="a version's number, or none: the newest again")],
    folder: Folder = _DEFAULT,
) -> None:
    """Serve this version and no other; a running server changes within seconds."""
    from fledge.base.errors import HeadError
    from fledge.learn import Versions

    if version != "none" and not version.isdecimal():
        raise HeadError(f"{version!r} is no version; give a number of `fledge learn list`, or none")
    Versions(folder).pin(None if version == "none" else int(version))


@learn_app.command()
def export(
    destination: Annotated[str, typer.Argument(help="folder to write; of gguf a file")],
    target: Annotated[str, typer.Option(help="the target that the server serves")],
    form: Annotated[str, typer.Option(help="as in `fledge export`")] = "gguf",
    dtype: Annotated[str, typer.Option(help="as in `fledge export`")] = "keep",
    version: Annotated[
        int | None, typer.Option(help="a version's number; by default the one served next")
    ] = None,
    folder: Folder = _DEFAULT,
) -> None:
    """Write a learnt head in the form that an engine loads: of llama.cpp unless --form names another."""
    from fledge.base.errors import HeadError
    from fledge.deploy.exchange import export_head
    from fledge.learn import Versions

    versions = Versions(folder)
    number = versions.to_serve() if version is None else version
    if number is None:
        raise HeadError(f"{folder} holds no version to serve; `fledge learn list` shows what there is")
    versions.load(number)
    export_head(str(versions.path(number)), destination, form=form, target=target, dtype=dtype)
