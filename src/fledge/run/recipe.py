"""The single configuration: every room's options in one model, from YAML and `key.sub=value` arguments.

A recipe file contains only what differs from the rooms' defaults:

    target: {model: HuggingFaceTB/SmolLM2-135M-Instruct}
    train: {epochs: 2}

and `fledge run demo train.epochs=3` changes one key of a recipe that ships with the package.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from importlib import resources
from pathlib import Path, PurePath
from typing import Any, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError

from fledge.base import disk
from fledge.base.checksums import sha256
from fledge.base.errors import RecipeError, did_you_mean, one_line
from fledge.base.options import RecipePart
from fledge.base.storage import exists, join, read_bytes, write_atomic
from fledge.bench import BenchOptions
from fledge.data import PrivacyOptions, PromptOptions, RespondOptions
from fledge.features import FeatureOptions
from fledge.target import TargetOptions
from fledge.train import EvaluateOptions, TrainOptions

RECIPE_NAME = "recipe.yaml"  # in a run's folder: the recipe it was made with
_LOGS = (".jsonl", ".ndjson", ".log", ".csv", ".tsv", ".parquet", ".txt")
_CHECKSUM = re.compile(rb"# sha256 ([0-9a-f]{64})")


class Recipe(RecipePart):
    """Everything a run depends on; each part belongs to the room that reads it. Nothing depends on `note`."""

    target: TargetOptions = TargetOptions()
    prompts: PromptOptions = PromptOptions()
    privacy: PrivacyOptions = PrivacyOptions()
    respond: RespondOptions = RespondOptions()
    features: FeatureOptions = FeatureOptions()
    train: TrainOptions = TrainOptions()
    evaluate: EvaluateOptions = EvaluateOptions()
    bench: BenchOptions = BenchOptions()
    note: str = Field("", description="a remark on the run, which its report begins with")

    def to_yaml(self) -> str:
        """The complete recipe as YAML, including defaults."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def save(self, url: str) -> None:
        """Write it with its checksum in the first line, to be deleted when editing the file."""
        data = self.to_yaml().encode()
        write_atomic(
            url, f"# sha256 {sha256(data)} of what follows: delete this line if you edit it\n".encode() + data
        )


