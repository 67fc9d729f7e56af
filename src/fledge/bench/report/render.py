"""Fills the page templates: autoescaped HTML with inline style."""

from __future__ import annotations

from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fledge.base.console import plural
from fledge.bench.report import formats


def read_template(name: str) -> str:
    """A file of `templates/`."""
    return (resources.files("fledge.bench.report") / "templates" / name).read_text(encoding="utf-8")


def render(template: str, **values: Any) -> str:
    """The template as a complete page."""
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "number": formats.number,
        "times": formats.times,
        "percent": formats.percent,
        "clock": formats.clock,
        "plural": plural,
        "svg": Markup,  # charts.py escapes what it is given
    }
    page = environment.from_string(read_template(template))
    return page.render(style=Markup(read_template("report.css")), **values)
