"""`fledge plan`: predict before renting."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from fledge.commands.bench import InFlight, numbers


def plan(
    model: Annotated[str, typer.Argument(help="the target: a folder, config.json, hub id or package")],
    bandwidth: Annotated[float, typer.Option(help="memory bandwidth of one device, GB/s")],
    tflops: Annotated[float, typer.Option(help="dense bf16 throughput of one device, TFLOP/s")],
    devices: Annotated[int, typer.Option(help="devices that share the model (tensor parallel)")] = 1,
    acceptance: Annotated[
        str, typer.Option(help="by depth: share of rounds whose accepted path reaches it")
    ] = "0.75,0.56,0.42,0.32",
    engine: Annotated[
        str, typer.Option(help="fledge, sglang or vllm: what serves the head; the latter two draft chains")
    ] = "fledge",
    tree: Annotated[
        str,
        typer.Option(help="depth,topk,nodes of the draft tree", show_default="4,4,16, or 3,1,4 for chains"),
    ] = "",
    concurrency: InFlight = "1,2,4,8,16,32,64",
    context: Annotated[int, typer.Option(help="tokens in the KV cache of a request")] = 1024,
    weight_bits: Annotated[float, typer.Option(help="bits of a weight, its share of scales included")] = 16.0,
    efficiency: Annotated[float, typer.Option(help="share of bandwidth and FLOP/s that kernels reach")] = 0.7,
    overhead_us: Annotated[float, typer.Option(help="microseconds of launches per forward and layer")] = 5.0,
    conversations: Annotated[int, typer.Option(help="conversations to train the head on")] = 100_000,
    tokens_each: Annotated[int, typer.Option(help="tokens of a conversation")] = 600,
    draft_vocab: Annotated[int, typer.Option(help="tokens the head can propose")] = 32_000,
) -> None:
    """Predict bytes and the speed-up from a data sheet."""
    from fledge.base.console import print_table, say
    from fledge.bench.options import refused_by_name
    from fledge.bench.plan import PlanOptions, make_plan, read_shape
    from fledge.target.resolve import config_place

    with refused_by_name():
        options = PlanOptions(
            bandwidth_gb_s=bandwidth,
            tflops=tflops,
            devices=devices,
            acceptance=numbers(acceptance, float, "--acceptance"),
            engine=engine,  # type: ignore[arg-type]  # checked by the options
            tree=numbers(tree, int, "--tree") or None,
            concurrency=numbers(concurrency, int, "--concurrency"),
            context=context,
            weight_bits=weight_bits,
            efficiency=efficiency,
            overhead_us=overhead_us,
            conversations=conversations,
            tokens_each=tokens_each,
            draft_vocab=draft_vocab,
        )
    place = config_place(model)
    shape = read_shape(place) if place == model else replace(read_shape(place), name=model.rpartition("/")[2])
    prediction = make_plan(shape, options)
    print_table(prediction.title, *prediction.speed_table)
    print_table("Bytes", *prediction.byte_table)
    say(*prediction.notes)
