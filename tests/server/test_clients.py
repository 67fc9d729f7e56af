"""What real clients send is answered: hints are dropped, vLLM's fields do what they do there, the rest is refused."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from fledge.engine import Engine
from fledge.server import strict
from fledge.server.protocol import ChatRequest, CompletionRequest
from tests.server.conftest import HTTP, Running, chunks

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def message(server: Running, **change: Any) -> dict[str, Any]:
    response = server.post("/v1/chat/completions", {**HI, **change})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize(
    "hint",
    [
        {"metadata": {"run": "a"}},
        {"store": True},
        {"cache_prompt": True},
        {"service_tier": "flex"},
        {"prompt_cache_key": "k" * 2000},
        {"verbosity": "low"},
        {"user": 17, "safety_identifier": "u" * 2000},
        {"reasoning_effort": "low"},
        {"stream_options": None, "priority": 3},
        {"max_tokens": 4.0, "n": 1.0, "top_k": 0.0, "seed": 5.0},
        {"temperature": 1e-8},
        {"temperature": 1, "top_p": 0},
        {
            "messages": [
                {"role": "user", "content": "Hi", "id": "m1", "opts": {"x": 1}, "cache_control": {"a": 1}}
            ]
        },
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"a": "b"}}]}
            ]
        },
        {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
        {"prediction": {"type": "content", "content": "Hello"}},
        {"web_search_options": {}},
        {"keep_alive": "5m"},
        {"samplers": ["top_k", "top_p", "temperature"]},
        {"provider": {"order": ["a"]}, "route": "fallback"},
        {"ttl": 60, "draft_model": "x"},
        {"options": {"num_ctx": 4096, "num_thread": 2}},
        {"mirostat": 0, "dry_multiplier": 0.0, "dry_base": 1.75, "xtc_probability": 0, "typ_p": 1},
        {"enable_thinking": False},  # the template doesn't look at it
    ],
    ids=lambda hint: next(iter(hint)),
)
def test_what_cannot_change_an_answer_doesn_t(live: Running, hint: dict[str, Any]) -> None:
    assert message(live, **hint)["message"]["content"] == message(live)["message"]["content"]


def test_a_dropped_field_is_logged_once(
    live: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strict, "_logged", set())
    with caplog.at_level("INFO", logger="fledge.server"):
        for _ in range(3):
            message(live, metadata={"secret": "x"}, messages=[{**HI["messages"][0], "4111 1111": 1}])
    told = [record.getMessage() for record in caplog.records if "ignored" in record.getMessage()]
    assert len(told) == 1
    assert "metadata" in told[0]
    assert "secret" not in caplog.text
    assert "4111" not in caplog.text  # a name may be anything


def test_minus_one_is_no_limit() -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        assert ChatRequest.model_validate({"messages": HI["messages"], field: -1}).wanted_tokens is None
    assert (
        CompletionRequest.model_validate({"prompt": "a", "max_tokens": -1}).wanted_tokens == 16
    )  # the default


def test_a_stop_is_part_of_the_text_if_that_is_wanted(live: Running, plain: Engine) -> None:
    whole = plain.generate([[40, 50, 60]], max_tokens=20, ignore_eos=True)[0]
    end = whole.text[8:11]
    body = {"prompt": [40, 50, 60], "max_tokens": 20, "temperature": 0, "ignore_eos": True, "stop": [end]}
    for stream in (False, True):
        texts = []
        for more in ({}, {"include_stop_str_in_output": True}):
            answer = live.post("/v1/completions", {**body, **more, "stream": stream})
            parts = chunks(answer.text) if stream else [answer.json()]
            texts.append("".join(part["choices"][0]["text"] for part in parts))
        assert texts[1] == texts[0] + end
    stop_id = whole.token_ids[5]
    body = {**body, "stop": None, "stop_token_ids": [stop_id], "include_stop_str_in_output": True}
    found = live.post("/v1/completions", body).json()["choices"][0]
    upto = whole.token_ids[: whole.token_ids.index(stop_id) + 1]
    assert found["text"].strip() == plain.target.tokenizer.decode(upto, skip_special_tokens=True).strip()


def test_a_last_message_is_continued(live: Running, plain: Engine) -> None:
    begun = [*HI["messages"], {"role": "assistant", "content": "It is"}]
    ids = plain.target.chat.prompt_ids(begun, continues=True)
    assert plain.target.tokenizer.decode(ids).endswith("assistant\nIt is")
    expected = plain.generate([ids], max_tokens=6)[0]
    for more in ({}, {"add_generation_prompt": False}):
        answer = live.post(
            "/v1/chat/completions",
            {
                **HI,
                "messages": begun,
                "max_tokens": 6,
                "continue_final_message": True,
                "return_token_ids": True,
                **more,
            },
        ).json()["choices"][0]
        assert answer["prompt_token_ids"] == ids
        assert answer["token_ids"] == expected.token_ids
    bare = live.post(
        "/v1/chat/completions", {**HI, "add_generation_prompt": False, "return_token_ids": True}
    ).json()
    shown = plain.target.tokenizer.decode(bare["choices"][0]["prompt_token_ids"])
    assert "assistant" not in shown


def test_bad_words_are_not_said(live: Running) -> None:
    usual = message(live, max_tokens=40)["message"]["content"]
    bad = [usual[4:6], usual[11:13]]
    answer = message(live, max_tokens=40, bad_words=bad)["message"]["content"]
    assert answer
    assert not any(word in answer for word in bad)


def test_the_best_of_several_answers_is_given(live: Running) -> None:
    body = {
        "prompt": [[40, 50], [60]],
        "max_tokens": 6,
        "seed": 1,
        "temperature": 2,
        "logprobs": 0,
        "ignore_eos": True,
    }
    every = live.post("/v1/completions", {**body, "n": 5}).json()["choices"]
    best = live.post("/v1/completions", {**body, "n": 2, "best_of": 5}).json()["choices"]
    assert [choice["index"] for choice in best] == [0, 1, 2, 3]
    for first, kept in ((0, best[:2]), (5, best[2:])):
        ranked = sorted(every[first : first + 5], key=lambda c: -sum(c["logprobs"]["token_logprobs"]))
        assert [choice["text"] for choice in kept] == [choice["text"] for choice in ranked[:2]]
    silent = live.post("/v1/completions", {**body, "best_of": 2, "logprobs": None}).json()["choices"]
    assert [choice["logprobs"] for choice in silent] == [None, None]


@pytest.mark.parametrize(
    ("guided", "same"),
    [
        ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"guided_regex": "[ab]{3}"}, {"regex": "[ab]{3}"}),
        (
            {"guided_json": {"enum": ["tea"]}, "guided_decoding_backend": "xgrammar"},
            {"json": {"enum": ["tea"]}},
        ),
        ({"guided_grammar": 'start: "x" "y"'}, {"grammar": 'start: "x" "y"'}),
    ],
    ids=lambda given: next(iter(given)),
)
def test_vllm_s_older_names_of_forms(live: Running, guided: dict[str, Any], same: dict[str, Any]) -> None:
    answers = [message(live, max_tokens=30, **body) for body in (guided, {"structured_outputs": same})]
    assert answers[0]["message"]["content"] == answers[1]["message"]["content"] != ""


def test_a_prompt_is_cut_to_its_last_tokens(live: Running) -> None:
    body = {"prompt": [40, 50, 60], "max_tokens": 2, "truncate_prompt_tokens": 2, "return_token_ids": True}
    assert live.post("/v1/completions", body).json()["choices"][0]["prompt_token_ids"] == [50, 60]
    body = {"prompt": [40] * 600, "max_tokens": 12, "truncate_prompt_tokens": -1}
    assert live.post("/v1/completions", body).json()["usage"]["prompt_tokens"] == 500


@pytest.mark.parametrize(
    "arguments",
    [
        '{"s": "He said "hi""}',
        "{'a': 1}",
        '{"a": True}',
        '{"s": "cut',
        "[]",
        "null",
        '{"s": "\\ud83d"}',
        "9" * 5000,
        "",
    ],
)
def test_whatever_a_call_s_arguments_are_they_can_be_sent_back(arguments: str) -> None:
    call = {**CALL, "function": {"name": "look", "arguments": arguments}}
    body = ChatRequest.model_validate(
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]}
    )
    shown = body.messages[0].plain["tool_calls"][0]["function"]["arguments"]
    assert shown == (arguments or {})


def test_reasoning_goes_by_both_names() -> None:
    for name in ("reasoning", "reasoning_content"):
        body = {"messages": [{"role": "assistant", "content": "Hello", name: "A greeting."}]}
        (given,) = ChatRequest.model_validate(body).messages
        assert given.plain["reasoning_content"] == "A greeting."
    answered: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None, "reasoning": "A"}
    assert ChatRequest.model_validate({"messages": [answered]}).messages[0].plain["content"] == ""


def test_a_form_beyond_the_limits_is_an_error(live: Running) -> None:
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(600)}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wide}}
    refused = live.post("/v1/chat/completions", {**HI, "response_format": form})
    assert refused.status_code == 400
    assert "p599" not in refused.text
    later = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-c]{30}$"}, "b": wide}}
    later |= {"required": ["a", "b"], "x-guidance": {"whitespace_flexible": False}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": later}}
    body = {**HI, "max_tokens": 80, "response_format": form}
    failed = live.post("/v1/chat/completions", body)
    assert (failed.status_code, failed.json()["error"]["code"]) == (400, "grammar_too_complex")
    events = live.post("/v1/chat/completions", {**body, "stream": True}).text.split("\n\n")
    assert "grammar_too_complex" in events[-3]
    assert '"finish_reason":"stop"' not in "".join(events)


def test_two_lengths_of_a_body_end_the_connection(live: Running) -> None:
    with live.connect() as connection:
        connection.sendall(
            b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 5\r\n"
            b"transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        received = b""
        while piece := connection.recv(4096):  # until it is closed
            received += piece
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:9", 200),
        ("LOCALHOST.", 200),
        ("[::1]:9", 200),
        ("127.0.0.1", 200),
        ("app.localhost", 200),
        ("fledge", 200),
    ],
)
def test_without_keys_a_domain_name_that_leads_here_is_refused(live: Running, host: str, status: int) -> None:
    assert HTTP.get(f"{live.url}/v1/models", headers={"host": host}).status_code == status


def test_a_large_body_may_name_its_form_in_the_older_way(live: Running) -> None:
    """It is parsed in a thread, and then once more as what it became."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    large = {
        **HI,
        "messages": [*HI["messages"], {"role": "user", "content": " " * 40_000}],
        "max_tokens": 400,
    }
    for body in (HI, large):
        reply = HTTP.post(f"{live.url}/v1/chat/completions", json={**body, "guided_json": schema})
        assert reply.status_code != 400 or "context" in reply.text, reply.text