class _Loader(yaml.SafeLoader):
    """Plain YAML. A duplicate key is an error: PyYAML silently takes the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for number, key in enumerate(keys):
            if key.value in (before.value for before in keys[:number]):
                problem = f"the key {key.value} occurs twice"
                raise yaml.constructor.ConstructorError(problem=problem, problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


def shipped_recipes() -> list[str]:
    """Names of the recipes that ship with the package."""
    folder = resources.files("fledge.run") / "recipes"
    return sorted(
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    )


def load_recipe(source: str = "demo", overrides: Sequence[str] = ()) -> Recipe:
    """A recipe from a shipped name, a YAML file or URL, with `key.sub=value` overrides applied in order."""
    values = _read(source)
    for override in overrides:
        _apply(values, override)
    origin = partial(_origin, source, overrides)
    _refuse_infinite(values, origin)
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        # Report a misspelt key before a missing one, which it may have caused.
        first = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        place, wrong = first["loc"], f"{first['input']!r} is refused: {first['msg']}"
        key = ".".join(map(str, place))
        if first["type"] == "extra_forbidden":
            message = f"{origin(key)} has an unknown key {key}; {_suggestion(place)}"
        elif first["type"] == "tuple_type":
            message = f"{origin(key)}: {key} = {wrong}; write a list: {key}=[...]"
        elif first["type"] == "model_type":
            some = ", ".join([*_model_at(place).model_fields][:3])
            message = f"{origin(key)}: {key} = {wrong}; write a mapping with keys such as {some}"
        else:
            message = f"{origin(key)}: {key} = {wrong}; set {key} to a valid value"
        raise RecipeError(message) from error
    # Again: YAML reads `inf` without a dot as a string, which only the model turns into a number.
    _refuse_infinite(recipe.model_dump(mode="json"), origin)
    return recipe


def read_recipe_file(url: str) -> str:
    """The YAML of a file, checked against its checksum, if any."""
    data = read_bytes(url)
    if (recorded := _CHECKSUM.match(data)) is not None:
        data = data.partition(b"\n")[2]
        if recorded[1].decode() != sha256(data):
            raise RecipeError(
                f"{url} isn't what fledge wrote (wrong checksum); if you edited it, delete its first line, else delete "
                "it and name your recipe in the command"
            )
    if not data.strip():
        raise RecipeError(f"recipe {url} is empty; write {{}} into it for the defaults, or delete it")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RecipeError(f"recipe {url} is not UTF-8 ({error}); save it as UTF-8") from error


def option_keys(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[str]:
    """Every key a recipe may contain, dotted."""
    for name, field in model.model_fields.items():
        inner = _inner_model(field.annotation)
        if inner is not None:
            yield from option_keys(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def _read(source: str) -> dict[str, Any]:
    if source in shipped_recipes():
        text = (resources.files("fledge.run") / "recipes" / f"{source}.yaml").read_text("utf-8")
    elif exists(join(source, RECIPE_NAME)):
        raise RecipeError(
            f"{source} is a run's folder: go on with it by --run-dir {source}, or name its {RECIPE_NAME}"
        )
    elif Path(source).is_dir():
        raise RecipeError(
            f"{source} is a folder; name a YAML file in it, or, if it holds logs, {_log_option(source)}"
        )
    elif exists(source):
        if {*PurePath(source).suffixes} & {*_LOGS}:
            raise _not_a_recipe(source)
        text = read_recipe_file(source)
    else:
        if (key := source.split()[0] if source.strip() else "") in option_keys():
            raise RecipeError(f"{key} is a setting without a value; write {key}=VALUE, without spaces")
        shipped, here = shipped_recipes(), disk.neighbours(Path(source))
        hint = did_you_mean(PurePath(source).name, [*here, *shipped])
        raise RecipeError(
            f"no recipe {source!r}: neither a file nor one of the shipped recipes"
            f"{hint or '; name a YAML file or one of ' + ', '.join(shipped)}"
        )
    try:
        values = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        if source.endswith(".json"):
            raise _not_a_recipe(source) from error
        raise RecipeError(f"recipe {source} is not valid YAML ({one_line(error)}); correct it") from error
    if values is None:
        return {}
    if source.endswith(".json") and values and not any(key in values for key in Recipe.model_fields):
        raise _not_a_recipe(source)
    if not isinstance(values, dict):
        raise RecipeError(
            f"recipe {source} must be a mapping of parts such as `train: {{epochs: 2}}`; correct it"
        )
    return values


def _not_a_recipe(source: str) -> RecipeError:
    return RecipeError(
        f"{source} looks like a log or a data set, but a recipe is expected here; give a recipe such as demo, and "
        + _log_option(source)
    )


def _log_option(source: str) -> str:
    return f'name the log in it: "prompts.sources=[{{path: {source}, licence: own}}]"'


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise RecipeError(f"{override!r} is not a setting; write key=value, such as train.epochs=3")
    *parents, last = key.strip().split(".")
    place = values
    for parent in parents:
        child = place.get(parent)
        if not isinstance(child, dict):
            child = place[parent] = {}
        place = child
    try:
        place[last] = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise RecipeError(
            f"{override!r}: the value is not valid YAML ({one_line(error)}); correct or quote it"
        ) from error


def _origin(source: str, overrides: Sequence[str], key: str) -> str:
    """The source of a key's value: the last setting that changed it, or else the recipe."""
    for override in reversed(overrides):
        changed = override.partition("=")[0].strip() + "."
        if changed.startswith(f"{key}.") or f"{key}.".startswith(changed):
            return f"setting {override!r}"
    return f"recipe {source}"


def _refuse_infinite(value: Any, origin: Callable[[str], str], key: str = "") -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"{origin(key)}: {key} = {value} is refused: no option takes it; give a number")
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        _refuse_infinite(name, origin, key)
        _refuse_infinite(part, origin, f"{key}.{name}" if key else str(name))


def _suggestion(place: Sequence[int | str]) -> str:
    """A suggestion for an unknown key: a similar one of the same part, or else one of that name anywhere."""
    *part, name = map(str, place)
    here = list(_model_at(place[:-1]).model_fields)
    keys = {key: ".".join((*part, key)) for key in here}
    for key in (*Recipe.model_fields, *option_keys()):
        keys.setdefault(key.rpartition(".")[2], key)
    for candidates in (here, keys):
        for closest in difflib.get_close_matches(name, candidates, n=1, cutoff=0.7):
            return f"did you mean {keys[closest]}?"
    return f"use one of {', '.join(here)}"


def _model_at(place: Sequence[int | str]) -> type[BaseModel]:
    """The options at a place in the recipe, possibly an entry of a list."""
    model: type[BaseModel] = Recipe
    for name in place:
        if isinstance(name, str) and name in model.model_fields:
            model = next(_models_in(model.model_fields[name].annotation), model)
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The options that a list or an optional value may contain."""
    if (inner := _inner_model(annotation)) is not None:
        yield inner
    for part in get_args(annotation):
        yield from _models_in(part)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return None
