"""What a server counts about speculation, read from its Prometheus page before and after a level.

vLLM counts drafts and tokens (`vllm:spec_decode_*_total`), so a level's own acceptance is a difference of two readings.
SGLang only shows a recent mean (`sglang:spec_accept_length`). fledge's server has both names, and tells besides where
the time of its rounds went (`fledge:phase_seconds_total`).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?\s+([-+.\deEinfINFnaN]+)")
_POSITION = re.compile(r'position="(\d+)"')
_PHASE = re.compile(r'phase="(\w+)"')
_DRAFTS = ("spec_decode_num_drafts_total", "spec_decode_num_drafts")
_TOKENS = ("spec_decode_num_draft_tokens_total", "spec_decode_num_draft_tokens")
_ACCEPTED = ("spec_decode_num_accepted_tokens_total", "spec_decode_num_accepted_tokens")
_BY_POSITION = ("spec_decode_num_accepted_tokens_per_pos_total", "spec_decode_num_accepted_tokens_per_pos")


@dataclass(frozen=True)
class Reading:
    """One reading of a server's counters; None where it has no such counter."""

    drafts: float | None = None
    draft_tokens: float | None = None
    accepted: float | None = None
    by_position: Mapping[int, float] | None = None
    accept_length: float | None = None  # SGLang's gauge
    rounds: float | None = None  # fledge's
    phases: Mapping[str, float] = field(default_factory=dict)  # fledge's: seconds by phase of a round


@dataclass(frozen=True)
class Speculation:
    """What happened between two readings."""

    tau: float
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted: int | None = None
    by_position: tuple[float, ...] = ()  # [d - 1]: share of drafts whose accepted path reached depth d
    phase_ms: Mapping[str, float] = field(default_factory=dict)  # mean per round, where the server tells

    def figures(self) -> dict[str, Any]:
        """The fields of a result row."""
        row: dict[str, Any] = {"accept_length": self.tau, "spec_decode_acceptance_length": self.tau}
        if self.drafts is not None and self.draft_tokens and self.accepted is not None:
            row |= {
                "spec_decode_num_drafts": self.drafts,
                "spec_decode_draft_tokens": self.draft_tokens,
                "spec_decode_accepted_tokens": self.accepted,
                "spec_decode_acceptance_rate": 100
                * self.accepted
                / self.draft_tokens,  # percent, as vLLM has it
                "spec_decode_per_position_acceptance_rates": list(self.by_position),
            }
        return row | ({"phase_ms_per_round": dict(self.phase_ms)} if self.phase_ms else {})


def parse_metrics(text: str) -> Reading:
    """The counters of a Prometheus page. Several engines' samples of one name add up."""
    sums: dict[str, float] = {}
    positions: dict[int, float] = {}
    gauges: list[float] = []
    phases: dict[str, float] = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        full, labels, value = match[1], match[2] or "", float(match[3])
        if not math.isfinite(value):  # nothing was counted yet
            continue
        name = full.rpartition(":")[2]
        if name in _BY_POSITION and (position := _POSITION.search(labels)):
            positions[int(position[1])] = positions.get(int(position[1]), 0.0) + value
        elif full == "fledge:phase_seconds_total" and (phase := _PHASE.search(labels)):
            phases[phase[1]] = phases.get(phase[1], 0.0) + value
        elif name == "spec_accept_length":
            gauges.append(value)
        else:
            sums[name] = sums.get(name, 0.0) + value
    return Reading(
        drafts=_first(sums, _DRAFTS),
        draft_tokens=_first(sums, _TOKENS),
        accepted=_first(sums, _ACCEPTED),
        by_position=positions or None,
        accept_length=sum(gauges) / len(gauges) if gauges else None,
        rounds=sums.get("rounds_total"),
        phases=phases,
    )


def between(before: Reading, after: Reading) -> Speculation | None:
    """What the server did between two readings; None if it doesn't speculate or doesn't tell."""
    drafts, accepted = _grown(before.drafts, after.drafts), _grown(before.accepted, after.accepted)
    if drafts and accepted is not None:
        was = before.by_position or {}
        by_position = {
            place: count - was.get(place, 0.0) for place, count in (after.by_position or {}).items()
        }
        tokens = _grown(before.draft_tokens, after.draft_tokens)
        return Speculation(
            tau=1 + accepted / drafts,
            drafts=round(drafts),
            draft_tokens=round(tokens) if tokens is not None else None,
            accepted=round(accepted),
            by_position=tuple(by_position[place] / drafts for place in sorted(by_position)),
            phase_ms=_phase_ms(before, after),
        )
    if after.accept_length:
        return Speculation(tau=after.accept_length, phase_ms=_phase_ms(before, after))
    return None


def _phase_ms(before: Reading, after: Reading) -> dict[str, float]:
    rounds = _grown(before.rounds, after.rounds)
    if not rounds:
        return {}
    return {
        name: 1e3 * (value - before.phases.get(name, 0.0)) / rounds for name, value in after.phases.items()
    }


async def read_counters(session: aiohttp.ClientSession, url: str) -> Reading:
    """The server's counters now; an empty reading where there is no such page."""
    try:
        async with session.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=10)) as response:
            return parse_metrics(await response.text()) if response.status == 200 else Reading()
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError):  # noqa: UP041
        return Reading()


def _first(sums: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((sums[name] for name in names if name in sums), None)


def _grown(before: float | None, after: float | None) -> float | None:
    return None if after is None else after - (before or 0.0)
