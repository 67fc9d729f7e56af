"""fledge makes an LLM you already serve answer faster, with the same output (EAGLE-3 draft heads)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.draft import Head
    from fledge.engine import Engine
    from fledge.target import Target

__version__ = "0.1.0"
__all__ = ["Engine", "Head", "Target", "__version__"]


def __getattr__(name: str) -> Any:
    """The public classes, imported on first use: `fledge --help` needn't wait for torch."""
    if name == "Target":
        from fledge.target import Target

        return Target
    if name == "Head":
        from fledge.draft import Head

        return Head
    if name == "Engine":
        from fledge.engine import Engine

        return Engine
    raise AttributeError(f"module 'fledge' has no attribute {name!r}")
