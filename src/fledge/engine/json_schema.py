"""JSON schemas as llguidance takes them: without annotations, which say nothing about which values are valid.

    {"type": "string", "format": "password", "title": "Secret"}  ->  {"type": "string", "title": "Secret"}

Keywords that do restrict values and that llguidance doesn't know stay, so that it refuses them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
_SPECIAL = re.compile(r"\\.|\(\?<?[=!]", re.DOTALL)  # of a pattern; an escaped backslash is read as one
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
    schema = without_nulls(schema)
    plain = _plain(schema, schema)
    if not isinstance(plain, dict):
        return plain
    return {**plain, "x-guidance": {"coerce_one_of": True, **(plain.get("x-guidance") or {})}}


def without_nulls(schema: Any) -> Any:
    """`schema` without keywords whose value is null, which some clients write for those they leave out."""
    if schema is None:
        return {}
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


def without_unique_items(schema: Any) -> Any:
    """`schema` for lists that may hold an item twice, which no grammar can forbid."""
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: _mapped(without_unique_items, key, value)
        for key, value in schema.items()
        if key != "uniqueItems"
    }


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly within one, but for definitions, and the place of each."""
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping) and key not in ("$defs", "definitions"):
            yield from ((f"{key}.{name}", each) for name, each in value.items())
        elif key in _LIST and isinstance(value, list):
            yield from ((f"{key}.{number}", each) for number, each in enumerate(value))
        elif key in _ONE and isinstance(value, Mapping):
            yield key, value


def _plain(schema: Any, root: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    given = {key: value for key, value in schema.items() if not _says_nothing(key, value)}
    if given.get("format") in _FORMATS and _looks_around(given.get("pattern")):
        del given["pattern"]  # the format says it
    given = _with_named_keys(given, root)
    return {key: _mapped(partial(_plain, root=root), key, value) for key, value in given.items()}


def _looks_around(pattern: Any) -> bool:
    """True if a pattern needs more than a regular language: look-around, word boundaries, back-references."""
    found = _SPECIAL.findall(pattern) if isinstance(pattern, str) else ()
    return any(each.startswith("(?") or each[1] in "bB123456789" for each in found)


def _with_named_keys(schema: dict[str, Any], root: Any) -> dict[str, Any]:
    """`propertyNames` as properties or a pattern of them, where that is the same."""
    names = _target_of(schema.get("propertyNames"), root)
    if not isinstance(names, Mapping) or "patternProperties" in schema:
        return schema
    rest = {key: value for key, value in schema.items() if key != "propertyNames"}
    others, given = rest.get("additionalProperties", True), rest.get("properties") or {}
    meant = names.keys() - {"type", "title", "description", "$comment"}
    keys = [names["const"]] if "const" in meant else names.get("enum")
    if meant in ({"enum"}, {"const"}) and isinstance(keys, list):
        texts = [key for key in keys if isinstance(key, str)]
        ordered = [*(key for key in given if key in texts), *(key for key in texts if key not in given)]
        properties = {key: given.get(key, others) for key in ordered if key in given or others is not False}
        return {**rest, "properties": properties, "additionalProperties": False}
    if given or not meant or not (meant == {"pattern"} or meant <= {"minLength", "maxLength"}):
        return schema
    length = f"{names.get('minLength', 0)},{names.get('maxLength', '')}"
    pattern = names.get("pattern", f"^[\\s\\S]{{{length}}}$")
    return {**rest, "patternProperties": {pattern: others}, "additionalProperties": False}


def _target_of(schema: Any, root: Any) -> Any:
    """The schema that a reference into `root` points to."""
    reference = schema.get("$ref") if isinstance(schema, Mapping) else None
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return schema
    target = root
    for name in reference[2:].split("/"):
        target = target.get(name) if isinstance(target, Mapping) else None
    return target


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
