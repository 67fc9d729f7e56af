"""The answer's form as a request names it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fledge.engine.json_schema import without_unique_items
from fledge.server.strict import StrictBody, log_once
from fledge.server.values import StopText


class JsonSchema(StrictBody):
    """`json_schema` of a response_format."""

    name: str | None = Field(None, max_length=512)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = Field(None, description="no effect: every answer follows its schema")


class ResponseFormat(StrictBody):
    """The answer's format, as OpenAI names it."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @classmethod
    def _renamed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """llama.cpp's clients write the schema beside the type, whichever of the two that is."""
        if data.get("json_schema") is not None or not isinstance(data.get("schema"), dict):
            return data
        rest = {name: value for name, value in data.items() if name != "schema"}
        kind = "json_schema" if data.get("type") == "json_object" else data.get("type")
        return rest | {"type": kind, "json_schema": {"schema": data["schema"]}}

    @model_validator(mode="after")
    def _schema_where_it_belongs(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with type json_schema and no other")
        return self


class StructuredOutputs(StrictBody):
    """The answer's format, as vLLM names it; one of these."""

    json_: dict[str, Any] | str | None = Field(None, alias="json", description="a JSON schema")
    json_object: Literal[True] | None = None
    regex: str | None = Field(None, max_length=65536)
    choice: Annotated[list[StopText], Field(min_length=1, max_length=1024, fail_fast=True)] | None = None
    grammar: str | None = Field(None, max_length=65536, description="in Lark's syntax")

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("give one of json, json_object, regex, choice and grammar")
        return self


def lark(gbnf: str) -> str:
    """A grammar in GBNF, llama.cpp's syntax, in Lark's. Raises a ValueError if it can't be translated."""
    try:
        from llguidance.gbnf_to_lark import gbnf_to_lark
    except ImportError as error:
        raise ValueError('grammar needs llguidance: pip install "fledge[structured]"') from error
    try:
        return str(gbnf_to_lark(gbnf))
    except Exception as error:  # the translator has no type of its own
        raise ValueError(f"grammar can't be read as GBNF ({error}); correct it") from error


def usable(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of an answer or of arguments without `uniqueItems`: a set holds each item once in any case."""
    changed: dict[str, Any] = without_unique_items(schema)
    if changed != schema:
        log_once("uniqueItems", "uniqueItems is left out of schemas: lists in answers may hold an item twice")
    return changed
