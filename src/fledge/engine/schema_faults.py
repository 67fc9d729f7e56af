"""Location in a JSON schema of a keyword that llguidance can't enforce.

{"properties": {"x": {"type": "string", "pattern": "(?!a)b"}}}   ->   properties.x.pattern, "look-around ..."
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fledge.engine.json_schema import subschemas
from fledge.engine.structured import schema_fault

_MOST_TRIED = 500  # parts of a schema, each compiled by itself
_SHARED = ("$defs", "definitions")


class Fault(NamedTuple):
    """A fault in a schema."""

    place: str  # "": all of it
    told: str


def fault_in(schema: Any) -> Fault | None:
    """The innermost part of `schema` that doesn't compile by itself; None if all of it does."""
    told = schema_fault(schema)
    if not told:
        return None
    shared = {key: schema[key] for key in _SHARED if key in schema} if isinstance(schema, Mapping) else {}
    return _innermost(schema, "", told, schema, shared, set()) or Fault("", told)


def _innermost(
    node: Any, path: str, told: str, root: Any, shared: Mapping[str, Any], tried: set[str]
) -> Fault | None:
    """The innermost fault of `node`, which has one; None if all there is refers to what was tried before."""
    refers_back = False
    for place, part in _parts(node, path, root):
        if place in tried or len(tried) == _MOST_TRIED:
            refers_back = refers_back or place in tried
            continue
        tried.add(place)
        within = schema_fault({**part, **shared} if isinstance(part, Mapping) else part)
        if within and (found := _innermost(part, place, within, root, shared, tried)):
            return found
    keyword = next((key for key in _keys(node) if not schema_fault({**_without(node, key), **shared})), None)
    return None if refers_back and keyword == "$ref" else Fault(_joined(path, keyword), told)


def _parts(node: Any, path: str, root: Any) -> Iterator[tuple[str, Any]]:
    """The schemas within `node`, and the one it refers to."""
    if not isinstance(node, Mapping):
        return
    for place, part in subschemas(node):
        yield _joined(path, place), part
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/"):
        part = root
        for name in reference[2:].split("/"):
            part = part.get(name) if isinstance(part, Mapping) else None
        if part is not None:
            yield reference[2:].replace("/", "."), part


def _keys(node: Any) -> list[str]:
    return [key for key in node if key not in _SHARED] if isinstance(node, Mapping) else []


def _without(node: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in node.items() if name != key}


def _joined(*names: str | None) -> str:
    return ".".join(filter(None, names))
