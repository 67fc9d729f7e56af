"""Writes docs/recipe.md, and the engine's options in docs/reference.md, from the option models: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import UnionType
from typing import Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from fledge.engine import EngineOptions
from fledge.run.recipe import Recipe

_BEGIN = "<!-- Made by `make docs` from EngineOptions. -->\n\n"
_END = "\n<!-- End. -->\n"
_HEAD = """# Recipe reference

<!-- Made by `make docs` from the option models. -->

A recipe is a YAML file with one part per stage. It names only what differs from the defaults below. Shipped recipes are
used by name (`fledge run demo`), others by path or fsspec URL; settings after it change single keys:
```sh
fledge run my.yaml train.epochs=3 "respond.temperatures={0.0: 1.0}" bench.concurrency=[1,8] --run-dir runs/mine
```
Values are YAML. An unknown key is refused, naming the closest valid one. The recipe a run used, defaults included, is
written to `recipe.yaml` in its folder, and is itself a valid recipe: commands that name no recipe use that of their
`--run-dir`, or `demo` where there is none yet. Without `--run-dir` a run's folder is `runs/` and the
recipe's name: `runs/my` for `my.yaml`.
"""


def reference() -> str:
    """The page."""
    parts = [_HEAD]
    for name, field in Recipe.model_fields.items():
        if _models(field.annotation):
            parts += _section(name, cast(type[BaseModel], field.annotation), f"{name}.", "##")
        else:
            parts += [f"\n## {name}\n\n| key | default | meaning |\n|---|---|---|\n", _row(name, field)]
    return "".join(parts)


def _section(title: str, model: type[BaseModel], prefix: str, level: str) -> list[str]:
    """A model's table, then one for each model that its options hold."""
    rows = [_row(f"{prefix}{key}", option) for key, option in model.model_fields.items()]
    parts = [f"\n{level} {title}\n{model.__doc__}\n\n| key | default | meaning |\n|---|---|---|\n", *rows]
    inner: dict[type[BaseModel], str] = {}  # each once, under the first option that holds it
    for key, option in model.model_fields.items():
        for held in _models(option.annotation):
            inner.setdefault(held, key)
    for held, key in inner.items():
        parts += _section(f"{title}.{key}", held, "", level + "#")
    return parts


def _models(annotation: object) -> list[type[BaseModel]]:
    """The models of which an option holds one or several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _row(key: str, option: FieldInfo) -> str:
    default = option.get_default(call_default_factory=True)
    shown = "null" if default is None else str(list(default) if isinstance(default, tuple) else default)
    shown = "required" if option.is_required() else shown or '""'
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


def with_engine_options(page: str) -> str:
    """docs/reference.md with its table of engine options as the model has them."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    rows = [_row(name, field) for name, field in EngineOptions.model_fields.items()]
    return f"{before}{_BEGIN}| option | default | meaning |\n|---|---|---|\n{''.join(rows)}{_END}{after}"


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    (docs / "recipe.md").write_text(reference(), "utf-8")
    (docs / "reference.md").write_text(
        with_engine_options((docs / "reference.md").read_text("utf-8")), "utf-8"
    )
