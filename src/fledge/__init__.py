"""fledge makes an LLM you already serve answer faster, with the same output (EAGLE-3 draft heads)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.base.errors import (
        DataError,
        EngineError,
        FingerprintError,
        FledgeError,
        HeadError,
        RecipeError,
        ServerError,
        StorageError,
        TargetError,
    )
    from fledge.engine import Engine, SamplingParams
    from fledge.heads import Head
    from fledge.released import released_head
    from fledge.target import Target

__version__ = "0.1.0"
__all__ = [
    "DataError",
    "Engine",
    "EngineError",
    "FingerprintError",
    "FledgeError",
    "Head",
    "HeadError",
    "RecipeError",
    "SamplingParams",
    "ServerError",
    "StorageError",
    "Target",
    "TargetError",
    "__version__",
    "released_head",
]


_HOMES = {
    "Engine": "fledge.engine",
    "Head": "fledge.heads",
    "SamplingParams": "fledge.engine",
    "Target": "fledge.target",
    "released_head": "fledge.released",
} | {name: "fledge.base.errors" for name in __all__ if name.endswith("Error")}


def __getattr__(name: str) -> Any:
    """The public names, imported on first use: `fledge --help` needn't wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fledge' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
