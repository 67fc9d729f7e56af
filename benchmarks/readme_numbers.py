"""Keeps README's measured numbers and charts equal to committed results.

<!-- measured: results/demo.json -->
(a table made from that summary.json; of a peers.jsonl: the table of peers; of a ratios.json: its lines)
<!-- /measured -->

<!-- measured in full: results/demo.json -->
(every workload and kind of prompt, requests at once, machine)
<!-- /measured -->

<!-- chart: docs/never-slower.svg -->
(the picture, at this place as the page sees it, and a sentence that says what it was made from)
<!-- /chart -->

docs/never-slower.svg is drawn from the newest results/*ratios*.json, written by `benchmarks.ratios --only levels`;
never-slower-simulated.svg from results/simulated.json, public-prompts.svg from results/given-files*.json and
engines.svg from results/peers.jsonl.

python -m benchmarks.readme_numbers            write the tables and the charts
python -m benchmarks.readme_numbers --check    fail if they differ, as CI does
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from pydantic import BaseModel

from benchmarks.drawing import standalone
from benchmarks.peers.run import PeersFound
from benchmarks.peers.table import peers_table, read_peers
from benchmarks.ratios.line import Ratios
from fledge.base.console import plural
from fledge.bench import Summary
from fledge.bench.report.charts import HEIGHT, WIDTH
from fledge.bench.report.formats import markdown_table, times
from fledge.bench.report.gains import Gains, gain_chart, lowest
from fledge.bench.report.speed import Naming
from fledge.bench.results import RANDOM, RELEASED, TRAINED
from fledge.bench.statistics import Interval
from fledge.bench.summary import HeadSummary, WorkloadSummary

ROOT = Path(__file__).parent.parent
MEASURED, SIMULATED = "never-slower.svg", "never-slower-simulated.svg"
PROMPTS, ENGINES = "public-prompts.svg", "engines.svg"
_TITLE = "Throughput over plain decode"
_STYLES = {"good": "s-released", "poor": "s-trained", "random": "s-random"}
_NAMES = {"good": "good head", "poor": "poor head", "random": "random head"}
_COLUMNS = ["prompts", "head", "number", "tau", "plain ms", "ms per token", "speed-up", "95 %", "identical"]
_CHART = re.compile(r"(<!-- chart: (\S+) -->\n).*?(<!-- /chart -->)", re.DOTALL)
_BLOCK = re.compile(r"(<!-- measured( in full)?: (\S+) -->\n).*?(<!-- /measured -->)", re.DOTALL)


def measured_table(summary: Summary) -> str:
    """What README shows of a result: plain decode and each head, as they are served; of several workloads each one."""
    if summary.overall is not None:
        return markdown_table(_COLUMNS, _rows(summary, "lines")) + "\n"
    name = next(iter(summary.workloads), None)
    heads: dict[str, WorkloadSummary] = {}
    for label, part in _parts(summary).items():
        if name in part.workloads and part is not summary.without_lookup:
            heads[label] = part.workloads[name]
    if not heads:
        raise SystemExit("the result holds no workload; measure with `fledge bench`")
    first = next(iter(heads.values()))
    lines = [
        ["tokens per verify, tau", "1", *(_number(one.tau) for one in heads.values())],
        [
            "median ms per token",
            _number(first.tpot_plain_ms, 1),
            *(_number(o.tpot_ms, 1) for o in heads.values()),
        ],
        ["median speed-up", "1", *(f"{_number(one.speedup)}x" for one in heads.values())],
        [
            "95 % interval",
            "",
            *(f"{_number(o.speedup_low)} to {_number(o.speedup_high)}" for o in heads.values()),
        ],
        ["identical to plain decode", "", *(f"{one.identical} of {one.prompts}" for one in heads.values())],
    ]
    return markdown_table(["", "plain decode", *heads], lines) + "\n"


def full_tables(summary: Summary) -> str:
    """All of a result: by workload and kind of prompt, by requests at once, forwards, and where it was measured."""
    blocks = [markdown_table(_COLUMNS, _rows(summary, "lines", "categories"))]
    lines = [
        [
            str(level.concurrency),
            {TRAINED: "trained", RELEASED: "shipped"}.get(level.engine, level.engine),
            _number(level.median_tpot_ms, 1),
            _number(level.output_throughput, 0),
            f"{_number(level.ratio)}x",
            f"{_number(level.ratio_low)} to {_number(level.ratio_high)}",
        ]
        for level in summary.concurrency
        if level.ratio is not None
    ]
    if lines:
        columns = ["in flight", "engine", "ms per token", "tokens/s", "over plain", "interval"]
        blocks.append(markdown_table(columns, lines))
    machine, bandwidth = summary.machine, summary.bandwidth
    blocks.append(
        f"{machine.cpu}, {machine.cores} cores ({', '.join(machine.flags)}), {machine.memory_gib:.0f} GiB"
        + (f", reading {bandwidth.best_gb_s:.0f} GB/s at best" if bandwidth else "")
        + f"; {', '.join(f'{name} {version}' for name, version in summary.versions.items())}."
    )
    return "\n\n".join(block.strip("\n") for block in blocks) + "\n"


def _parts(summary: Summary) -> dict[str, HeadSummary]:
    """By what the tables call them. A result of the shipped head alone has no other."""
    shipped_only = summary.head == RELEASED
    parts: dict[str, HeadSummary | None] = {
        "shipped head" if shipped_only else "head trained in the demo": summary,
        "the same without prompt lookup": summary.without_lookup,
    }
    if not shipped_only:
        parts["shipped head"] = summary.released
    return {label: part for label, part in parts.items() if part is not None}


def _rows(summary: Summary, *kinds: str) -> list[list[str]]:
    parts = _parts(summary)
    return [
        _row(name, label, found)
        for kind in kinds
        for name in dict.fromkeys(name for part in parts.values() for name in getattr(part, kind))
        for label, part in parts.items()
        if (found := getattr(part, kind).get(name)) is not None
    ]


def _row(name: str, label: str, found: WorkloadSummary) -> list[str]:
    return [
        name.replace("_", " "),
        label,
        str(found.prompts),
        _number(found.tau),
        _number(found.tpot_plain_ms, 1),
        _number(found.tpot_ms, 1),
        f"{_number(found.speedup)}x",
        f"{_number(found.speedup_low)} to {_number(found.speedup_high)}",
        f"{found.identical} of {found.prompts}",
    ]


class Simulated(BaseModel):
    """results/simulated.json: throughput over plain decode by device, head and requests at once."""

    command: str
    date: str
    note: str
    devices: dict[str, dict[str, dict[int, float]]]


class Chart(NamedTuple):
    """A picture, and what the pages say of it."""

    svg: str
    sentence: str
    title: str = _TITLE


def charts(root: Path = ROOT) -> dict[str, Chart]:
    """The charts that the results allow, by file name."""
    found = {}
    every = [
        Ratios.model_validate_json(path.read_text("utf-8"))
        for path in sorted(root.glob("results/*ratios*.json"))
    ]
    levels = [ratios for ratios in every if ratios.gains]
    if levels:
        found[MEASURED] = _measured_chart(max(levels, key=lambda ratios: ratios.date))
    simulated = root / "results" / "simulated.json"
    if simulated.exists():
        found[SIMULATED] = _simulated_chart(Simulated.model_validate_json(simulated.read_text("utf-8")))
    summaries = [Summary.load(str(path)) for path in sorted(root.glob("results/given-files*.json"))]
    if summaries:
        found[PROMPTS] = _prompts_chart(summaries)
    peers = root / "results" / "peers.jsonl"
    if peers.exists():
        found[ENGINES] = _engines_chart(read_peers(str(peers)))
    return found


def _measured_chart(ratios: Ratios) -> Chart:
    kinds = {"head": "good", "poor head": "poor", RANDOM: "random"}
    gains = {kinds[head]: points for head, points in ratios.gains.items()}
    machine = (
        f"{ratios.machine.cores} cores of {ratios.machine.accelerator or ratios.machine.cpu}, {ratios.date}"
    )
    head, level, ratio = lowest(gains)
    command = f" (`{ratios.command}`)" if ratios.command else ""
    point = (
        f"The lowest point, {times(ratio)}, is that of the {_NAMES[head]} with {plural(level, 'request')}."
    )
    return Chart(_drawn({_TITLE: gains}, note=machine), f"On {machine}{command}. {point}")


def _simulated_chart(simulated: Simulated) -> Chart:
    devices: dict[str, Gains] = {
        device: {
            head: {level: Interval(ratio, ratio, ratio, 1) for level, ratio in sorted(points.items())}
            for head, points in heads.items()
        }
        for device, heads in simulated.devices.items()
    }
    ratio, device, head, level = min(
        (ratio, device, head, level)
        for device, gains in devices.items()
        for head, level, ratio in [lowest(gains)]
    )
    sentence = (
        f"Simulated, not measured (`{simulated.command}`, {simulated.date}). The lowest point, {times(ratio)}, is that "
        f"of the {_NAMES[head]} on {device} with {plural(level, 'request')}."
    )
    return Chart(
        _drawn(devices, f"Simulated, not measured: {_TITLE.lower()}", f"{simulated.note}, {simulated.date}"),
        sentence,
    )


def _prompts_chart(summaries: Sequence[Summary]) -> Chart:
    """Speed-ups of the shipped head on public prompts, a bar per machine."""
    styles = ("s-trained", "s-released", "s-third", "s-fourth")
    machines = {style: summary.machine for style, summary in zip(styles, summaries, strict=False)}
    legend = [
        (style, f"{machine.cpu}, {'with' if 'amx_bf16' in machine.flags else 'without'} AMX")
        for style, machine in machines.items()
    ]
    bars = [
        Bar(name.replace("_", " "), line.speedup, times(line.speedup), style)
        for name in summaries[0].lines
        for style, summary in zip(styles, summaries, strict=False)
        if (line := summary.lines.get(name)) is not None and line.speedup is not None
    ]
    title = "Speed-up of the shipped head"
    svg = standalone([_bar_chart(bars, title)], legend, note="one request at a time, greedy, bf16")
    return Chart(svg + "\n", "The tables, with machines and dates, are in the [lab](lab/results.md).", title)


def _engines_chart(peers: PeersFound) -> Chart:
    """Tokens per second of each engine's faster mode, one request at a time."""
    speeds: dict[tuple[str, str], list[float]] = {}
    for row in peers.rows:
        if row.concurrency == 1:
            speeds.setdefault((row.peer, row.mode), []).append(row.throughput)
    best: dict[str, tuple[float, str]] = {}
    for (peer, mode), found in speeds.items():
        best[peer] = max(best.get(peer, (0.0, "")), (median(found), mode))
    bars = [
        Bar(f"{peer}, {mode}", speed, f"{speed:.0f}", "s-released" if peer == "fledge" else "s-plain")
        for peer, (speed, mode) in sorted(best.items(), key=lambda item: -item[1][0])
    ]
    title = "Tokens per second, one request at a time"
    svg = standalone([_bar_chart(bars, title)], note="same weights and prompts, each in its faster mode")
    return Chart(
        svg + "\n", "The table, with machine and date, is in the [lab](lab/benchmarks.md#peers).", title
    )


