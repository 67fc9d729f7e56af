"""Keeps README's measured numbers equal to committed results.

<!-- measured: results/demo.json -->
(a table made from that summary.json; of a peers.jsonl: the table of peers; of a ratios.json: its lines)
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
from fledge.bench.ratios import COLUMNS as RATIO_COLUMNS
from fledge.bench.ratios import Ratios
from fledge.bench.report.exports import table
from fledge.bench.summary import HeadSummary, WorkloadSummary

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"(<!-- measured: (\S+) -->\n).*?(<!-- /measured -->)", re.DOTALL)


def measured_table(summary: Summary) -> str:
    """What README shows of a result: each head on the first workload, and plain decode."""
    name = next(iter(summary.workloads), None)
    heads: dict[str, WorkloadSummary] = {}
    own = HeadSummary(workloads=summary.workloads, categories={})
    parts = {
        "head trained in the demo": own,
        "the same without prompt lookup": summary.without_lookup,
        "shipped head": summary.released,
    }
    for label, part in parts.items():
        if part is not None and name in part.workloads:
            heads[label] = part.workloads[name]
    if not heads:
        raise SystemExit("the result holds no workload; measure with `fledge bench`")
    first = next(iter(heads.values()))
    lines = [
        ["", "plain decode", *heads],
        ["---"] * (2 + len(heads)),
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
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def filled(text: str, root: Path = ROOT) -> str:
    """The page with every block made anew."""

    def block(match: re.Match[str]) -> str:
        place = str(root / match[2])
        if place.endswith(".jsonl"):
            peers = peers_table(read_peers(place))
            return match[1] + table(peers.columns, peers.rows) + "\n" + match[3]
        if place.endswith("ratios.json"):
            ratios = Ratios.model_validate_json(Path(place).read_text("utf-8"))
            return match[1] + table(RATIO_COLUMNS, [line.cells for line in ratios.lines]) + "\n" + match[3]
        return match[1] + measured_table(Summary.load(place)) + match[3]

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
