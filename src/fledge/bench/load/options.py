"""Options of a load test."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fledge.base.errors import DataError
from fledge.base.options import Flag, Options, Switch
from fledge.bench.options import Count, CountOrNone, Levels, NotNegative


class LoadOptions(Options):
    """One load test: a closed loop at each `concurrency`."""

    error = DataError

    concurrency: Annotated[Levels, Flag(metavar="N,N,...")] = Field(
        (1, 2, 4, 8, 16), description="requests in flight, level after level"
    )
    requests: CountOrNone = Field(0, description="requests per level; 0: two per slot, at least 8")
    max_tokens: Count = Field(128, description="longest answer")
    temperature: NotNegative = Field(0.0, description="0 is greedy")
    ignore_eos: Switch = Field(
        False, description="let each answer be max-tokens long; SGLang, vLLM and fledge can, others reject it"
    )
    repeats: Count = Field(
        2, description="repeats of each level, servers in turn; 8 or more tell small differences from noise"
    )
    warmup: CountOrNone = Field(2, description="requests sent beforehand and not counted")
    timeout_s: Annotated[float, Flag(hidden=True)] = Field(600.0, description="seconds of one request")
    model: str | None = Field(
        None, description="name of the model; by default the first that each server names"
    )
    token_counts: Annotated[Switch | None, Flag(default="of servers that know it")] = Field(
        None, description="request the number of tokens with every chunk, for true TPOTs and ITLs"
    )

    def requests_at(self, concurrency: int) -> int:
        """Requests of one level."""
        return self.requests or max(8, 2 * concurrency)
