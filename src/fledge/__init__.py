"""fledge makes an LLM you already serve answer faster, with the same output (EAGLE-3 draft heads)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fledge.draft import Head
    from fledge.engine import Engine
    from fledge.released import released_head
    from fledge.target import Target

__version__ = "0.1.0"
__all__ = ["Engine", "Head", "Target", "__version__", "released_head"]


def __getattr__(name: str) -> Any:
    """The public names, imported on first use: `fledge --help` needn't wait for torch."""
    if name == "Target":
        from fledge.target import Target

        return Target
    if name == "Head":
        from fledge.draft import Head

        return Head
    if name == "Engine":
        from fledge.engine import Engine

        return Engine
    if name == "released_head":
        from fledge.released import released_head

        return released_head
    raise AttributeError(f"module 'fledge' has no attribute {name!r}")
