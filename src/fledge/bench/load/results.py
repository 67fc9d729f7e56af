"""Results of a load test: rows in other tools' format, and every server against the first.

load.jsonl        one line per server, level and repeat (`metrics.py` lists the fields)
load.json         what was run, the comparisons, machine and versions
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fledge.base.console import plural
from fledge.base.errors import StorageError
from fledge.base.storage import join, read_bytes, read_json, write_json
from fledge.bench.machine import Machine
from fledge.bench.results import write_rows
from fledge.bench.statistics import compare_paired, median_of

Row = Mapping[str, Any]


class Comparison(BaseModel):
    """One server against the baseline at one level: medians over the repeats, and intervals of the ratios."""

    server: str
    concurrency: int
    tpot_ms: float | None
    tpot_baseline_ms: float | None
    speedup: float | None  # baseline's TPOT over this one's
    speedup_low: float | None
    speedup_high: float | None
    tau: float | None
    noise: float | None
    significant: bool
    identical: int  # answers equal to the baseline's, among those of both
    compared: int
    rejected: str | None  # why the row is implausible
    remark: str | None = None  # a caveat about a plausible row


class LoadResult(BaseModel):
    """The complete result of a load test."""

    version: int = 1
    servers: list[str]  # the baseline first
    models: dict[str, str]
    addresses: dict[str, str]
    workload: str
    options: dict[str, Any]
    comparisons: list[Comparison]
    machine: Machine
    versions: dict[str, str]
    notes: list[str] = []
    rows: list[dict[str, Any]] = []

    def save(self, folder: str) -> None:
        """Write both files; load.json last, so that its existence implies a complete result."""
        write_rows(join(folder, "load.jsonl"), self.rows)
        write_json(join(folder, "load.json"), self.model_dump(exclude={"rows"}))

    @classmethod
    def load(cls, folder: str) -> LoadResult:
        """Read a saved result."""
        value = read_json(join(folder, "load.json"))
        try:
            lines = read_bytes(join(folder, "load.jsonl")).splitlines()
            rows = [json.loads(line) for line in lines if line]
            return cls.model_validate({**value, "rows": rows})
        except (ValidationError, KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"{folder} holds no load test ({error}); run `fledge bench server` again"
            ) from error


def compare_levels(
    rows: Sequence[Row], servers: Sequence[str], same: Mapping[tuple[str, int], tuple[int, int]]
) -> list[Comparison]:
    """Every server against the first one, level by level. `same`: (equal, compared) answers by server and level."""
    levels = list(dict.fromkeys(row["max_concurrency"] for row in rows))
    return [
        compare_level(rows, servers[0], server, level, same.get((server, level), (0, 0)))
        for level in levels
        for server in servers[1:]
        if _repeats(rows, servers[0], level).keys() & _repeats(rows, server, level).keys()  # ended early
    ]


def compare_level(
    rows: Sequence[Row],
    baseline: str,
    server: str,
    level: int,
    same: tuple[int, int],
) -> Comparison:
    """One server against the baseline at one level, paired by repeat."""
    here = {name: _repeats(rows, name, level) for name in (baseline, server)}
    blocks = sorted(here[baseline].keys() & here[server].keys())
    plain, other = ([here[name][block] for block in blocks] for name in (baseline, server))
    tpots = [(a["median_tpot_ms"], b["median_tpot_ms"]) for a, b in zip(plain, other, strict=True)]
    timed = [(a, b) for a, b in tpots if a and b]
    paired = compare_paired([b for _, b in timed], [a for a, _ in timed]) if timed else None
    tau = median_of(row.get("accept_length") for row in other)
    speedup = paired.ratio.value if paired else None
    return Comparison(
        server=server,
        concurrency=level,
        tpot_ms=median_of(b for _, b in timed),
        tpot_baseline_ms=median_of(a for a, _ in timed),
        speedup=speedup,
        speedup_low=paired.ratio.low if paired else None,
        speedup_high=paired.ratio.high if paired else None,
        tau=tau,
        noise=paired.noise if paired and paired.ratio.count > 1 else None,
        significant=bool(paired and paired.significant),
        identical=same[0],
        compared=same[1],
        rejected=reason_to_reject(plain, other, speedup),
        remark=_remark(speedup, tau),
    )


def reason_to_reject(plain: Sequence[Row], other: Sequence[Row], speedup: float | None) -> str | None:
    """Why a level's ratio is implausible; None if it is plausible."""
    failed = sum(row["failed"] for row in (*plain, *other))
    if failed:
        return f"{plural(failed, 'request')} failed: {'; '.join(_errors((*plain, *other)))}"
    if speedup is None:
        return "no answer is long enough to have a time per output token"
    tokens = [sum(row["total_output_tokens"] for row in part) for part in (plain, other)]
    if min(tokens) < 0.8 * max(tokens):
        return f"the servers wrote {tokens[0]} and {tokens[1]} tokens: they didn't do the same work"
    return None


def _remark(speedup: float | None, tau: float | None) -> str | None:
    """A speed-up above tau isn't due to the head alone, since a round costs at least a plain step."""
    if speedup is None or tau is None or not 1.0 < tau < speedup:
        return None
    return (
        f"speed-up {speedup:.2f} exceeds tau {tau:.2f}, so another engine or other weights have their share in it; "
        "if both are the same, the baseline was disturbed"
    )


def _repeats(rows: Iterable[Row], server: str, level: int) -> dict[int, Row]:
    return {
        row["repeat"]: row for row in rows if row["backend"] == server and row["max_concurrency"] == level
    }


def _errors(rows: Iterable[Row]) -> list[str]:
    return sorted({error for row in rows for error in row.get("errors", [])})[:2]
