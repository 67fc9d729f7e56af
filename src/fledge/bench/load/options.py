"""Options of a load test."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from fledge.bench.options import Count, CountOrNone, Levels, NotNegative


@dataclass(frozen=True)
class LoadOptions:
    """One load test: a closed loop at each `concurrency`."""

    concurrency: Levels = (1, 2, 4, 8, 16)
    requests: CountOrNone = 0  # per level; 0: two per slot, and at least 8
    max_tokens: Count = 128
    temperature: NotNegative = 0.0
    ignore_eos: bool = False  # supported by SGLang, vLLM and fledge; others reject it
    repeats: Count = 2  # of each level, alternating between servers
    warmup: CountOrNone = 2  # requests before the first level
    timeout_s: float = 600.0  # of one request
    model: str | None = None  # requested model; None: the first that each server lists
    # Request the number of tokens with every chunk (vLLM's continuous_usage_stats); None: if the warm-up is answered
    token_counts: bool | None = None

    def requests_at(self, concurrency: int) -> int:
        """Requests of one level."""
        return self.requests or max(8, 2 * concurrency)
