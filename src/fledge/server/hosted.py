"""Tools that this server can't have, such as another server's web search: left out beside functions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fledge.server.strict import log_once


def without_hosted(tools: Any, *, own: Collection[str | None], advice: str) -> Any:
    """The list with None in the place of each tool of a type other than those in `own`, each type logged once.

    Raises ValueError if no other tool is there: the answer would be none that the client expects.
    """
    if not isinstance(tools, list):
        return tools
    kept = [None if _is_hosted(tool, own) else tool for tool in tools]
    left_out = [
        str(tool.get("type")) for tool, stays in zip(tools, kept, strict=True) if stays is None and tool
    ]
    if left_out and not any(kept):
        raise ValueError(f"tools of the type {left_out[0]:.40} aren't supported; {advice}")
    for kind in left_out:
        log_once(f"tool.{kind}", f"tools of the type {kind} are left out of requests: this server has none")
    return kept


def _is_hosted(tool: Any, own: Collection[str | None]) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] not in own
