"""Options of a load test."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from fledge.base.errors import DataError
from fledge.bench.options import Count, CountOrNone, NotNegative, Positive


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Objective:
    """A service level objective in milliseconds; a request that misses any of them isn't goodput."""

    ttft: Positive | None = None
    tpot: Positive | None = None
    itl: Positive | None = None  # the request's own 99th percentile
    e2e: Positive | None = None

    @classmethod
    def parse(cls, text: str) -> Objective:
        """`ttft:500,tpot:50`."""
        try:
            parts = (part.split(":") for part in text.split(","))
            return cls(**{name.strip(): float(limit) for name, limit in parts})
        except ValueError as error:
            raise DataError(
                f"{text!r} is not an objective; write milliseconds such as ttft:500,tpot:50 (of ttft, tpot, itl, e2e)"
            ) from error


@dataclass(frozen=True)
class LoadOptions:
    """One load test: open loop (Poisson) at these `rates` if there are any, else closed loop at each `concurrency`."""

    concurrency: tuple[Count, ...] = (1, 2, 4, 8, 16)
    rates: tuple[Annotated[float, Field(gt=0)], ...] = ()  # requests per second; inf: all at once
    requests: CountOrNone = 0  # per level; 0: two per slot, and at least 8; in an open loop 32
    max_tokens: Count = 128
    temperature: NotNegative = 0.0
    ignore_eos: bool = False  # supported by SGLang, vLLM and fledge; others reject it
    repeats: Count = 2  # of each level, alternating between servers
    warmup: CountOrNone = 2  # requests before the first level
    seed: int = 0  # of the Poisson arrivals
    timeout_s: float = 600.0  # of one request
    slo: Objective | None = None
    price_per_hour: Positive | None = None  # of one server's machine, for the cost of a million output tokens
    model: str | None = None  # requested model; None: the first that each server lists
    # Request the number of tokens with every chunk (vLLM's continuous_usage_stats); None: if the warm-up is answered
    token_counts: bool | None = None
    fresh: bool = False  # restart each server for every block
    ready_timeout_s: float = 600.0  # of a started server

    @model_validator(mode="after")
    def _some_level(self) -> LoadOptions:
        if not self.concurrency and not self.rates:
            raise ValueError("there is no level to measure; give --concurrency or --rate")
        return self

    def requests_at(self, concurrency: int | None) -> int:
        """Requests of one level."""
        return self.requests or max(8, 2 * (concurrency or 16))