class Bar(NamedTuple):
    """A bar with its label on the left and its value behind it."""

    label: str
    value: float
    text: str
    style: str


def _bar_chart(bars: Sequence[Bar], description: str) -> str:
    """Horizontal bars; of neighbours with the same label only the first shows it."""
    left, step = 126.0, HEIGHT / len(bars)
    scale = (WIDTH - left - 48) / max(bar.value for bar in bars)
    parts = []
    for place, bar in enumerate(bars):
        middle = (place + 0.5) * step
        if place == 0 or bars[place - 1].label != bar.label:
            parts.append(f'<text class="end" x="{left - 8:.0f}" y="{middle + 4:.1f}">{bar.label}</text>')
        box = f'x="{left:.0f}" y="{middle - 0.38 * step:.1f}" height="{0.76 * step:.1f}"'
        parts.append(f'<rect class="column {bar.style}" {box} width="{bar.value * scale:.1f}" rx="2"/>')
        parts.append(
            f'<text class="start" x="{left + bar.value * scale + 6:.1f}" y="{middle + 4:.1f}">{bar.text}</text>'
        )
    return f'<svg viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" role="img" aria-label="{description}">{"".join(parts)}</svg>'


def _drawn(panels: dict[str, Gains], title: str = "", note: str = "") -> str:
    naming = Naming(_NAMES, _STYLES)
    drawings = [gain_chart(gains, naming, description) for description, gains in panels.items()]
    shown = dict.fromkeys(head for gains in panels.values() for head in gains)
    legend = [(_STYLES[head], _NAMES[head]) for head in shown]
    return standalone(drawings, legend, title=title, note=note) + "\n"


