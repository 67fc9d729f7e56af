"""JSON schemas as llguidance takes them: without annotations, which say nothing about which values are valid.

    {"type": "string", "format": "password", "title": "Secret"}  ->  {"type": "string", "title": "Secret"}

Keywords that do restrict values and that llguidance doesn't know stay, so that it refuses them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

# Formats that llguidance holds answers to; any other is an annotation (JSON Schema, draft 2020-12, validation, 7.2.1).
_FORMATS = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uri",
    "uuid",
    "unknown",
)
# Keywords that restrict nothing with these values, though llguidance doesn't know them.
_IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "not": (False,),
    "minContains": (0,),
}
_NULL_MEANS = ("const", "default", "example")  # of which null is a value
# Where keywords hold further schemas: one, a list of them, or several by name.
_ONE = (
    "additionalItems",
    "additionalProperties",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
_LIST = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")


def prepared(schema: Any) -> Any:
    """`schema` for llguidance. `oneOf` counts as `anyOf` where its alternatives overlap."""
    plain = _plain(schema)
    if not isinstance(plain, dict):
        return plain
    return {**plain, "x-guidance": {"coerce_one_of": True, **(plain.get("x-guidance") or {})}}


def without_nulls(schema: Any) -> Any:
    """`schema` without keywords whose value is null, which some clients write for those they leave out."""
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _mapped(without_nulls, key, value)
        for key, value in schema.items()
        if value is not None or key in _NULL_MEANS
    }


def prepared_text(text: str) -> str:
    """The same for a schema's text. Raises ValueError if it is no JSON."""
    return json.dumps(prepared(json.loads(text)), ensure_ascii=False)


def _plain(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _mapped(_plain, key, value) for key, value in schema.items() if not _says_nothing(key, value)
    }


def _mapped(change: Callable[[Any], Any], key: str, value: Any) -> Any:
    """A keyword's value with each of the schemas in it changed."""
    if key in _NAMED and isinstance(value, Mapping):
        return {name: change(each) for name, each in value.items()}
    if key in _LIST and isinstance(value, list):
        return [change(each) for each in value]
    return change(value) if key in _ONE else value


def _says_nothing(key: str, value: Any) -> bool:
    if key == "format":
        return value not in _FORMATS
    if key == "$schema":  # an unknown draft can't be looked up
        return "json-schema.org/" not in str(value)
    return any(type(value) is type(idle) and value == idle for idle in _IDLE.get(key, ()))
