"""One streamed request: whatever a server answers, its record says it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from fledge.base.errors import ServerError
from fledge.bench.load.client import Call, RequestRecord, model_name, open_session, send
from fledge.bench.load.drive import Driven, drive
from fledge.bench.workloads import Prompt

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")


def against(handler: Handler, ask: Callable[[ClientSession, str], Awaitable[T]]) -> T:
    """Ask a server that answers everything so; it is given by a session and its address."""

    async def asked() -> T:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        async with TestServer(app) as server, open_session() as session:
            return await ask(session, f"http://{server.host}:{server.port}")

    return asyncio.run(asked())


def call(url: str) -> Call:
    return Call(url, "m", 8, 0.0, False, False, None, 10.0)


def driven(handler: Handler, prompts: list[Prompt], at_once: int) -> Driven:
    return against(handler, lambda session, url: drive(session, call(url), prompts, at_once))


def answered(*lines: str) -> RequestRecord:
    """The record of a request whose server answers with these `data:` lines and ends as it should."""
    return sent("".join(f"data: {line}\n\n" for line in (*lines, "[DONE]")))


def sent(text: str, content_type: str = "text/event-stream") -> RequestRecord:
    """The record of a request whose server sends this."""

    async def chat(request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type)

    return against(chat, lambda session, url: send(session, call(url), [], RequestRecord("q", 0, 0.0)))


@pytest.mark.parametrize("name", ["content", "reasoning", "reasoning_content"])
def test_thinking_counts_whatever_the_server_calls_it(name: str) -> None:
    one = answered(*(json.dumps({"choices": [{"delta": {name: word}}]}) for word in ("so ", "on")))
    assert one.ok
    assert (one.text, one.output_tokens) == ("so on", 2)


@pytest.mark.parametrize("line", ["7", '"text"', "[]", "null", '{"choices": [null]}', '{"usage": 7}'])
def test_a_line_that_is_no_chunk_fails_its_request_alone(line: str) -> None:
    one = answered('{"choices": [{"delta": {"content": "so"}}]}', line)
    assert not one.ok
    assert "something other than a chat completion" in str(one.error)


def test_an_answer_that_breaks_off_or_is_no_stream_is_a_failure() -> None:
    word, stop = ({"choices": [{"delta": {"content": "so"}, "finish_reason": end}]} for end in (None, "stop"))
    assert "was cut off" in str(sent(f"data: {json.dumps(word)}\n\n").error)
    assert sent(f"data: {json.dumps(stop)}\n\n").error is None  # some servers leave [DONE] out
    whole = sent('{"choices": [{"message": {"content": "so"}}]}', "application/json")
    assert whole.error == "the server sent application/json, not a stream of events"


def test_a_line_of_megabytes_fails_its_request_alone() -> None:
    one = answered(json.dumps({"choices": [{"delta": {"content": "x" * 3_000_000}}]}))
    assert "LineTooLong" in str(one.error)


def test_an_error_that_is_null_is_none() -> None:
    one = answered('{"error": null, "choices": [{"delta": {"content": "so"}}]}')
    assert (one.error, one.text) == (None, "so")


def test_a_conversation_goes_on_with_the_answers_and_not_with_the_thinking_before_them() -> None:
    asked: list[list[dict[str, str]]] = []

    async def chat(request: web.Request) -> web.Response:
        asked.append((await request.json())["messages"])
        deltas = (
            {"reasoning_content": "hm "},
            {"reasoning_content": "so", "content": "Be"},
            {"content": "cause"},
        )
        lines = [f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas]
        return web.Response(text="".join(lines) + "data: [DONE]\n\n")

    found = driven(chat, [Prompt("1", "chat", ("Why?", "And?"))], 1)
    assert [one.text for one in found.records] == ["hm soBecause"] * 2
    assert asked[1][1] == {"role": "assistant", "content": "Because"}


def test_a_level_lasts_until_its_last_request_has_failed_too() -> None:
    async def chat(request: web.Request) -> web.Response:
        if "slow" not in await request.text():
            return web.Response(text='data: {"choices": [{"delta": {"content": "so"}}]}\n\ndata: [DONE]\n\n')
        await asyncio.sleep(0.2)
        return web.Response(status=500)

    found = driven(chat, [Prompt(str(n), "chat", (text,)) for n, text in enumerate(("quick", "slow"))], 2)
    assert [one.ok for one in found.records] == [True, False]
    assert found.seconds >= 0.2


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (401, '{"error": "bad key"}', 'HTTP 401: {"error": "bad key"}; .* OPENAI_API_KEY, which is not set'),
        (200, '{"data": []}', "names no model"),
        (200, "<html>", "names no model"),
    ],
)
def test_a_server_that_names_no_model_says_why(status: int, body: str, problem: str) -> None:
    async def models(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    with pytest.raises(ServerError, match=problem):
        against(models, model_name)


def test_a_server_is_sent_what_the_workload_has_besides_its_turns() -> None:
    bodies = []

    async def chat(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        call = {"function": {"name": "look_up", "arguments": "{}"}}
        lines = [json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]}), "[DONE]"]
        text = "".join(f"data: {line}\n\n" for line in lines)
        return web.Response(text=text, content_type="text/event-stream")

    prompt = Prompt(
        "q", "chat", ("one", "two"), "Be short.", json.dumps(["tool"]), '{"think": false}', (5, 7)
    )
    assert [record.ok for record in driven(chat, [prompt], 1).records] == [True, True]
    assert [body["max_tokens"] for body in bodies] == [5, 7]  # not the 8 of all requests
    for body in bodies:
        assert (body["tools"], body["chat_template_kwargs"]) == (["tool"], {"think": False})
        assert body["messages"][0] == {"role": "system", "content": "Be short."}
    assert [m["role"] for m in bodies[1]["messages"]] == ["system", "user", "assistant", "user"]
