"""`fledge bench server`; `fledge bench` alone is `fledge bench engine`, which is in main.py with the other stages."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fledge.base.errors import RecipeError, did_you_mean
from fledge.bench.load.options import LoadOptions
from fledge.commands.options import Flags, with_flags

_DEFAULT = "engine"

TargetOption = Annotated[str, typer.Option(help="folder, hub id, GGUF file or package")]


class DefaultCommand(TyperGroup):
    """A group whose first command is the default."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing and not args:  # shell completion
            return super().parse_args(ctx, args)
        if "--help" not in args[:1] and (not args or args[0] not in self.commands):
            self._refuse_misspelt(args[0] if args else "")
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelt(self, word: str) -> None:
        from fledge.run.recipe import shipped_recipes

        shipped = shipped_recipes()
        if not word.isalpha() or word in shipped or Path(word).exists():
            return
        similar = did_you_mean(word, [*self.commands, *shipped])
        hint = similar or f"; use one of {', '.join(sorted(self.commands))}"
        raise RecipeError(f"`fledge bench` has no command {word!r}, nor is it a recipe{hint}")


bench_app = typer.Typer(
    cls=DefaultCommand,
    help="Measure this engine (the default) or servers.",
)


_LOAD = Flags(LoadOptions, "Load")


@bench_app.command("server")
@with_flags(_LOAD)
def bench_server(
    server: Annotated[
        list[str],
        typer.Option(help="NAME=http://host:port of a running server; repeatable, the baseline first"),
    ],
    workload: Annotated[
        str, typer.Option(help="fledge's own set (mixed, code, ...), dataset:NAME, or a file")
    ] = "mixed",
    prompts: Annotated[int | None, typer.Option(help="take this many prompts of it at most")] = None,
    run_dir: Annotated[str, typer.Option(help="folder for load/ and report.html")] = "runs/load",
    **given: Any,
) -> None:
    """Measure OpenAI-compatible servers, and compare them with the first."""
    from fledge.base.console import StageProgress
    from fledge.base.storage import join, refuse_unwritable
    from fledge.bench.load.run import run_load
    from fledge.bench.load.servers import parse_servers
    from fledge.bench.workloads import find_workload
    from fledge.run.closing import REPORT_NAME, close_load, keep_load

    options = _LOAD.made(given)
    refuse_unwritable(join(run_dir, REPORT_NAME))
    chosen = find_workload(workload).limited(prompts)
    with StageProgress("load") as progress:
        result = run_load(
            parse_servers(server),
            chosen,
            options,
            progress=progress.update,
            ended_early=lambda partial: keep_load(partial, run_dir),
        )
    close_load(result, run_dir, shlex.join(["fledge", *sys.argv[1:]]))
