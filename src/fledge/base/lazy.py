"""A room's public names, imported on first use: a misspelt recipe is refused before torch is imported."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def on_first_use(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose imports stand under `if TYPE_CHECKING:`, which is where it finds them."""
    module = sys.modules[package]
    homes: dict[str, str] = {}

    def value(name: str) -> Any:
        if not homes:
            blocks = ast.parse(Path(str(module.__file__)).read_text("utf-8")).body
            lines = [line for block in blocks if isinstance(block, ast.If) for line in block.body]
            homes.update(
                (alias.name, str(line.module))
                for line in lines
                if isinstance(line, ast.ImportFrom)
                for alias in line.names
            )
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(homes[name]), name)
        setattr(module, name, found)
        return found

    return value
