"""Schemas in requests: refusals name the place as the client wrote it, and libraries' own schemas work."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any, Literal

import pydantic
import pytest

from tests.server.conftest import Running, running_template
from tests.server.taught import TEMPLATES

CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
WRONG = {"type": "object", "properties": {"x": {"type": "string", "pattern": r"\bfoo"}}}
FINE = {"type": "function", "function": {"name": "fine"}}
FAULTY = {"type": "function", "function": {"name": "faulty", "parameters": WRONG}}


@pytest.fixture(scope="module", params=["hermes", "qwen3_coder"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_template(tmp_path_factory.mktemp("schemas"), TEMPLATES[request.param]) as started:
        yield started


def form(schema: Any) -> Any:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (CHAT, {**ASK, **form(WRONG)}, "response_format.json_schema.schema.properties.x.pattern"),
        (
            "/v1/completions",
            {"prompt": "x", **form(WRONG)},
            "response_format.json_schema.schema.properties.x.pattern",
        ),
        (CHAT, {**ASK, "guided_json": WRONG}, "guided_json.properties.x.pattern"),
        (
            CHAT,
            {**ASK, "structured_outputs": {"json": WRONG}},
            "structured_outputs.json.properties.x.pattern",
        ),
        (CHAT, {**ASK, "guided_regex": "("}, "guided_regex"),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "a", "schema": WRONG}}},
            "text.format.schema.properties.x.pattern",
        ),
        (
            "/v1/messages",
            {**ASK, "output_config": {"format": {"type": "json_schema", "schema": WRONG}}},
            "output_config.format.schema.properties.x.pattern",
        ),
        (
            "/v1/messages",
            {**ASK, "output_format": {"type": "json_schema", "schema": WRONG}},
            "output_format.schema.properties.x.pattern",
        ),
    ],
)
def test_a_fault_is_told_where_the_client_wrote_it(server: Running, path: str, body: Any, place: str) -> None:
    refused = server.post(path, body)
    assert refused.status_code == 400
    told = refused.json()["error"]["message"]
    assert told.startswith(place)
    assert ("structured_outputs" in told) is ("structured_outputs" in body)


@pytest.mark.parametrize(
    "keyword", [{"contains": {}}, {"not": {"type": "null"}}, {"dependentRequired": {"a": ["b"]}}]
)
def test_a_tool_at_fault_is_named(server: Running, keyword: Any) -> None:
    wrong = {"type": "object", "properties": {"x": {"type": "array", **keyword}}, "required": ["x"]}
    place = f"properties.x.{next(iter(keyword))}"
    chat = {"type": "function", "function": {"name": "faulty", "parameters": wrong}}
    for path, more, start in (
        (CHAT, {**ASK, "tools": [FINE, chat], "tool_choice": "required"}, "tools.1.function.parameters."),
        (
            "/v1/responses",
            {"input": "x", "tools": [{"type": "web_search"}, {"type": "function", **chat["function"]}],
             "tool_choice": "required"},
            "tools.1.parameters.",
        ),
        (
            "/v1/messages",
            {**ASK, "tools": [{"name": "faulty", "input_schema": wrong}], "tool_choice": {"type": "any"}},
            "tools.0.input_schema.",
        ),
    ):  # fmt: skip
        refused = server.post(path, more)
        told = refused.json()["error"]["message"]
        assert (refused.status_code, told.startswith(start + place)) == (400, True), told
        assert "faulty" in told
        assert "structured_outputs" not in told
    assert server.post(CHAT, {**ASK, "tools": [FINE, chat]}).status_code == 200  # of its own accord


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Library(pydantic.BaseModel):
    names: set[Literal["a", "b"]]
    counts: dict[Literal["x", "y"], int]
    colours: dict[Colour, bool]


def test_sets_and_dictionaries_of_pydantic_s_work(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    schema = Library.model_json_schema()
    assert schema["properties"]["names"]["uniqueItems"]
    answer = server.post(CHAT, {**ASK, **form(schema), "max_tokens": 200, "seed": 1}).json()["choices"][0]
    assert answer["message"]["content"].startswith("{")
    if answer["finish_reason"] == "stop":
        Library.model_validate_json(answer["message"]["content"])
    tool = {"type": "function", "function": {"name": "keep", "parameters": schema}}
    asked = {**ASK, "tools": [tool], "tool_choice": "required"}
    assert server.post(CHAT, asked).status_code == 200
    assert (
        server.post(CHAT, {**ASK, "structured_outputs": {"json": schema}}).status_code == 400
    )  # as vLLM does


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {}, "required": None},
        {"type": "object", "properties": None},
        {"type": ["object"], "properties": {}},
        {"type": ["object", "null"], "properties": {"a": {"type": "string", "enum": None}}},
        {"type": None, "properties": {}},
        {"type": None},
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_what_servers_in_go_write_for_nothing_is_nothing(
    server: Running, parameters: Any, choice: str
) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert server.post(CHAT, {**ASK, "tools": [tool], "tool_choice": choice}).status_code == 200
    named = {"type": "any"} if choice == "required" else {"type": "auto"}
    mine = {**ASK, "tools": [{"name": "f", "input_schema": parameters}], "tool_choice": named}
    assert server.post("/v1/messages", mine).status_code == 200


def test_options_that_a_form_excludes_are_told_under_its_own_name(server: Running) -> None:
    told = server.post(CHAT, {**ASK, **form({}), "min_tokens": 2}).json()["error"]["message"]
    assert "response_format" in told
    assert "structured_outputs" not in told
