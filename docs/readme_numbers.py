"""Keeps README's measured numbers equal to committed results.

<!-- measured: results/demo.json -->
(a table made from that summary.json; of a peers.jsonl: the table of peers; of a ratios.json: its lines)
<!-- /measured -->

<!-- measured in full: results/demo.json -->
(every workload and kind of prompt, requests at once, forwards, machine)
<!-- /measured -->

python docs/readme_numbers.py            write the tables
python docs/readme_numbers.py --check    fail if they differ, as CI does
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fledge.bench import Summary
from fledge.bench.peers.table import peers_table, read_peers
from fledge.bench.ratio import Ratios
from fledge.bench.report.formats import markdown_table
from fledge.bench.results import PLAIN, RELEASED, TRAINED
from fledge.bench.summary import HeadSummary, WorkloadSummary

ROOT = Path(__file__).parent.parent
_COLUMNS = ["prompts", "head", "number", "tau", "plain ms", "ms per token", "speed-up", "95 %", "identical"]
_BLOCK = re.compile(r"(<!-- measured( in full)?: (\S+) -->\n).*?(<!-- /measured -->)", re.DOTALL)


def measured_table(summary: Summary) -> str:
    """What README shows of a result: each head on its workload, and plain decode; of several workloads each one."""
    if summary.overall is not None:
        return markdown_table(_COLUMNS, _rows(summary, "lines")) + "\n"
    name = next(iter(summary.workloads), None)
    heads: dict[str, WorkloadSummary] = {}
    for label, part in _parts(summary).items():
        if name in part.workloads:
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
    if summary.concurrency:
        plain = {
            level.concurrency: level.output_throughput
            for level in summary.concurrency
            if level.engine == PLAIN
        }
        lines = [
            [
                str(level.concurrency),
                {TRAINED: "trained", RELEASED: "shipped"}.get(level.engine, level.engine),
                _number(level.median_tpot_ms, 1),
                _number(level.output_throughput, 0),
                f"{_number(level.output_throughput / plain[level.concurrency])}x",
            ]
            for level in summary.concurrency
            if plain.get(level.concurrency)
        ]
        blocks.append(
            markdown_table(["in flight", "engine", "ms per token", "tokens/s", "over plain"], lines)
        )
    if summary.verify_cost:
        costs = [[f"verify of {rows} rows", _number(ratio)] for rows, ratio in summary.verify_cost.items()]
        costs += [["draft step", _number(summary.draft_step_cost)]] if summary.draft_step_cost else []
        blocks.append(markdown_table([f"forward, context {summary.cost_context}", "plain steps"], costs))
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


def filled(text: str, root: Path = ROOT) -> str:
    """The page with every block made anew."""

    def block(match: re.Match[str]) -> str:
        place = str(root / match[3])
        if place.endswith(".jsonl"):
            return match[1] + markdown_table(*peers_table(read_peers(place))) + "\n" + match[4]
        if place.endswith("ratios.json"):
            ratios = Ratios.model_validate_json(Path(place).read_text("utf-8"))
            return match[1] + markdown_table(*ratios.table) + "\n" + match[4]
        made = full_tables if match[2] else measured_table
        return match[1] + made(Summary.load(place)) + match[4]

    return _BLOCK.sub(block, text)


def _number(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def main() -> None:
    """Write or check README.md and docs/."""
    wrong = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text("utf-8")
        made = filled(text)
        if made != text:
            wrong.append(str(path.relative_to(ROOT)))
            if "--check" not in sys.argv:
                path.write_text(made, "utf-8")
    if wrong and "--check" in sys.argv:
        raise SystemExit(
            f"{', '.join(wrong)}: numbers differ from the results; run python docs/readme_numbers.py"
        )


if __name__ == "__main__":
    main()
