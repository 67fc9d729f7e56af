"""Types of a function's arguments, from its schema. Schemas are the clients' and may be anything."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"),
)  # fmt: skip
_DEEPEST = 8  # references and alternatives within each other that are followed


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments' own schemas, by name."""
    given = schema.get("properties")
    return given if isinstance(given, Mapping) else {}


def required(schema: Mapping[str, Any]) -> Collection[Any]:
    """Names of the arguments that every call has."""
    given = schema.get("required")
    return given if isinstance(given, list) else ()


def types_of(about: Any, schema: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The types that an argument may have; none: any. `about`: its schema; `schema`: of all arguments."""
    about = _resolved(about, schema)
    given = about.get("type")
    if given is not None:
        given = given if isinstance(given, list) else [given]
        return {each for each in given if isinstance(each, str)}
    if values := _values(about):
        return {type_of(value) for value in values}
    ways = about.get("anyOf") or about.get("oneOf")
    if not isinstance(ways, list) or depth == _DEEPEST:
        return set()
    each = [types_of(way, schema, depth + 1) for way in ways]
    return set().union(*each) if all(each) else set()


def texts_of(about: Any, schema: Mapping[str, Any]) -> list[str]:
    """The texts of which an argument is one; none: it may be others, or no text."""
    values = _values(_resolved(about, schema))
    return values if all(isinstance(value, str) and value for value in values) else []


def with_definitions(about: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """An argument's schema that stands alone: with the definitions it may refer to."""
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return {**_resolved(about, schema), **shared}


def type_of(value: Any) -> str:
    """A JSON value's type, as schemas name it."""
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "null")


def _values(about: Mapping[str, Any]) -> list[Any]:
    given = [about["const"]] if "const" in about else about.get("enum")
    return given if isinstance(given, list) else []


def _resolved(about: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a reference into the schema itself."""
    for _ in range(_DEEPEST):
        if not isinstance(about, Mapping) or not isinstance(about.get("$ref"), str):
            break
        target: Any = schema
        for part in about["$ref"].removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, Mapping) else None
        about = target
    return about if isinstance(about, Mapping) else {}
