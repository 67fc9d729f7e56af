"""RoPE settings in `config.json`, in the forms that any version of transformers wrote.

A ValueError says what is wrong; who reads the file adds whose it is and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_REQUIRED = {  # numbers without which there is no table of a type
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "frequency_factors": ("factors",),  # ours: of GGUF files, where no other type gives these factors
}
_OPTIONAL = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # yarn's
SUPPORTED_SCALING = tuple(_REQUIRED)


def read_rope(raw: Mapping[str, Any], positions: int) -> tuple[float, dict[str, Any] | None]:
    """RoPE base and scaling, as transformers reads them from what any of its versions wrote.

    `positions` is what yarn and llama3 count from where nothing is named, whatever window caps the context.
    """
    kind, parameters = rope_parameters(raw)
    theta = float(parameters.pop("rope_theta", None) or raw.get("rope_theta") or 10000.0)
    for name in ("rope_type", "type", "partial_rotary_factor"):  # the last is read by `rotary_share`
        parameters.pop(name, None)
    if kind == "default":
        return theta, None
    named = raw.get("original_max_position_embeddings") or parameters.get("original_max_position_embeddings")
    original = parameters["original_max_position_embeddings"] = named or positions
    if kind == "yarn" and parameters.get("factor") is None:
        parameters["factor"] = positions / original
    _check(kind, parameters)
    return theta, {"rope_type": kind, **parameters}


def _check(kind: str, parameters: Mapping[str, Any]) -> None:
    for name in _REQUIRED.get(kind, ()):
        if parameters.get(name) is None:
            raise ValueError(f"the {kind} RoPE scaling has no {name}")
        values = parameters[name] if name == "factors" else [parameters[name]]
        for value in values:
            _positive(kind, name, value)
    for name in _OPTIONAL if kind == "yarn" else ():
        if parameters.get(name):
            _positive(kind, name, parameters[name])
    if kind == "llama3" and float(parameters["high_freq_factor"]) == float(parameters["low_freq_factor"]):
        raise ValueError("the llama3 RoPE scaling has high_freq_factor and low_freq_factor equal")


def _positive(kind: str, name: str, value: Any) -> None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 < number < math.inf:
        raise ValueError(f"the {kind} RoPE scaling has {name}={value!r}, not a positive number")


def rotary_share(raw: Mapping[str, Any]) -> float:
    """The part of a head's dimensions that RoPE rotates."""
    named = rope_parameters(raw)[1].get("partial_rotary_factor") or raw.get("partial_rotary_factor")
    return float(named or 1.0)


def rope_parameters(raw: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The type of scaling, and a copy of `rope_scaling`, or of `rope_parameters`, as transformers 5 calls it.

    Of one for each kind of layer, the full attention's. Qwen-VL's `mrope` turns by three positions of a picture, which
    are one and the same in text: there it is plain RoPE.
    """
    parameters = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if isinstance(parameters, Mapping):
        parameters = parameters.get("full_attention", parameters)
    if not isinstance(parameters, Mapping):
        raise ValueError(f"RoPE parameters {parameters!r} are no JSON object")
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    return "default" if kind == "mrope" else kind, dict(parameters)
