"""Targets that SGLang and vLLM can draft for with EAGLE-3: `engines.yaml`, read before GPU-days are spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

import yaml
from pydantic import BaseModel, ConfigDict

from fledge.target.config import engine_feature_layers


class EngineTargets(BaseModel):
    """Targets that one version of an engine can't draft for, and the evidence."""

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


def sglang_misses(layers: Sequence[int], count: int) -> str:
    """Why SGLang can't give a head these features, counted by output, of a target with `count` layers; empty if it can.

    Its Llama captures what goes into layers; what comes out of the last goes into none. 0 layers: not known.
    """
    if not count or count - 1 not in layers:
        return ""
    return (
        f"the head reads the output of the target's last layer ({count - 1}, counted from 0), which SGLang doesn't "
        "capture: it would end at the first request"
    )


def instead_of_last_layer(count: int) -> str:
    """Remedy for a head that reads the last of `count` layers."""
    others = engine_feature_layers(count) or ((0, max(1, count // 2 - 1), count - 2) if count > 3 else ())
    train = f", or train a head on other layers (target.feature_layers={list(others)})" if others else ""
    return f"serve it with fledge or vLLM (--form vllm){train}"


def refusals(architecture: str) -> list[str]:
    """The refusals of all engines."""
    return [sentence for engine in engine_targets() if (sentence := refusal(engine, architecture))]
