"""Charts of the report as SVG files of their own, as README and documentation show them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from fledge.bench.report.charts import HEIGHT, WIDTH
from fledge.bench.report.render import read_template

_FONT = "DejaVu Sans"
_LEGEND_LEFT = 44
_TITLE_HEIGHT = 26.0
_LINE = 26.0  # height of a title, a row of the legend, a note


def standalone(
    panels: Sequence[str],
    legend: Sequence[tuple[str, str]] = (),
    *,
    title: str = "",
    note: str = "",
) -> str:
    """Drawings with everything the page normally supplies: colours, titles, a legend, a note below.

    Each drawing's description is its title; several are arranged in two columns, with a common title. They lie on a
    background of their own, and their colours follow the reader's scheme.
    """
    columns = min(len(panels), 2)
    size = 11 if columns == 1 else 14  # font size; an image of two columns is displayed smaller
    width, top = columns * WIDTH, _LINE if title else 0.0
    parts = [_line(title, top - 8, "title")] if title else []
    for place, panel in enumerate(panels):
        x, y = place % columns * WIDTH, top + place // columns * (HEIGHT + _TITLE_HEIGHT)
        head, _, body = panel.partition(">")
        if described := re.search(r'aria-label="([^"]*)"', head):
            parts.append(_line(described[1], y + _TITLE_HEIGHT - 8, "title", x))
        box = f'x="{x:.0f}" y="{y + _TITLE_HEIGHT:.0f}" width="{WIDTH:.0f}" height="{HEIGHT:.0f}"'
        parts.append(f"{head.replace('<svg ', f'<svg {box} ', 1)}>{body}")
    height = top + -(-len(panels) // columns) * (HEIGHT + _TITLE_HEIGHT)
    if len(legend) > 1:
        left, height = _LEGEND_LEFT, height + _LINE
        for style, name in legend:
            wide = 30 + round(6 / 11 * size * len(name))
            if left + wide > width:
                left, height = _LEGEND_LEFT, height + _LINE
            box = f'x="{left}" y="{height - 18:.0f}" width="10" height="10" rx="2"'
            parts.append(f'<rect class="column {style}" {box}/>')
            parts.append(_line(escape(name), height - 9, "name", left + 15 - _LEGEND_LEFT))
            left += wide
    if note:
        height += _LINE
        parts.append(_line(escape(note), height - 9, "name note"))
    ground = f'<rect class="ground" width="{width:.0f}" height="{height:.0f}" rx="8"/>'
    view = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {view}>'
    return f"{svg}<style>{_rules(size)}</style>{ground}{''.join(parts)}</svg>"


def _line(text: str, y: float, style: str, x: float = 0.0) -> str:
    return f'<text class="{style}" x="{x + _LEGEND_LEFT:.0f}" y="{y:.0f}">{text}</text>'


def _rules(size: int) -> str:
    """The style sheet's rules that a drawing needs, with the variables of the light and the dark page filled in."""
    css = read_template("report.css")
    light, _, dark_part = css.partition("@media (prefers-color-scheme: dark)")
    rules = _coloured(css, light)
    rules += f"@media (prefers-color-scheme:dark){{{_coloured(css, dark_part.partition('@media')[0])}}}"
    return rules + (
        f"text{{font-family:{_FONT},sans-serif;font-size:{size}px;text-anchor:middle}}"
        ".value{font-size:9.5px}.end{text-anchor:end}.start,.title,.name{text-anchor:start}.title,.mark{font-weight:600}"
        ".line{fill:none;stroke-width:2.4;stroke-linejoin:round}.s-faint{stroke-width:1}.dot{stroke-width:1.6}"
        ".whisker,.ring{stroke-width:1.4}.ring{fill:none}.across{stroke-dasharray:4 3}"
    )


def _coloured(css: str, root: str) -> str:
    variables = dict(re.findall(r"(--[\w-]+): ([^;]+);", root))
    series = re.findall(r"\.(s-\w+) \{ --series: var\((--[\w-]+)\); \}", css)
    rules = [f".{name}.line,.{name}.whisker{{stroke:{variables[colour]}}}" for name, colour in series]
    rules += [f".{name}.dot,.{name}.column{{fill:{variables[colour]}}}" for name, colour in series]
    rules += [
        f"text{{fill:{variables['--soft']}}}.mark,.title{{fill:{variables['--ink']}}}.ring{{stroke:{variables['--ink']}}}",
        f".grid{{stroke:{variables['--grid']}}}.base{{stroke:{variables['--faint']}}}.across{{stroke:{variables['--soft']}}}",
        f".dot{{stroke:{variables['--card']}}}.ground{{fill:{variables['--card']}}}",
    ]
    return "".join(rules)
