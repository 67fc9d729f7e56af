"""`fledge plan`: predict before renting."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from fledge.bench.plan.options import PlanOptions
from fledge.commands.options import Flags, with_flags

_ASSUMED = Flags(PlanOptions, "Assumptions")


@with_flags(_ASSUMED)
def plan(
    model: Annotated[str, typer.Argument(help="the target: a folder, config.json, hub id or package")],
    **given: Any,
) -> None:
    """Predict bytes and the speed-up from a data sheet."""
    from fledge.base.console import print_table, say
    from fledge.bench.plan.predict import make_plan
    from fledge.bench.plan.shape import read_shape
    from fledge.target.resolve import config_place

    place = config_place(model)
    shape = read_shape(place) if place == model else replace(read_shape(place), name=model.rpartition("/")[2])
    prediction = make_plan(shape, _ASSUMED.made(given))
    print_table(prediction.title, *prediction.speed_table)
    print_table("Bytes", *prediction.byte_table)
    say(*prediction.notes)
