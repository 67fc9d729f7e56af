"""`fledge deploy`: a target and its head on a cloud service."""

from __future__ import annotations

import os
from typing import Annotated

import typer

deploy_app = typer.Typer(help="Put a target and its head on a cloud service.", no_args_is_help=True)


@deploy_app.command()
def vertex(
    project: Annotated[str, typer.Option(help="Google Cloud project")],
    region: Annotated[str, typer.Option(help="such as us-central1")],
    image: Annotated[str, typer.Option(help="container image with fledge and the engine")],
    target: Annotated[str, typer.Option(help="hub id, or a folder in the image")],
    head: Annotated[str, typer.Option(help="gs:// folder, hub id, or a folder in the image")],
    name: Annotated[str, typer.Option(help="display name of model and endpoint")] = "fledge",
    engine: Annotated[str, typer.Option(help="sglang, vllm or fledge")] = "sglang",
    machine_type: Annotated[str, typer.Option(help="machine type on Vertex AI")] = "a3-highgpu-1g",
    accelerator: Annotated[
        str, typer.Option(help="Vertex AI's AcceleratorType, or none")
    ] = "NVIDIA_H100_80GB",
    accelerator_count: Annotated[int, typer.Option(help="accelerators per replica")] = 1,
    min_replicas: Annotated[int, typer.Option(help="fewest replicas")] = 1,
    max_replicas: Annotated[int, typer.Option(help="most replicas")] = 1,
    service_account: Annotated[
        str | None, typer.Option(help="account that may read the head's bucket")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE for the server, or NAME to pass on your own, such as HF_TOKEN; repeatable"
        ),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="make the calls; otherwise they are printed")] = False,
) -> None:
    """Upload the model and deploy an endpoint on Vertex AI; a dry run without --run."""
    from fledge.deploy.vertex import VertexOptions, deploy_vertex, parse_environment

    options = VertexOptions(
        project=project,
        region=region,
        image=image,
        target=target,
        head=head,
        name=name,
        engine=engine,
        machine_type=machine_type,
        accelerator=None if accelerator == "none" else accelerator,
        accelerator_count=accelerator_count,
        min_replicas=min_replicas,
        max_replicas=max_replicas,
        service_account=service_account,
        environment=parse_environment(env or (), os.environ),
    )
    deploy_vertex(options, run=run)
