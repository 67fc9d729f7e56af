"""`fledge deploy`: a target and its head on a cloud service."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from fledge.commands.options import Flags, with_flags
from fledge.deploy.vertex_options import VertexOptions

deploy_app = typer.Typer(help="Put a target and its head on a cloud service.", no_args_is_help=True)
_DEPLOYMENT = Flags(VertexOptions, "Deployment")


@deploy_app.command()
@with_flags(_DEPLOYMENT)
def vertex(
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=VALUE for the server, or NAME to pass on your own, such as HF_TOKEN; repeatable"
        ),
    ] = None,
    run: Annotated[bool, typer.Option("--run", help="make the calls; otherwise they are printed")] = False,
    **given: Any,
) -> None:
    """Upload the model and deploy an endpoint on Vertex AI; a dry run without --run."""
    from fledge.deploy.vertex import deploy_vertex, parse_environment

    environment = parse_environment(env or (), os.environ)
    deploy_vertex(_DEPLOYMENT.made(given, environment=environment), run=run)
