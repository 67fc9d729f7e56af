"""Anthropic's Messages API."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import from_json

from fledge.engine import Engine
from fledge.server.messages import MessagesRequest
from tests.server.conftest import HTTP, MODEL, Running, running

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
ASK: dict[str, Any] = {"model": MODEL, "messages": [HI], "temperature": 0, "max_tokens": 6}
TOOL = {"name": "look", "description": "Look.", "input_schema": {"type": "object", "properties": {}}}


def events(text: str) -> list[dict[str, Any]]:
    """A stream's events; each is named as its data says."""
    found = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def added_up(stream: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream's events make, as Anthropic's clients add them up."""
    message: dict[str, Any] = {}
    texts: list[str] = []
    for event in stream:
        kind = event["type"]
        if kind == "message_start":
            message = event["message"]
            assert (message["content"], message["stop_reason"]) == ([], None)
        elif kind == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            texts.append("")
        elif kind == "content_block_delta":
            assert event["index"] == len(message["content"]) - 1
            if event["delta"]["type"] == "signature_delta":
                message["content"][-1]["signature"] += event["delta"]["signature"]
                continue
            texts[-1] += next(value for key, value in event["delta"].items() if key != "type")
        elif kind == "content_block_stop":
            block = message["content"][event["index"]]
            if block["type"] == "tool_use":
                block["input"] = from_json(
                    texts[-1] or "{}", allow_partial=True
                )  # as clients read what was cut
            else:
                block[block["type"]] = texts[-1]
        elif kind == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
        else:
            assert (kind, event) == ("message_stop", stream[-1])
    return message


def test_a_message_is_the_chat_s_answer(live: Running) -> None:
    chat = {"messages": [{"role": "system", "content": "Be brief."}, HI], "temperature": 0, "max_tokens": 6}
    expected = live.post("/v1/chat/completions", chat).json()
    for system in (
        "Be brief.",
        [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    ):
        message = live.post("/v1/messages", {**ASK, "system": system}).json()
        assert message["content"] == [{"type": "text", "text": expected["choices"][0]["message"]["content"]}]
        assert (message["type"], message["role"], message["model"]) == ("message", "assistant", MODEL)
        assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
        usage = message["usage"]
        assert usage["output_tokens"] == 6
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert prompt == expected["usage"]["prompt_tokens"]
        count = {"model": MODEL, "messages": [HI], "system": system}
        assert live.post("/v1/messages/count_tokens", count).json() == {"input_tokens": prompt}


def test_a_stop_sequence_is_named(live: Running) -> None:
    text = live.post("/v1/messages", {**ASK, "max_tokens": 30}).json()["content"][0]["text"]
    stopped = live.post("/v1/messages", {**ASK, "max_tokens": 30, "stop_sequences": [text[4:6]]}).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", text[4:6])
    assert stopped["content"] == [{"type": "text", "text": text[: text.index(text[4:6])]}]


def test_a_conversation_with_tools_is_a_chat_s() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Look"}, {"type": "text", "text": "twice"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "look", "input": {"a": "é"}},
                {"type": "tool_use", "id": "c2", "name": "look", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "42"}]},
                {"type": "tool_result", "tool_use_id": "c2", "is_error": True},
                {"type": "text", "text": "Go on"},
            ],
        },
    ]
    choice = {"type": "tool", "name": "look", "disable_parallel_tool_use": True}
    body = MessagesRequest.model_validate(
        {
            "messages": messages,
            "max_tokens": 5,
            "tools": [TOOL],
            "tool_choice": choice,
            "metadata": {"user_id": "u"},
        }
    )
    chat = body.chat(thinks=True)
    assert [message.role for message in chat.messages] == ["user", "assistant", "tool", "tool", "user"]
    assert [message.plain["content"] for message in chat.messages] == [
        "Look\ntwice",
        "I look.",
        "42",
        "",
        "Go on",
    ]
    assert chat.messages[1].thoughts == "Hm."
    calls = chat.messages[1].plain["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [("c1", {"a": "é"}), ("c2", {})]
    assert [tool.function.name for tool in chat.offered] == ["look"]
    assert (chat.must_call, chat.parallel_tool_calls, chat.user) == (True, False, "u")
    for kind, expected in (("auto", "auto"), ("any", "required"), ("none", "none")):
        changed = body.model_copy(update={"tool_choice": {"type": kind}})
        assert changed.chat(thinks=False).tool_choice == expected


@pytest.mark.parametrize(("kind", "thinks"), [("enabled", True), ("adaptive", True), ("disabled", False)])
def test_thinking_is_told_to_templates_that_ask_for_it(kind: str, thinks: bool) -> None:
    body = MessagesRequest.model_validate({**ASK, "thinking": {"type": kind, "budget_tokens": 2000}})
    assert body.chat(thinks=True).chat_template_kwargs == {"enable_thinking": thinks}
    assert body.chat(thinks=False).chat_template_kwargs is None


def test_the_beginning_of_an_answer_is_continued(live: Running, plain: Engine) -> None:
    begun = [HI, {"role": "assistant", "content": "It is"}]
    expected = plain.generate([plain.target.chat.prompt_ids(begun, continues=True)], max_tokens=6)[0]
    blocks = [HI, {"role": "assistant", "content": [{"type": "text", "text": "It is"}]}]
    for messages in (begun, blocks):
        message = live.post("/v1/messages", {**ASK, "messages": messages}).json()
        assert message["content"][0]["text"].strip() == expected.text.strip()
    for nothing in ("", [], [{"type": "text", "text": ""}]):
        messages = [HI, {"role": "assistant", "content": nothing}]
        assert live.post("/v1/messages", {**ASK, "messages": messages}).status_code == 200


def test_a_form_is_kept(live: Running) -> None:
    form = {"type": "json_schema", "schema": {"enum": ["tea"]}}
    for named in ({"output_format": form}, {"output_config": {"format": form, "effort": "low"}}):
        message = live.post("/v1/messages", {**ASK, **named, "max_tokens": 20}).json()
        assert message["content"] == [{"type": "text", "text": '"tea"'}]
        assert message["stop_reason"] == "end_turn"


def test_more_tokens_may_be_allowed_than_there_is_room_for(live: Running) -> None:
    """Anthropic's clients have to send a limit, and often send 4,096 or more."""
    body = {**ASK, "messages": [{"role": "user", "content": "word " * 80}], "max_tokens": 64_000}
    message = live.post("/v1/messages", body).json()
    assert message["stop_reason"] in ("end_turn", "max_tokens")
    long = {"role": "user", "content": "word " * 600}
    refused = live.post("/v1/messages", {**body, "messages": [long]})
    assert refused.status_code == 400
    assert "context" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "hint",
    [
        {"metadata": {"user_id": "a", "more": 1}},
        {"service_tier": "auto", "cache_control": {"type": "ephemeral"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"mcp_servers": [], "tools": [], "context_management": {"edits": []}, "betas": ["a"]},
        {"anthropic_version": "bedrock-2023-05-31"},
        {"messages": [{**HI, "id": "m1"}]},
    ],
    ids=lambda hint: next(iter(hint)),
)
def test_what_cannot_change_an_answer_doesn_t(live: Running, hint: dict[str, Any]) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "x"}
    answers = [live.post("/v1/messages", body, headers=headers).json() for body in (ASK, {**ASK, **hint})]
    assert answers[0]["content"] == answers[1]["content"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
FIRST = "messages.0.content.0"


def blocks(*content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def result(**more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "content": [IMAGE], **more}


@pytest.mark.parametrize(
    ("change", "place", "about"),
    [
        (blocks(IMAGE), FIRST, "image"),
        (blocks({"type": "text", "text": "x"}, {"type": "text"}), "messages.0.content.1.text", "missing"),
        (blocks({"type": "document", "source": {"type": "base64"}}), f"{FIRST}.source", "base64"),
        (blocks(result(tool_use_id="t")), f"{FIRST}.content.0", "image"),
        (blocks(result()), FIRST, "text"),
        (blocks({"type": "tool_use"}), FIRST, "tool_use"),
        (blocks({"type": "tool_use", "id": "t", "name": "Find"}), FIRST, "tool_use"),
        (blocks(), "messages", "content"),
        (blocks(3), "messages", "content"),
        ({"messages": []}, "messages", ""),
        ({"max_tokens": None}, "max_tokens", ""),
        ({"max_tokens": 0}, "max_tokens", ""),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "", "web_search"),
        ({"tools": [{"input_schema": {}}]}, "tools", "name"),
        ({"tools": [TOOL, {"input_schema": {}}]}, "tools.1.name", ""),
        ({"tools": [TOOL, {**TOOL, "name": "b", "input_schema": {"type": "array"}}]}, "tools.1.input_schema", ""),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type", "Input should be 'auto', 'any'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", ""),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice", ""),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", ""),
        ({"thinking": {"type": "perhaps"}}, "thinking", ""),
    ],
    ids=lambda case: str(case)[:60],
)  # fmt: skip
def test_what_a_chat_cannot_do_is_refused_in_anthropic_s_form_by_name_and_place(
    live: Running, change: dict[str, Any], place: str, about: str
) -> None:
    refused = live.post("/v1/messages", {**ASK, **change})
    assert refused.status_code == 400, refused.text
    error = refused.json()
    assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
    told = error["error"]["message"]
    assert told.startswith(place)
    assert about in told
    assert not any(name in told for name in ("Part", "input_text"))


