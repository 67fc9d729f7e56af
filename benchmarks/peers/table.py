"""The table of peers: medians over the repeats, each against fledge's plain decode in the same block."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median

from benchmarks.peers.run import PeerOptions, PeerRow, PeersFound
from fledge.base.console import plural
from fledge.base.storage import join, read_bytes, write_atomic, write_json
from fledge.bench.machine import machine_facts, versions
from fledge.bench.report.formats import ABSENT, Table, interval, markdown_table, number, times
from fledge.bench.results import write_rows
from fledge.bench.statistics import compare_paired, range_note

_BASELINE = ("fledge", "plain")
_COLUMNS = ["engine", "mode", "in flight", "TPOT ms", "tokens/s", "over fledge plain", "95 %"]
_COLUMNS += ["as its plain", "as fledge"]


def peers_table(peers: PeersFound) -> Table:
    """A line per engine, mode and concurrency, the fastest first."""
    keys = dict.fromkeys((row.concurrency, row.peer, row.mode) for row in peers.rows)
    rows: list[tuple[int, float, list[str]]] = []
    for level, peer, mode in keys:
        block = _select(peers.rows, level, peer, mode)
        speed = median(row.throughput for row in block)
        tpots = [row.tpot_ms for row in block if row.tpot_ms is not None]
        base = _select(peers.rows, level, *_BASELINE)
        over = [ABSENT, ABSENT]
        if base:
            ratio = compare_paired([r.throughput for r in base], [r.throughput for r in block]).ratio
            over = [times(ratio.value), interval(ratio.low, ratio.high)]
        first = block[0]  # greedy answers don't change from repeat to repeat
        same = [
            ABSENT if count is None else f"{count} of {first.answers}"
            for count in (first.own, first.identical)
        ]
        tpot = number(median(tpots) if tpots else None, 2)
        cells = [first.version, mode, str(level), tpot, number(speed), *over, *same]
        rows.append((level, -speed, cells))
    return Table(_COLUMNS, [cells for *_, cells in sorted(rows)])


def peers_notes(peers: PeersFound) -> list[str]:
    """Where another engine beats fledge's best mode, which peers are missing, and a caveat for few repeats."""
    repeats = 1 + max((row.repeat for row in peers.rows), default=0)
    return [*_behind(peers), *peers.missing, *range_note(repeats)]


def write_peers(folder: str, peers: PeersFound) -> None:
    """Write `peers.jsonl` and `peers.md`, with options, machine and versions."""
    write_rows(join(folder, "peers.jsonl"), map(asdict, peers.rows))
    machine = machine_facts()
    setting = {"options": peers.options.model_dump(), "machine": machine.model_dump(), "versions": versions()}
    write_json(join(folder, "peers.json"), setting)
    notes = "".join(f"- {line}\n" for line in peers_notes(peers))
    cores, length = plural(machine.cores, "core"), peers.options.max_tokens
    setup = f"{machine.cpu}, {cores}; interleaved, greedy, {length} new tokens"
    page = f"Peers on {setup}.\n\n{markdown_table(*peers_table(peers))}\n\n{notes}"
    write_atomic(join(folder, "peers.md"), page.encode())


def read_peers(path: str) -> PeersFound:
    """The rows of a `peers.jsonl`, to rebuild its table."""
    rows = [PeerRow(**json.loads(line)) for line in read_bytes(path).decode().splitlines()]
    return PeersFound(rows, [], PeerOptions(target="", head=None))


def _select(rows: Sequence[PeerRow], level: int, peer: str, mode: str) -> list[PeerRow]:
    return sorted(
        (row for row in rows if (row.concurrency, row.peer, row.mode) == (level, peer, mode)),
        key=lambda row: row.repeat,
    )


def _behind(peers: PeersFound) -> list[str]:
    notes = []
    for level in dict.fromkeys(row.concurrency for row in peers.rows):
        best: dict[str, float] = {}
        for row in peers.rows:
            if row.concurrency == level:
                rows = _select(peers.rows, level, row.peer, row.mode)
                best[row.peer] = max(best.get(row.peer, 0.0), median(one.throughput for one in rows))
        fledge = best.get("fledge")
        ahead = [
            f"{peer} {times(speed / fledge)}" for peer, speed in best.items() if fledge and speed > fledge
        ]
        if ahead:
            notes.append(
                f"{level} in flight: ahead of fledge are {', '.join(ahead)}; the report of a "
                "benchmark of this target shows where a round's time goes"
            )
    return notes
