"""What a load test sends, and how hard."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fledge.errors import DataError

_OBJECTIVES = ("ttft", "tpot", "itl", "e2e")


@dataclass(frozen=True)
class Objective:
    """A service level objective in milliseconds; a request that misses any of them isn't goodput."""

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None  # the request's own 99th percentile
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Objective:
        """`ttft:500,tpot:50`."""
        values: dict[str, float] = {}
        for part in text.split(","):
            name, _, limit = part.strip().partition(":")
            if name not in _OBJECTIVES or not _is_positive(limit):
                raise DataError(
                    f"{part.strip()!r} is not an objective; write milliseconds such as ttft:500,tpot:50 "
                    f"(of {', '.join(_OBJECTIVES)})"
                )
            values[name] = float(limit)
        return cls(**values)


@dataclass(frozen=True)
class LoadOptions:
    """One load test. `rates` makes it open loop (Poisson); otherwise `concurrency` requests are kept in flight."""

    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16)
    rates: tuple[float, ...] = ()  # requests per second; inf: all at once
    requests: int = 0  # per level; 0: two per slot, and at least 8; in an open loop 32
    max_tokens: int = 128
    temperature: float = 0.0
    ignore_eos: bool = False  # SGLang, vLLM and fledge know it; others refuse it
    repeats: int = 2  # of each level, alternating between servers
    warmup: int = 2  # requests before the first level
    seed: int = 0  # of the Poisson arrivals
    timeout_s: float = 600.0  # of one request
    slo: Objective | None = None
    price_per_hour: float | None = None  # of one server's machine, for the cost of a million output tokens
    model: str | None = None  # to ask for; None: the first that each server names
    # Ask for the number of tokens with every chunk (vLLM's continuous_usage_stats); None: where the warm-up is answered
    token_counts: bool | None = None

    def __post_init__(self) -> None:
        numbers = {"max_tokens": self.max_tokens, "repeats": self.repeats}
        numbers |= {"concurrency": min(self.concurrency, default=1)}
        for name, value in numbers.items():
            if value < 1:
                raise DataError(f"{name} is {value}; give at least 1")
        none: dict[str, float] = {"requests": self.requests, "warmup": self.warmup}
        none["temperature"] = self.temperature
        for name, least in none.items():
            if not 0 <= least < math.inf:
                raise DataError(f"{name} is {least}; give at least 0")
        if not all(rate > 0 for rate in self.rates):  # NaN isn't, either
            raise DataError("a request rate must be above 0; leave it out for a closed loop")
        if self.price_per_hour is not None and not 0 < self.price_per_hour < math.inf:
            raise DataError(f"the price of an hour is {self.price_per_hour}; give a number above 0")
        if not self.concurrency and not self.rates:
            raise DataError("there is no level to measure; give --concurrency or --rate")

    def requests_at(self, concurrency: int | None) -> int:
        """Requests of one level."""
        return self.requests or max(8, 2 * (concurrency or 16))


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
