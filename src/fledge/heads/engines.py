"""Which targets SGLang and vLLM can draft for with EAGLE-3: `engines.yaml`, read before GPU-days are spent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict


class EngineTargets(BaseModel):
    """What one version of an engine can't draft for, and how that is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str
    read: str
    source: str
    refuses: dict[str, str]  # architecture: why


@cache
def engine_targets() -> Mapping[str, EngineTargets]:
    """The table, by engine."""
    text = resources.files("fledge.heads").joinpath("engines.yaml").read_text(encoding="utf-8")
    table = yaml.load(text, Loader=yaml.BaseLoader)
    return {engine: EngineTargets.model_validate(row) for engine, row in table.items()}


def refusal(engine: str, architecture: str) -> str:
    """Why an engine can't draft for targets of this architecture, in a sentence; empty if it can or isn't known to."""
    known = engine_targets().get(engine)
    if known is None or architecture not in known.refuses:
        return ""
    return (
        f"{engine} {known.version} can't draft with EAGLE-3 for {architecture}: {known.refuses[architecture]} "
        f"(read on {known.read})"
    )


def refusals(architecture: str) -> list[str]:
    """Those of all engines."""
    return [sentence for engine in engine_targets() if (sentence := refusal(engine, architecture))]
