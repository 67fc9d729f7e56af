"""A server's counters of speculation, read from its Prometheus page before and after a level.

vLLM counts drafts and tokens (`vllm:spec_decode_*_total`), so a level's acceptance is the difference of two readings.
SGLang only exposes a recent mean (`sglang:spec_accept_length`). fledge's server has both names. Since its rounds often
have no draft, it also counts rounds and their tokens (`fledge:request_rounds_total`, `fledge:round_tokens_total`).
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

import aiohttp

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?\s+([-+.\deEinfINFnaN]+)")
_LABEL = re.compile(r'\bposition="(\w+)"')
_GAUGE = "spec_accept_length"  # SGLang's
_DRAFTS, _ACCEPTED = "spec_decode_num_drafts", "spec_decode_num_accepted_tokens"
_BY_POSITION = f"{_ACCEPTED}_per_pos "

# By name, without the engine's prefix and `_total`; followed by the position of a sample.
Reading = Mapping[str, float]


@dataclass(frozen=True)
class Speculation:
    """Changes between two readings."""

    tau: float
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted: int | None = None
    by_position: tuple[float, ...] = ()  # [d - 1]: share of drafts whose accepted path reached depth d

    def figures(self) -> dict[str, Any]:
        """The fields of a result row."""
        row: dict[str, Any] = {"accept_length": self.tau, "spec_decode_acceptance_length": self.tau}
        if self.drafts and self.draft_tokens and self.accepted is not None:
            row |= {
                "spec_decode_acceptance_length": 1 + self.accepted / self.drafts,
                "spec_decode_num_drafts": self.drafts,
                "spec_decode_draft_tokens": self.draft_tokens,
                "spec_decode_accepted_tokens": self.accepted,
                # percent, as vLLM has it
                "spec_decode_acceptance_rate": 100 * self.accepted / self.draft_tokens,
                "spec_decode_per_position_acceptance_rates": list(self.by_position),
            }
        return row


def parse_metrics(text: str) -> Reading:
    """The counters of a Prometheus page. Samples of one name from several engines are summed; the gauge is averaged."""
    sums: defaultdict[str, float] = defaultdict(float)
    gauges: list[float] = []
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or not math.isfinite(value := float(match[3])):  # NaN: nothing counted yet
            continue
        name = match[1].rpartition(":")[2].removesuffix("_total")
        if name == _GAUGE:
            gauges.append(value)
        else:
            label = _LABEL.search(match[2] or "")
            sums[f"{name} {label[1]}" if label else name] += value
    return {**sums, _GAUGE: mean(gauges)} if gauges else sums


def between(before: Reading, after: Reading) -> Speculation | None:
    """The server's activity between two readings; None if it doesn't speculate or doesn't count it."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    drafts, accepted = grown.get(_DRAFTS), grown.get(_ACCEPTED)
    if rounds := grown.get("request_rounds"):
        tau: float | None = grown["round_tokens"] / rounds
    elif drafts and accepted is not None:
        tau = 1 + accepted / drafts
    else:
        tau = after.get(_GAUGE)
    if not tau:
        return None

    def as_int(name: str) -> int | None:
        return round(grown[name]) if name in grown else None

    depths = sorted(int(name.removeprefix(_BY_POSITION)) for name in grown if name.startswith(_BY_POSITION))
    return Speculation(
        tau=tau,
        drafts=as_int(_DRAFTS),
        draft_tokens=as_int("spec_decode_num_draft_tokens"),
        accepted=as_int(_ACCEPTED),
        by_position=tuple(grown[f"{_BY_POSITION}{depth}"] / drafts for depth in depths) if drafts else (),
    )


async def read_counters(session: aiohttp.ClientSession, url: str) -> Reading:
    """The server's current counters; an empty reading without such a page."""
    try:
        async with session.get(f"{url}/metrics", timeout=aiohttp.ClientTimeout(total=10)) as response:
            return parse_metrics(await response.text()) if response.status == 200 else {}
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError):  # noqa: UP041
        return {}