def test_every_error_has_anthropic_s_form(live: Running) -> None:
    for response, kind in (
        (live.post("/v1/messages", {**ASK, "model": 7}), "invalid_request_error"),
        (live.get("/v1/messages"), "invalid_request_error"),
        (live.post("/v1/messages/batches", ASK), "not_found_error"),
        (HTTP.post(f"{live.url}/v1/messages", content=b"{", headers={"content-type": "application/json"}),
         "invalid_request_error"),
        (HTTP.post(f"{live.url}/v1/messages", content=b"{}"), "invalid_request_error"),
    ):  # fmt: skip
        assert response.json()["type"] == "error"
        assert response.json()["error"]["type"] == kind
    assert "error" in live.post("/v1/chat/completions", {}).json().keys() - {"type"}


def test_a_key_may_come_as_anthropic_s_clients_send_it(make_engine: Any, options: Any) -> None:
    with running(make_engine(), options(api_keys=("key-number-one",))) as server:
        for headers, status in (
            ({"x-api-key": "key-number-one"}, 200),
            ({"authorization": "Bearer key-number-one", "x-api-key": "other"}, 200),
            ({"x-api-key": "key-number-two"}, 401),
            ({}, 401),
        ):
            answer = server.post("/v1/messages", ASK, headers=headers)
            assert answer.status_code == status
            if status == 401:
                assert answer.json()["error"]["type"] == "authentication_error"


def test_models_are_listed_as_anthropic_s_clients_read_them(live: Running) -> None:
    listed = live.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == [listed["first_id"], listed["last_id"]]
    assert not listed["has_more"]
    assert {model["type"] for model in listed["data"]} == {"model"}
