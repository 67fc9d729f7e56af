"""What `config.json` says of RoPE, in the forms that any version of transformers wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fledge.base.errors import TargetError

SUPPORTED_SCALING = ("default", "linear", "llama3", "yarn")


def read_rope(raw: Mapping[str, Any], positions: int) -> tuple[float, dict[str, Any] | None]:
    """RoPE base and scaling, as transformers reads them from what any of its versions wrote.

    `positions` is what yarn and llama3 count from where nothing is named, whatever window caps the context.
    """
    parameters = _rope_parameters(raw)
    theta = float(parameters.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    kind = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
    for name in ("type", "partial_rotary_factor"):  # the latter is read by `rotary_share`
        parameters.pop(name, None)
    if kind == "default":
        return theta, None
    named = raw.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
    original = parameters["original_max_position_embeddings"] = named or positions
    if kind == "yarn" and parameters.get("factor") is None:
        parameters["factor"] = positions / original
    return theta, {"rope_type": kind, **parameters}


def rotary_share(raw: Mapping[str, Any]) -> float:
    """The part of a head's dimensions that RoPE rotates."""
    named = _rope_parameters(raw).get("partial_rotary_factor") or raw.get("partial_rotary_factor")
    return float(named or 1.0)


def _rope_parameters(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `rope_scaling`, or of `rope_parameters`, as transformers 5 calls it; of one for each kind of layer, the
    full attention's."""
    parameters = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if isinstance(parameters, Mapping):
        parameters = parameters.get("full_attention", parameters)
    if not isinstance(parameters, Mapping):
        raise TargetError(f"config.json has RoPE parameters {parameters!r}: download the model again")
    return dict(parameters)
