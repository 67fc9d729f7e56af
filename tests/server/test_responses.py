"""OpenAI's Responses API, with the `openai` client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from fledge.engine import Engine
from fledge.server import response_store
from fledge.server.errors import ApiError
from fledge.server.message import Call, MessageParts
from fledge.server.response_store import ResponseStore, StoredResponse
from fledge.server.responses import ResponseRenderer, ResponsesRequest
from tests.server.conftest import MODEL, Running

ASK: dict[str, Any] = {"model": MODEL, "input": "Hi", "temperature": 0, "max_output_tokens": 6}


def test_a_response_is_the_chat_s_answer(live: Running) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 6}
    expected = live.post("/v1/chat/completions", chat).json()
    answer = live.client().responses.create(**ASK)
    assert answer.output_text == expected["choices"][0]["message"]["content"]
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
    assert answer.usage is not None
    assert answer.usage.total_tokens == expected["usage"]["total_tokens"]


def test_a_stream_adds_up_to_the_response(live: Running) -> None:
    events = list(live.client().responses.create(**ASK, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.incomplete"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == live.client().responses.create(**ASK).output_text  # type: ignore[union-attr]


def test_a_response_goes_on_from_an_earlier_one(live: Running, plain: Engine) -> None:
    client = live.client()
    first = client.responses.create(**ASK, instructions="Be brief.")
    second = client.responses.create(**{**ASK, "input": "Go on"}, previous_response_id=first.id)
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Go on"},
    ]
    assert second.usage is not None
    assert second.usage.input_tokens == len(
        plain.target.chat.prompt_ids(messages)
    )  # without the instructions
    count = client.responses.input_tokens.count
    assert count(input="Go on", previous_response_id=first.id).input_tokens == second.usage.input_tokens
    assert first.usage is not None
    assert count(input="Hi", instructions="Be brief.").input_tokens == first.usage.input_tokens
    unkept = client.responses.create(**ASK, store=False)
    for missing in (unkept.id, "resp_none"):
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            client.responses.create(**ASK, previous_response_id=missing)


def test_kept_responses_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "_MOST_BYTES", 1000)
    store = ResponseStore()
    for number in range(20):
        store.keep("a", str(number), StoredResponse({"id": str(number)}, [], 200))
    store.keep("a", "too long", StoredResponse({}, [], 1001))
    kept = [number for number in range(20) if store.find("a", str(number))]
    assert kept == [15, 16, 17, 18, 19]
    store.delete("a", "19")
    store.keep("a", "20", StoredResponse({}, [], 200))
    assert store.find("a", "15")
    for client, missing in (("a", "1"), ("b", "18"), ("a", "19"), ("a", "too long")):
        with pytest.raises(ApiError):
            store.get(client, missing)


def test_a_response_s_size_is_that_of_all_that_led_to_it(live: Running) -> None:
    first = live.post("/v1/responses", {**ASK, "input": "x" * 200}).json()
    second = live.post("/v1/responses", {**ASK, "previous_response_id": first["id"]}).json()
    sizes = [live.server.responses._stored["127.0.0.1", each["id"]].size for each in (first, second)]
    assert 200 < sizes[0] < sizes[1] < 200 + 2 * 300


def test_a_response_can_be_read_again_and_deleted(live: Running) -> None:
    client = live.client()
    whole = client.responses.create(**ASK)
    assert client.responses.retrieve(whole.id) == whole
    streamed = list(client.responses.create(**ASK, stream=True))[-1].response  # type: ignore[union-attr]
    assert client.responses.retrieve(streamed.id) == streamed
    client.responses.delete(whole.id)
    for again in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="no response of this id"):
            again(whole.id)
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(**ASK, previous_response_id=whole.id)
    assert live.get(f"/v1/responses/{streamed.id}?stream=true").status_code == 400


def test_items_of_earlier_responses_may_be_named(live: Running) -> None:
    """As Vercel's AI SDK sends a conversation on."""
    client = live.client()
    first = client.responses.create(**ASK)
    items: Any = [
        {"role": "user", "content": "Hi"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "Go on"},
    ]
    named = client.responses.create(**{**ASK, "input": items})
    linked = client.responses.create(**{**ASK, "input": "Go on"}, previous_response_id=first.id)
    assert named.output_text == linked.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="has not kept"):
        client.responses.create(**{**ASK, "input": items})


def test_a_form_is_kept(live: Running) -> None:
    schema = {"enum": ["tea"]}
    form: Any = {"format": {"type": "json_schema", "name": "cup", "schema": schema}}
    answer = live.client().responses.create(**{**ASK, "max_output_tokens": 20}, text=form)
    assert (json.loads(answer.output_text), answer.status) == ("tea", "completed")


def test_items_of_a_conversation_are_messages() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "input_text", "text": "Look"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "look", "arguments": "no JSON"},
        {"type": "function_call_output", "call_id": "c1", "output": "42"},
        {"type": "function_call_output", "call_id": "c2", "output": "error"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]},
    ]  # fmt: skip
    tool = {"type": "function", "name": "look", "parameters": {}, "strict": True}
    choice = {"type": "function", "name": "look"}
    body = ResponsesRequest.model_validate({"input": items, "tools": [tool], "tool_choice": choice})
    chat = body.chat([])
    assert [message.role for message in chat.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert chat.messages[1].thoughts == "Hm."
    assert [call.id for call in chat.messages[1].tool_calls or ()] == ["c1", "c2"]
    assert chat.messages[4].plain["content"] == "So."
    assert [each.function.name for each in chat.offered] == ["look"]


def test_calls_are_streamed_as_items() -> None:
    renderer = ResponseRenderer(ResponsesRequest(input="x"), MODEL, None, ResponseStore(), "a", 0)
    parts = [MessageParts() for _ in range(4)]
    parts[0].add("reasoning", "Hm.")
    parts[1].add("content", "See: ")
    parts[2].begin_call(0, Call("c1", "look", '{"a"'))
    parts[3].add_arguments(0, ": 1}")
    parts[3].begin_call(1, Call("c2", "wait", "{}"))
    events = [event for part in parts for event in renderer._read(part, last=part is parts[3])]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["arguments"] for item in done[2:]] == ['{"a": 1}', "{}"]
    added = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [0, 1, 2, 3]


def test_what_a_chat_cannot_do_is_refused(live: Running) -> None:
    for change in (
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"tools": [{"type": "web_search"}]},
        {"truncation": "middle"},
        {"background": True},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    ):
        assert live.post("/v1/responses", {**ASK, **change}).status_code == 400, change
