"""Options of serving with another engine."""

from __future__ import annotations

import sys
from typing import Annotated

from pydantic import Field

from fledge.base.child import http_url
from fledge.base.errors import EngineError
from fledge.base.options import Flag, Whole
from fledge.server.options import ListenOptions


class LaunchOptions(ListenOptions):
    """Options of another engine's server, whose `draft_tokens` are nodes verified at once, the root included."""

    error = EngineError

    steps: Whole = Field(3, description="tokens drafted in a row")
    topk: Whole = Field(1, description="children per node; 1 is a chain, all that vLLM supports")
    draft_tokens: Whole | None = Field(
        None, description="nodes verified at once (sglang); left out, steps + 1, or 8 for a tree"
    )
    python: Annotated[str, Flag(default="this one")] = Field(
        sys.executable, description="an interpreter that has that engine"
    )
    arguments: Annotated[tuple[str, ...], Flag(names=("--argument",))] = Field(
        (), description="passed to that engine unchanged; repeatable"
    )
    ready_seconds: Annotated[float, Flag(hidden=True)] = Field(
        1800.0, description="seconds in which the engine must be ready"
    )

    @property
    def url(self) -> str:
        """The engine's URL as seen from here."""
        return http_url({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), self.port)
