"""The report as Markdown, and its charts as PNG files, for slides, tickets and papers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec

from fledge.base.console import plural
from fledge.base.errors import StorageError
from fledge.base.storage import join, write_atomic
from fledge.bench.report.charts import HEIGHT, WIDTH
from fledge.bench.report.facts import ReportFacts
from fledge.bench.report.formats import markdown_table, number, percent
from fledge.bench.report.page import Page
from fledge.bench.report.render import read_template

_SCALE = 3  # pixels per drawing unit
_FONT = "DejaVu Sans"
_LEGEND_LEFT = 44
_TITLE_HEIGHT = 26.0
_LINE = 26.0  # height of a title, a row of the legend, a note


def check_kinds(kinds: Sequence[str]) -> None:
    """Raise a StorageError for an unknown kind of export, or PNG files without their library, before any work."""
    unknown = sorted(set(kinds) - {"md", "png"})
    if unknown:
        raise StorageError(f"can't export {unknown[0]!r}; write --export md or --export png")
    if "png" in kinds and find_spec("resvg_py") is None:
        raise StorageError('PNG files need resvg-py; run pip install "fledge[png]"')


def write_exports(folder: str, facts: ReportFacts, kinds: Sequence[str]) -> list[str]:
    """Write `report.md` (md) and `charts/*.png` (png); returns the URLs written."""
    check_kinds(kinds)
    page = Page(facts)
    written = []
    if "md" in kinds:
        written.append(join(folder, "report.md"))
        write_atomic(written[-1], markdown(page).encode())
    if "png" in kinds:
        for name, drawing in charts(page).items():
            written.append(join(folder, "charts", f"{name}.png"))
            write_atomic(written[-1], png(drawing, _legend(page, drawing)))
    return written


def charts(page: Page) -> dict[str, str]:
    """Every drawing of the page by name."""
    drawings = {
        "throughput-over-plain": page.gain_chart,
        "tpot": page.tpot_chart,
        "ttft": page.ttft_chart,
        "acceptance": page.depth_chart,
        "verify": page.verify_chart,
    }
    if page.served is not None:
        drawings |= {
            f"served-{chart.title.lower().replace(' ', '-')}": chart.svg for chart in page.served.charts
        }
    for view in page.training:
        name = re.sub(r"\W+", "-", view.label.lower())
        drawings |= {f"loss-{name}": view.loss, f"tau-{name}": view.tau}
    return {name: drawing for name, drawing in drawings.items() if drawing}


def _legend(page: Page, drawing: str) -> list[tuple[str, str]]:
    """(style, name) of the engines in a drawing."""
    engines = [(page.naming.styles[name], label) for name, label in page.naming.labels.items()]
    if page.served is not None and any(chart.svg == drawing for chart in page.served.charts):
        engines = page.served.legend
    return [
        (style, name)
        for style, name in engines
        if f'"line {style}"' in drawing or f'"column {style}"' in drawing
    ]


def png(drawing: str, legend: Sequence[tuple[str, str]] = ()) -> bytes:
    """A chart on a white background, in the colours of the light page, with its legend below."""
    from resvg_py import svg_to_bytes

    return bytes(svg_to_bytes(svg_string=standalone(drawing, legend), zoom=_SCALE, background="white"))


def standalone(
    drawing: str | Sequence[str],
    legend: Sequence[tuple[str, str]] = (),
    *,
    title: str = "",
    note: str = "",
    dark: bool = False,
) -> str:
    """One or several drawings with everything the page normally supplies: colours, titles, a legend, a note below.

    Each drawing's description is its title; several are arranged in two columns, with a common title. `dark`: on its
    own background, with colours that follow the reader's scheme.
    """
    panels = [drawing] if isinstance(drawing, str) else drawing
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
    ground = f'<rect class="ground" width="{width:.0f}" height="{height:.0f}" rx="8"/>' if dark else ""
    view = f'viewBox="0 0 {width:.0f} {height:.0f}"' + (f' width="{width:.0f}"' if dark else "")
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {view}>'
    return f"{svg}<style>{_rules(dark, size)}</style>{ground}{''.join(parts)}</svg>"


def _line(text: str, y: float, style: str, x: float = 0.0) -> str:
    return f'<text class="{style}" x="{x + _LEGEND_LEFT:.0f}" y="{y:.0f}">{text}</text>'


def _rules(dark: bool, size: int) -> str:
    """The style sheet's rules that a drawing needs, with the variables filled in; with `dark`, also the dark page's."""
    css = read_template("report.css")
    light, _, dark_part = css.partition("@media (prefers-color-scheme: dark)")
    rules = _coloured(css, light)
    if dark:
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


def markdown(page: Page) -> str:
    """The report's tables and sentences."""
    parts = [f"# {page.target}: {page.headline}"]
    bench = page.facts.bench
    if bench is not None:
        machine = bench.machine.accelerator or bench.machine.cpu
        parts.append(
            f"{bench.subject.dtype} on {machine}, {plural(bench.machine.cores, 'core')}; {bench.options.decoding}; "
            f"{page.facts.created}"
        )
    if page.workload_table.rows:
        parts += ["## Speed-up by workload", markdown_table(*page.workload_table)]
    if page.level_table.rows:
        parts += ["## Under load", markdown_table(*page.level_table)]
    if bench is not None and page.costs:
        price = number(bench.options.price_per_hour, 2)
        rows = [[group.name, bar.label, bar.text] for group in page.costs for bar in group.bars]
        table = markdown_table(["load", "engine", "cost"], rows)
        parts += [f"## Cost per million output tokens at {price} an hour", table]
    if page.served is not None:
        parts += ["## Served over HTTP", page.served.intro, markdown_table(*page.served.table)]
        parts += [f"- {line}" for line in (*page.served.verdicts, *page.served.notes)]
    if page.limits:
        parts.append("## What limits the speed-up next")
        for view in page.limits:
            parts += [
                f"**{view.name[:1].upper()}{view.name[1:]}.** {view.note}",
                markdown_table(["if", "speed-up"], [[bar.label, bar.text] for bar in view.bars]),
            ]
    if page.shape_table.rows:
        parts += ["## Trees used, share of rounds by depth", markdown_table(*page.shape_table)]
    if bench is not None and bench.plain is not None and bench.plain.limit_ms_per_token:
        share = bench.plain.limit_ms_per_token / bench.plain.ms_per_token
        parts.append(f"Plain decode runs at {percent(share)} of what the memory's bandwidth allows.")
    if page.facts.commands:
        commands = "\n".join(page.facts.commands)
        parts += ["## Commands", f"```\n{commands}\n```"]
    return "\n\n".join(parts) + "\n"
