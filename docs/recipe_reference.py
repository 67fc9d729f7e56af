"""Writes docs/recipe.md from the option models: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import UnionType
from typing import Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fledge.run.recipe import Recipe

_HEAD = """# Recipe reference

<!-- Made by `make docs` from the option models. -->

A recipe is a YAML file with one part per stage. It names only what differs from the defaults below. Shipped recipes are
used by name (`fledge run demo`), others by path or fsspec URL; settings after it change single keys:
```
fledge run my.yaml train.epochs=3 "respond.temperatures={0.0: 1.0}" bench.concurrency=[1,8] --run-dir runs/mine
```
Values are YAML. An unknown key is refused, naming the closest valid one. The recipe a run used, defaults included, is
written to `recipe.yaml` in its folder, and is itself a valid recipe: commands that name no recipe use that of their
`--run-dir`, or `demo` where there is none yet.
"""


def reference() -> str:
    """The page."""
    parts = [_HEAD]
    for name, field in Recipe.model_fields.items():
        model = cast(type[BaseModel], field.annotation)
        parts.append(f"\n## {name}\n{model.__doc__}\n\n| key | default | meaning |\n|---|---|---|\n")
        parts += [_row(f"{name}.{key}", option) for key, option in model.model_fields.items()]
    return "".join(parts)


def _row(key: str, option: FieldInfo) -> str:
    default = option.get_default(call_default_factory=True)
    shown = "null" if default is None else str(list(default) if isinstance(default, tuple) else default)
    meaning, choices = (option.description or "").replace("|", "/"), _choices(option.annotation)
    if not all(choice in meaning for choice in choices):
        *others, last = (f"`{choice}`" for choice in choices)
        meaning = f"{', '.join(others)} or {last}: {meaning}"
    return f"| `{key}` | `{shown}` | {meaning} |\n"


def _choices(annotation: object) -> list[str]:
    """The words an option may be, if it may be no others."""
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in get_args(annotation)]
    if get_origin(annotation) in (Union, UnionType):
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    return []


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(reference(), "utf-8")