def test_a_large_body_is_read_beside_the_event_loop(live: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    validate = ChatRequest.model_validate.__func__  # type: ignore[attr-defined]

    def watched(cls: Any, fields: Any) -> Any:
        threads.append(threading.current_thread())
        return validate(cls, fields)

    monkeypatch.setattr(ChatRequest, "model_validate", classmethod(watched))
    loop = asyncio.run_coroutine_threadsafe(_thread(), live.loop).result()
    large = {
        **HI,
        "messages": [*HI["messages"], {"role": "user", "content": [{"type": "text", "text": "x"}] * 1024}]
        * 2,
    }
    assert live.post("/v1/chat/completions", large).status_code == 400  # it is longer than the context
    assert threads
    assert loop not in threads
    wrong = live.post("/v1/chat/completions", {**large, "n": 0}).json()["error"]
    assert wrong["param"] == "n"


@pytest.mark.parametrize("speculate", [False, True])
def test_a_prompt_s_tokens_have_log_probabilities_with_and_without_a_head(
    live: Running, plain: Engine, speculate: bool
) -> None:
    """As lm-eval's multiple choice asks for them."""
    prompt = [40 + n % 90 for n in range(150)]
    logits = _logits(plain, prompt)
    expected = torch.log_softmax(logits, -1)[torch.arange(149), torch.tensor(prompt[1:])]
    body = {
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0,
        "echo": True,
        "logprobs": 2,
        "speculate": speculate,
    }
    for _ in range(2):  # what the prefix cache holds has no logits
        found = live.post("/v1/completions", body).json()["choices"][0]["logprobs"]
        assert {len(found[name]) for name in found} == {151}
        assert found["token_logprobs"][0] is None
        assert torch.tensor(found["token_logprobs"][1:150]).allclose(expected, atol=1e-4)
        best = [max(top.values()) for top in found["top_logprobs"][1:]]
        assert torch.tensor(best[:149]).allclose(torch.log_softmax(logits, -1).max(-1).values, atol=1e-4)
        assert best[149] == found["token_logprobs"][150]  # the answer's own
    body = {"prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0, "speculate": speculate}
    scored = live.post("/v1/completions", body).json()["choices"][0]["prompt_logprobs"]
    assert scored[0] is None
    values = [entry[str(token)]["logprob"] for entry, token in zip(scored[1:], prompt[1:], strict=True)]
    assert torch.tensor(values).allclose(expected, atol=1e-4)


def _logits(engine: Engine, prompt: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(engine.target.folder, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([prompt])).logits[0, :-1]
    return logits


def test_small_routes_that_clients_ask_for(live: Running) -> None:
    assert live.get("/ping").status_code == 200
    assert live.get("/load").json() == {"server_load": 0}
    assert "<|im_start|>" in live.get("/tokenizer_info").json()["chat_template"]
    refused = live.post("/v1/embeddings", {"input": "a"})
    assert refused.status_code == 404
    assert "embeddings" in refused.json()["error"]["message"]


async def _thread() -> threading.Thread:
    return threading.current_thread()
