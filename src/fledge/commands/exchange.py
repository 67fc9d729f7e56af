"""The commands that write a head in an engine's form and read one trained elsewhere: `export`, `import`."""

from __future__ import annotations

from typing import Annotated

import typer


def export(
    head: Annotated[str, typer.Argument(help="a head in any known form: folder, URL, hub id, or released")],
    destination: Annotated[str, typer.Argument(help="folder or fsspec URL to write; of gguf a file")],
    form: Annotated[str, typer.Option(help="sglang, specforge, vllm, speculators, eagle or gguf")] = "sglang",
    target: Annotated[
        str | None, typer.Option(help="the head's target, to check it and take facts from")
    ] = None,
    embedding: Annotated[
        bool | None, typer.Option(help="include the target's embedding; by default where the form needs it")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="keep, bfloat16, float16 or float32; of gguf also q8_0, q4_0")
    ] = "keep",
    push: Annotated[str | None, typer.Option(help="also upload it to this hub repository (org/name)")] = None,
) -> None:
    """Write a head in the form that an engine loads."""
    from fledge.deploy.exchange import export_head

    export_head(head, destination, form=form, target=target, embedding=embedding, dtype=dtype, push=push)


def import_(
    source: Annotated[str, typer.Argument(help="a head trained elsewhere: folder, GGUF file, URL or hub id")],
    destination: Annotated[str, typer.Argument(help="folder or fsspec URL to write")],
    target: Annotated[str | None, typer.Option(help="the head's target, to check it against")] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="layers whose outputs it was trained on, if its config is wrong: 1,14,26"),
    ] = None,
) -> None:
    """Read a head that was trained elsewhere."""
    from fledge.deploy.exchange import import_head, parse_layers

    import_head(source, destination, target=target, layers=parse_layers(layers))
