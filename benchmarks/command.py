"""What the command lines of the instruments share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from fledge.base.errors import FledgeError

DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
InFlight = Annotated[str, typer.Option(help="requests in flight")]
HeadOption = Annotated[str, typer.Option(help="the head's folder, or released for the shipped one")]
AnswerTokens = Annotated[int, typer.Option(help="new tokens per answer")]
Repeats = Annotated[int, typer.Option(help="repeats of everything, interleaved")]
Output = Annotated[str, typer.Option(help="where the result goes")]


def run(main: Callable[..., Any]) -> None:
    """Call `main` with the command line. As with `fledge`, expected errors end in one line and exit code 2."""
    try:
        typer.run(main)
    except FledgeError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