def filled(text: str, root: Path = ROOT) -> str:
    """The page with every block made anew."""
    drawn = charts(root)

    def chart(match: re.Match[str]) -> str:
        made = drawn.get(match[2].rpartition("/")[2])
        return match[1] + (f"![{made.title}]({match[2]})\n\n{made.sentence}\n" if made else "") + match[3]

    def block(match: re.Match[str]) -> str:
        place = str(root / match[3])
        if place.endswith(".jsonl"):
            return match[1] + markdown_table(*peers_table(read_peers(place))) + "\n" + match[4]
        if "ratios" in Path(place).name:
            ratios = Ratios.model_validate_json(Path(place).read_text("utf-8"))
            return match[1] + markdown_table(*ratios.table) + "\n" + match[4]
        made = full_tables if match[2] else measured_table
        return match[1] + made(Summary.load(place)) + match[4]

    return _CHART.sub(chart, _BLOCK.sub(block, text))


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def main() -> None:
    """Write or check README.md and docs/."""
    wanted = {ROOT / "docs" / name: chart.svg for name, chart in charts().items()}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        wanted[path] = filled(path.read_text("utf-8"))
    wrong = [path for path, made in wanted.items() if not path.exists() or path.read_text("utf-8") != made]
    if wrong and "--check" in sys.argv:
        names = ", ".join(str(path.relative_to(ROOT)) for path in wrong)
        raise SystemExit(f"{names}: not what the results say; run python -m benchmarks.readme_numbers")
    for path in wrong:
        path.write_text(wanted[path], "utf-8")


if __name__ == "__main__":
    main()
