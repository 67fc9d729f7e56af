"""The report as Markdown, and its charts as PNG files, for slides, tickets and papers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from fledge.bench.report.charts import HEIGHT, WIDTH
from fledge.bench.report.facts import ReportFacts
from fledge.bench.report.formats import markdown_table, number, percent
from fledge.bench.report.page import Page
from fledge.bench.report.render import read_template
from fledge.errors import StorageError
from fledge.storage import join, write_atomic

_SCALE = 3  # pixels for each unit of a drawing
_FONT = "DejaVu Sans"
_LEGEND_LEFT = 44
_TITLE_HEIGHT = 26.0


def write_exports(folder: str, facts: ReportFacts, kinds: Sequence[str]) -> list[str]:
    """Write `report.md` (md) and `charts/*.png` (png); returns what was written."""
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
    found = {
        "tpot": page.tpot_chart,
        "throughput": page.throughput_chart,
        "ttft": page.ttft_chart,
        "acceptance": page.depth_chart,
        "verify": page.verify_chart,
    }
    if page.served is not None:
        found |= {
            f"served-{chart.title.lower().replace(' ', '-')}": chart.svg for chart in page.served.charts
        }
    for view in page.training:
        name = re.sub(r"\W+", "-", view.label.lower())
        found |= {f"loss-{name}": view.loss, f"tau-{name}": view.tau}
    return {name: drawing for name, drawing in found.items() if drawing}


def _legend(page: Page, drawing: str) -> list[tuple[str, str]]:
    """(style, name) of the engines that a drawing shows."""
    known = [(page.naming.styles[name], page.naming.labels[name]) for name in page.engines]
    if page.served is not None and any(chart.svg == drawing for chart in page.served.charts):
        known = page.served.legend
    return [
        (style, name)
        for style, name in known
        if f'"line {style}"' in drawing or f'"column {style}"' in drawing
    ]


def png(drawing: str, legend: Sequence[tuple[str, str]] = ()) -> bytes:
    """A chart on a white ground, in the colours of the light page, its legend below."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise StorageError("PNG files need resvg-py; run `pip install resvg-py`") from error
    return bytes(svg_to_bytes(svg_string=standalone(drawing, legend), zoom=_SCALE, background="white"))


def standalone(drawing: str, legend: Sequence[tuple[str, str]] = ()) -> str:
    """A drawing that carries what the page gives it: rules with their variables filled in, a title and a legend."""
    css = read_template("report.css")
    variables = dict(re.findall(r"(--[\w-]+): ([^;]+);", css.partition("@media")[0]))
    series = dict(re.findall(r"\.(s-\w+) \{ --series: var\((--[\w-]+)\); \}", css))
    rules = [f".{name}.line{{stroke:{variables[colour]}}}" for name, colour in series.items()]
    rules += [f".{name}.dot,.{name}.column{{fill:{variables[colour]}}}" for name, colour in series.items()]
    rules += [
        f"text{{font-family:{_FONT};font-size:11px;fill:{variables['--soft']};text-anchor:middle}}",
        ".end{text-anchor:end}.value{font-size:9.5px}.line{fill:none;stroke-width:2.4;stroke-linejoin:round}",
        f".s-faint{{stroke-width:1}}.grid{{stroke:{variables['--grid']}}}.base{{stroke:{variables['--faint']}}}",
        ".dot{stroke:#fff;stroke-width:1.6}",
    ]
    head, _, rest = drawing.partition(">")
    height = HEIGHT + _TITLE_HEIGHT
    if title := re.search(r'aria-label="([^"]*)"', head):
        rest = f'<text class="title" x="{_LEGEND_LEFT}" y="-8">{title[1]}</text>{rest}'
        rules.append(".title{text-anchor:start;font-size:12px;font-weight:600}")
    if len(legend) > 1:
        marks, x = "", _LEGEND_LEFT
        for style, name in legend:
            marks += (
                f'<rect class="column {style}" x="{x}" y="{HEIGHT + 8:.0f}" width="10" height="10" rx="2"/>'
            )
            marks += f'<text class="name" x="{x + 15}" y="{HEIGHT + 17:.0f}">{escape(name)}</text>'
            x += 30 + 6 * len(name)
        rules.append(".name{text-anchor:start}")
        height += 26
        rest = rest.replace("</svg>", f"{marks}</svg>")
    head = head.replace(f"0 0 {WIDTH:.0f} {HEIGHT:.0f}", f"0 -{_TITLE_HEIGHT:.0f} {WIDTH:.0f} {height:.0f}")
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return f"{head}><style>{''.join(rules)}</style>{rest}"


def markdown(page: Page) -> str:
    """The report's tables and sentences."""
    parts = [f"# {page.target}: {page.headline}"]
    bench = page.facts.bench
    if bench is not None:
        machine = bench.machine.accelerator or bench.machine.cpu
        parts.append(
            f"{bench.subject.dtype} on {machine}, {bench.machine.cores} cores; {bench.options.decoding}; "
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
    if page.shapes:
        parts.append("## Trees used")
        parts += [
            f"- {view.name}, {view.note}: " + ", ".join(f"{bar.label} {bar.text}" for bar in view.bars)
            for view in page.shapes
        ]
    if bench is not None and bench.plain is not None and bench.plain.limit_ms_per_token:
        share = bench.plain.limit_ms_per_token / bench.plain.ms_per_token
        parts.append(f"Plain decode runs at {percent(share)} of what the memory's bandwidth allows.")
    if page.facts.commands:
        commands = "\n".join(page.facts.commands)
        parts += ["## Commands", f"```\n{commands}\n```"]
    return "\n\n".join(parts) + "\n"
