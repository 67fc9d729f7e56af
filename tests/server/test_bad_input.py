"""Nothing a client sends breaks the server: wrong bodies get a 4xx in OpenAI's shape, and the next request works."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable

import psutil
import pytest
from pydantic import BaseModel, ValidationError

from fledge.engine import Engine
from fledge.server.options import ServerOptions
from fledge.server.protocol import ChatRequest, CompletionRequest
from fledge.server.tokenizing import DetokenizeRequest
from tests.server.conftest import HTTP, MODEL, Running, running, wait_for

PATHS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
JSON = {"content-type": "application/json"}
GOOD = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}


def refused(server: Running, path: str, body: bytes, status: int | None = None) -> None:
    response = server.post(path, content=body, headers=JSON)
    assert 400 <= response.status_code < 500, (response.status_code, response.text, body[:80])
    assert status is None or response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]


def malformed(rng: random.Random) -> bytes:
    """One of many kinds of wrong."""
    junk = rng.choice(
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "1e999",
            "9" * 400,
            "-1",
            "true",
            "{}",
            "[]",
            '"x"',
            '"\\ud800"',
            "[[[1]]]",
        ]
    )
    field = rng.choice(
        [
            "temperature",
            "top_p",
            "max_tokens",
            "n",
            "seed",
            "stop",
            "logit_bias",
            "messages",
            "prompt",
            "stream_options",
        ]
    )
    depth = rng.choice([100, 5000, 100_000])
    kinds: list[Callable[[], bytes]] = [
        lambda: b"[" * depth + b"]" * depth,
        lambda: b'{"messages":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}",
        lambda: b'{"messages": [{"role": "user", "content": "' + bytes([rng.randrange(128, 256)]) + b'"}]}',
        lambda: b'{"messages": "Hi", "prompt": {}, "tokens": "a"}',
        lambda: json.dumps(GOOD).encode()[: rng.randrange(1, 40)],
        lambda: bytes(rng.randrange(256) for _ in range(rng.randrange(60))),
        lambda: f'{{"messages": {junk}, "prompt": {{"a": {junk}}}, "tokens": {{"b": {junk}}}}}'.encode(),
        lambda: f'{{"unknown-{rng.random()}": {junk}, "{field}": {junk}}}'.encode(),
        lambda: b"",
        lambda: b"null",
        lambda: b'"' + b"a" * 10000 + b'"',
    ]
    return rng.choice(kinds)()


@pytest.mark.parametrize("bodies", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_malformed_bodies_get_a_4xx_and_memory_stays(live: Running, bodies: int) -> None:
    rng = random.Random(7)
    process = psutil.Process()
    for round_ in range(2):
        before = process.memory_info().rss
        for _ in range(bodies // 2):
            refused(live, rng.choice(PATHS), malformed(rng))
        if round_:  # the first half warms up
            print(
                f"memory grew by {(process.memory_info().rss - before) / 2**20:.1f} MiB over {bodies // 2} bodies"
            )
            assert process.memory_info().rss - before < 30 << 20
    assert live.post("/v1/chat/completions", GOOD).status_code == 200


MANY = 100_000


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (CompletionRequest, {"prompt": ["a", 1] * MANY}),
        (CompletionRequest, {"prompt": [[1.5] * MANY]}),
        (CompletionRequest, {"prompt": [[1]] * MANY}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(n): "x" for n in range(MANY)}}),
        (CompletionRequest, {"prompt": "a", "stop_token_ids": ["x"] * 256}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{"type": "x"}] * 1000}] * 1000}),
        (ChatRequest, {"messages": [{"role": "user"}], **{f"unknown-{n}": 1 for n in range(MANY)}}),
        (DetokenizeRequest, {"tokens": ["x"] * MANY}),
    ],
)
def test_what_is_wrong_a_hundred_thousand_times_is_told_a_few_times(
    form: type[BaseModel], body: dict[str, object]
) -> None:
    """Nobody else is answered while a body is checked and its errors are written down."""
    with pytest.raises(ValidationError) as caught:
        form.model_validate(body)
    assert caught.value.error_count() < 10


def test_a_huge_body_is_refused_unread_or_unkept(live: Running) -> None:
    piece = b"x" * (1 << 20)
    process = psutil.Process()
    before = process.memory_info().rss
    length = {**JSON, "content-length": str(100 << 20)}
    announced = live.post("/v1/completions", content=(piece for _ in range(100)), headers=length)
    chunked = live.post("/v1/completions", content=(piece for _ in range(100)), headers=JSON)
    for response in (announced, chunked):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"
    assert process.memory_info().rss - before < 30 << 20


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"n": 2, "best_of": 1}, None),
        ({"stop": ""}, "stop"),
        ({"stop": [999999]}, "stop"),
        ({"stop_token_ids": [999999]}, "stop_token_ids"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1000}}, "logit_bias"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"echo": True}, "echo"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 300}, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, None),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, None),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": "x", "tool_call_id": "1"}]}, "messages"),
        ({"top_logprobs": 3}, None),
        ({"stream_options": {"include_usage": True}}, None),
        ({"return_trace": True}, None),
        ({"max_completion_tokens": 9}, None),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"no_such_thing": 1}, "no_such_thing"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"messages": [{"role": "assistant", "content": "a", "prefix": True}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a", "images": ["x"]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "a", "reasoning": "b"}]}, "messages"),
        ({"best_of": 2, "stream": True}, None),
        ({"bad_words": ["a"], "structured_outputs": {"regex": "a"}}, None),
        ({"bad_words": ["a"], "ignore_eos": True}, None),
        ({"guided_json": {}, "guided_regex": "a"}, None),
        ({"continue_final_message": True}, None),
        ({"continue_final_message": True, "add_generation_prompt": True}, None),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {"const": 1}}}}},
            "response_format",
        ),
    ],
    ids=str,
)
def test_what_is_wrong_or_unsupported_is_named(
    live: Running, change: dict[str, object], param: str | None
) -> None:
    response = live.post("/v1/chat/completions", {**GOOD, **change})
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    named = response.json()["error"]["param"]
    assert (named or "").split(".")[0] == (param or "")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "\ud800 half", "max_tokens": 2}),
        ("/v1/chat/completions", {**GOOD, "messages": [{"role": "user", "content": "\ud800 half"}]}),
        ("/tokenize", {"prompt": "\ud800 half"}),
    ],
)
def test_half_a_surrogate_pair_is_refused(live: Running, path: str, body: dict[str, object]) -> None:
    response = live.post(path, content=json.dumps(body).encode(), headers=JSON)
    assert response.status_code == 400
    assert "surrogate" in response.json()["error"]["message"]


@pytest.mark.parametrize("body", [b'{"prompt": "\xff"}', b'{"n": ' + b"9" * 5000 + b"}", b"[" * 100_000])
def test_what_no_json_parser_reads_is_called_so(live: Running, body: bytes) -> None:
    response = live.post("/v1/completions", content=body, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "invalid_json"


def test_nesting_that_is_just_about_parsed_is_refused(live: Running) -> None:
    """The body's parser begins higher on the interpreter's stack than what goes through the values later."""
    for depth in range(840, 1000, 4):
        nested = '{"a": ' * depth + "1" + "}" * depth
        body = json.dumps(GOOD)[:-1] + f', "chat_template_kwargs": {{"x": {nested}}}}}'
        refused(live, "/v1/chat/completions", body.encode(), 400)


def test_a_prompt_beyond_the_vocabulary_is_called_the_prompt(live: Running) -> None:
    response = live.post("/v1/completions", {"prompt": [99999], "echo": True, "max_tokens": 1})
    assert response.json()["error"]["param"] == "prompt"


def test_strangers_cannot_make_up_series(live: Running) -> None:
    for path in ("/made/up/1", "/made/up/2"):
        live.get(path)
        live.post(path, content=b"x", headers={"content-type": "text/plain"})
    live.get("/v1/models/none")
    last = 'fledge:http_responses_total{route="/v1/models/{model:path}",status="404"}'
    wait_for(lambda: last in live.get("/metrics").text)  # an answer is counted once it has left
    page = live.get("/metrics").text
    assert "made/up" not in page
    assert 'fledge:http_responses_total{route="other",status="415"}' in page


def test_values_that_ask_for_nothing_are_fine(live: Running) -> None:
    idle = {
        "tools": [],
        "response_format": {"type": "text"},
        "best_of": 1,
        "echo": False,
        "logprobs": None,
        "metadata": {},
        "min_tokens": 0,
        "skip_special_tokens": True,
        "x": None,
        "top_logprobs": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "include_obfuscation": False},
    }
    assert live.post("/v1/chat/completions", {**GOOD, **idle}).status_code == 200
    assert live.post("/v1/chat/completions", {**GOOD, "n": 2, "best_of": 2}).status_code == 200


@pytest.mark.parametrize(
    ("path", "change", "param", "told"),
    [
        ("completions", {"prompt": []}, "prompt", "at least 1 item"),
        ("completions", {"prompt": [[]]}, "prompt.0", "at least 1 item"),
        ("completions", {"prompt": [-1]}, "prompt.0", "greater than or equal to 0"),
        ("completions", {"prompt": ["a", [5]]}, "prompt", "a text, a list of texts, a list of token ids"),
        ("completions", {"prompt": None}, "prompt", "a text, a list of texts, a list of token ids"),
        ("completions", {"prompt": "a", "stop": [""]}, "stop.0", "at least 1 character"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": None}]},
            "messages.0.content",
            "a text",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0",
            "",
        ),
    ],
)
def test_a_field_of_several_forms_is_told_in_the_clients_terms(
    live: Running, path: str, change: dict[str, object], param: str, told: str
) -> None:
    error = live.post(f"/v1/{path}", change).json()["error"]
    assert error["param"].startswith(param)
    assert told in error["message"]
    assert not re.search(r"constrained|list\[|\.str\b", error["message"] + error["param"])


def test_an_error_never_repeats_the_prompt(live: Running) -> None:
    secret = "my card is 4111 1111 1111 1111"
    for body in (
        {"messages": secret},
        {"messages": [{"role": secret, "content": secret}]},
        {"prompt": {"a": secret}},
    ):
        for path in PATHS:
            assert "4111" not in live.post(path, body).text


def test_other_content_types_and_places(live: Running) -> None:
    assert (
        live.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    )
    assert live.get("/nowhere").json()["error"]["type"] == "not_found_error"
    assert live.get("/v1/completions").status_code == 405


def test_a_slash_too_many_is_no_redirect(live: Running) -> None:
    answer = live.post("/v1/chat/completions/", GOOD)
    assert answer.status_code == 200
    assert answer.json()["choices"]
    assert live.get("/v1/models/").json() == live.get("/v1/models").json()
    assert live.get("/health/").status_code == 200
    assert live.get("/nowhere/").status_code == 404


def test_a_body_that_never_ends_is_given_up(
    make_engine: Callable[..., Engine], options: Callable[..., ServerOptions]
) -> None:
    with running(make_engine(), options(body_timeout=0.3)) as server, server.connect() as connection:
        connection.sendall(
            b"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
        )
        assert b" 408 " in connection.recv(4096)


def test_keys_guard_everything_but_probes(
    make_engine: Callable[..., Engine], options: Callable[..., ServerOptions]
) -> None:
    with running(make_engine(), options(api_keys=("first-key-1", "second-key-2"))) as server:
        for path in ("/v1/chat/completions", "/tokenize", "/detokenize"):
            assert server.post(path, GOOD).status_code == 401
        for path in ("/v1/models", "/v1/models/", "/server_info", "/openapi.json"):
            assert server.get(path).status_code == 401
        for path in ("/", "/health", "/ready", "/metrics"):
            assert server.get(path).status_code == 200
        for header in ("Bearer wrong-key-3", "Basic first-key-1", "first-key-1", "Bearer", "Bearer é"):
            response = server.get("/v1/models", headers={"authorization": header.encode()})
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        for key in ("first-key-1", "second-key-2"):
            assert server.client(key).models.list().data


def test_other_origins_get_no_permission_unless_told(
    live: Running, make_engine: Callable[..., Engine], options: Callable[..., ServerOptions]
) -> None:
    page = {"origin": "https://example.org", "access-control-request-method": "POST"}
    from_page = live.get("/v1/models", headers=page)
    assert "access-control-allow-origin" not in from_page.headers
    with running(
        make_engine(), options(cors_origins=("https://example.org",), api_keys=("a-key-of-tests",))
    ) as server:
        assert (
            server.get("/v1/models", headers={**page, "authorization": "Bearer a-key-of-tests"}).headers[
                "access-control-allow-origin"
            ]
            == "https://example.org"
        )
        refusal = server.get("/v1/models", headers={**page, "authorization": "Bearer wrong-key"})
        assert refusal.status_code == 401  # and the page may read why
        assert refusal.headers["access-control-allow-origin"] == "https://example.org"


@pytest.mark.parametrize("path", ["/", "/health", "/ready", "/version", "/v1/models", f"/v1/models/{MODEL}"])
def test_head_is_answered_as_get_without_a_body(live: Running, path: str) -> None:
    got, head = live.get(path), HTTP.head(live.url + path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]
    assert HTTP.head(f"{live.url}/v1/completions").status_code == 405
