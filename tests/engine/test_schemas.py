"""Schemas as libraries write them: what a grammar can hold in another form is held, and faults have a place."""

from __future__ import annotations

from typing import Any

import pytest

from fledge.engine.json_schema import without_nulls, without_unique_items
from fledge.engine.schema_faults import fault_in
from fledge.engine.structured import Grammars
from fledge.target.target import Target

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
KEYS = {"$defs": {"Key": {"enum": ["a", "b"], "title": "Key", "type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (
            {"type": "string", "format": "email", "pattern": EMAIL},
            ['"me@example.org"'],
            ['"me"'],
        ),
        (
            {"type": "string", "format": "date", "pattern": "^2026"},
            ['"2026-11-27"'],
            ['"2025-11-27"', '"2026"'],
        ),
        ({"type": "string", "format": "date", "pattern": r"^\\?2\d*"}, ['"2026-11-27"'], ['"1926-11-27"']),
        (
            {
                "propertyNames": {"type": "string", "enum": ["a", "b"]},
                "additionalProperties": {"type": "number"},
            },
            ['{"a":1,"b":2}', "{}", '{"b":2}'],
            ['{"c":1}', '{"a":"x"}'],
        ),
        (
            {
                "propertyNames": {"enum": ["a", "b"]},
                "properties": {"b": {"const": 1}, "c": {}},
                "type": "object",
            },
            ['{"b":1}', '{"b":1,"a":"x"}'],
            ['{"b":2}', '{"c":1}'],
        ),
        ({"propertyNames": {"const": "a"}, "type": "object"}, ['{"a":1}'], ['{"b":1}']),
        ({"propertyNames": {"$ref": "#/$defs/Key"}, "type": "object", **KEYS}, ['{"a":1}'], ['{"c":1}']),
        (
            {"propertyNames": {"enum": ["a"]}, "additionalProperties": False, "type": "object"},
            ["{}"],
            ['{"a":1}'],
        ),
        (
            {"propertyNames": {"minLength": 2, "maxLength": 3}, "additionalProperties": {"type": "integer"}},
            ['{"ab":1,"abc":2}'],
            ['{"a":1}', '{"abcd":1}', '{"ab":"x"}'],
        ),
        ({"propertyNames": {"pattern": "^x"}, "type": "object"}, ['{"xa":1}'], ['{"a":1}']),
        ({"type": "object", "required": None, "properties": None}, ['{"a":1}'], ["1"]),
        ({"properties": {"a": {"type": None, "const": None}}, "type": "object"}, ['{"a":null}'], ['{"a":1}']),
        ({"type": ["object"], "properties": {"a": None}}, ['{"a":1}'], ["1"]),
    ],
    ids=str,
)
def test_what_has_an_exact_form_is_held(
    target: Target, schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    follower = Grammars(target.tokenizer, target.config.vocab_size, [3]).follower({"json": schema})
    for text in right + wrong:
        ids = target.tokenizer.encode(text, add_special_tokens=False)
        assert follower.completed_by(ids) is (text in right), text


@pytest.mark.parametrize(
    ("schema", "place", "told"),
    [
        ({"properties": {"x": {"type": "string", "pattern": "(?!a)b"}}}, "properties.x.pattern", "look"),
        ({"properties": {"x": {"items": {"not": {}}}}, "type": "object"}, "properties.x.items.not", "not"),
        ({"anyOf": [{}, {"contains": {"const": 1}}]}, "anyOf.1.contains", "contains"),
        (
            {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "strong"}}},
            "$defs.A.type",
            "strong",
        ),
        ({"uniqueItems": True, "type": "array"}, "uniqueItems", "uniqueItems"),
        ({"propertyNames": {"format": "uuid"}, "type": "object"}, "propertyNames", "propertyNames"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "properties.a.$ref", "none"),
        (
            {
                "$ref": "#/$defs/A",
                "$defs": {"A": {"properties": {"a": {"$ref": "#/$defs/A"}, "b": {"not": {}}}}},
            },
            "$defs.A.properties.b.not",
            "not",
        ),
    ],
)
def test_a_fault_is_found_by_its_place(schema: dict[str, Any], place: str, told: str) -> None:
    fault = fault_in(schema)
    assert fault is not None
    assert fault.place == place
    assert told in fault.told


def test_nothing_is_wrong_with_what_compiles() -> None:
    assert fault_in({"type": "object", "properties": {"a": {"format": "email"}}}) is None


def test_names_and_values_are_no_keywords() -> None:
    schema = {
        "properties": {"uniqueItems": {"uniqueItems": True}},
        "const": {"uniqueItems": True, "required": None},
    }
    assert without_unique_items(schema) == {"properties": {"uniqueItems": {}}, "const": schema["const"]}
    assert without_nulls(schema) == schema
