"""The `openai` client, sync, async and streaming: what it sends is answered with what the engine itself would say."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Literal

import openai
import pydantic
import pytest

from fledge.engine import Engine
from tests.server.conftest import MODEL, QUESTIONS, TARGET, Running, chunks


def messages(question: str) -> Any:
    return [{"role": "user", "content": question}]


GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "extra_body": {"ignore_eos": True}}


def test_chat_is_plain_decodes_answer(live: Running, plain: Engine) -> None:
    client = live.client()
    for question, expected in zip(
        QUESTIONS, plain.generate(QUESTIONS, max_tokens=24, ignore_eos=True), strict=True
    ):
        answer = client.chat.completions.create(model=MODEL, messages=messages(question), **GREEDY)
        assert answer.choices[0].message.content == expected.text
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].finish_reason == "length"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 24
        assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
        assert answer.usage.total_tokens == 24 + answer.usage.prompt_tokens
        speculation = answer.usage.speculation  # type: ignore[attr-defined]
        assert speculation["tau"] > 1.2
        assert speculation["rounds"] < 23


def test_a_stream_adds_up_and_ends_with_usage(live: Running, plain: Engine) -> None:
    expected = plain.generate([QUESTIONS[1]], max_tokens=24, ignore_eos=True)[0]
    stream = live.client().chat.completions.create(
        model=MODEL,
        messages=messages(QUESTIONS[1]),
        stream=True,
        stream_options={"include_usage": True},
        **GREEDY,
    )
    chunks = list(stream)
    assert len({chunk.id for chunk in chunks}) == 1
    *parts, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 24
    assert "".join(part.choices[0].delta.content or "" for part in parts) == expected.text
    assert next(part.choices[0].delta.role for part in parts) == "assistant"
    assert [part.choices[0].finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    assert all(part.usage is None for part in parts)
    assert len(parts) > 3


def test_async_streams_run_side_by_side(live: Running, plain: Engine) -> None:
    expected = plain.generate(QUESTIONS, max_tokens=24, ignore_eos=True)

    async def one(client: openai.AsyncOpenAI, question: str) -> str:
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages(question), stream=True, **GREEDY
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with live.async_client() as client:
            return list(await asyncio.gather(*(one(client, question) for question in QUESTIONS)))

    assert asyncio.run(all_of_them()) == [answer.text for answer in expected]


def test_completions_take_texts_ids_and_lists(live: Running, plain: Engine) -> None:
    client = live.client()
    ids = [[40, 50, 60], [70, 80, 90, 100]]
    expected = [answer.text for answer in plain.generate(ids, max_tokens=9, ignore_eos=True)]
    options: dict[str, Any] = {**GREEDY, "max_tokens": 9}
    single = client.completions.create(model=MODEL, prompt=ids[0], **options)
    assert single.choices[0].text == expected[0]
    several = client.completions.create(model=MODEL, prompt=ids, n=2, **options)
    assert [choice.text for choice in several.choices] == [expected[0]] * 2 + [expected[1]] * 2
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.usage is not None
    assert (several.usage.prompt_tokens, several.usage.completion_tokens) == (7, 36)
    text = client.completions.create(model=MODEL, prompt="Why is", **options).choices[0].text
    tokens = live.post("/tokenize", {"prompt": "Why is"}).json()["tokens"]
    assert text == plain.generate([tokens], max_tokens=9, ignore_eos=True)[0].text
    assert client.completions.create(model=MODEL, prompt="Why", temperature=0).usage.completion_tokens <= 16  # type: ignore[union-attr]
    merged = ["", "", "", ""]
    for chunk in client.completions.create(model=MODEL, prompt=ids, n=2, stream=True, **options):
        merged[chunk.choices[0].index] += chunk.choices[0].text
    assert merged == [choice.text for choice in several.choices]


def test_echo_puts_the_prompt_before_the_answer(live: Running) -> None:
    client = live.client()
    options: dict[str, Any] = {**GREEDY, "max_tokens": 9, "model": MODEL}
    prompts = ["Why is", "Hi"]
    plainly = [choice.text for choice in client.completions.create(prompt=prompts, **options).choices]
    echoed = client.completions.create(prompt=prompts, echo=True, **options)
    assert [choice.text for choice in echoed.choices] == [
        a + b for a, b in zip(prompts, plainly, strict=True)
    ]
    merged = ["", ""]
    for chunk in client.completions.create(prompt=prompts, echo=True, stream=True, **options):
        merged[chunk.choices[0].index] += chunk.choices[0].text
    assert merged == [choice.text for choice in echoed.choices]
    ids = live.post("/tokenize", {"prompt": "Why is"}).json()["tokens"]
    assert (
        client.completions.create(prompt=ids, echo=True, **options).choices[0].text == echoed.choices[0].text
    )
    with pytest.raises(openai.BadRequestError, match="can't be streamed"):
        client.completions.create(prompt="Hi", echo=True, logprobs=1, stream=True, **options)


def test_usage_tells_what_the_prefix_cache_held(live: Running) -> None:
    prompt = live.post("/tokenize", {"prompt": "a text of some length, asked for twice, " * 4}).json()[
        "tokens"
    ]
    options: dict[str, Any] = {**GREEDY, "max_tokens": 2, "model": MODEL, "prompt": prompt}
    live.client().completions.create(**options)
    usage = live.client().completions.create(n=2, **options).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert 0 < (usage.prompt_tokens_details.cached_tokens or 0) < len(prompt) == usage.prompt_tokens


def test_a_request_keeps_the_id_its_client_gave(live: Running) -> None:
    given = live.client().chat.completions.with_raw_response.create(
        model=MODEL, messages=messages("Hi"), extra_headers={"x-request-id": "trace-17"}, **GREEDY
    )
    assert given.headers["x-request-id"] == "trace-17"
    assert given.parse().id.startswith("chatcmpl-")
    for unusable in ("two words", "x" * 200):
        answer = live.get("/health", headers={"x-request-id": unusable})
        assert len(answer.headers["x-request-id"]) == 32


def test_seeds_repeat_and_choices_differ(live: Running) -> None:
    client = live.client()
    sampled: dict[str, Any] = {
        "model": MODEL, "messages": messages("Hi"), "max_tokens": 20, "n": 3, "seed": 5, "temperature": 2.0,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    first = [choice.message.content for choice in client.chat.completions.create(**sampled).choices]
    again = [choice.message.content for choice in client.chat.completions.create(**sampled).choices]
    assert first == again
    assert len(set(first)) == 3
    sampled["extra_body"] = {"ignore_eos": True, "speculate": False}
    plainly = client.chat.completions.create(**sampled)
    assert [choice.message.content for choice in plainly.choices] == first
    assert plainly.usage.speculation["drafted_rounds"] == 0  # type: ignore[union-attr]


def test_logprobs_of_both_interfaces(live: Running) -> None:
    client = live.client()
    chat = client.chat.completions.create(
        model=MODEL, messages=messages("Hi"), logprobs=True, top_logprobs=3, **{**GREEDY, "max_tokens": 6}
    )
    content = chat.choices[0].logprobs.content  # type: ignore[union-attr]
    assert content is not None
    assert len(content) == 6
    for entry in content:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert math.isclose(entry.top_logprobs[0].logprob, entry.logprob, abs_tol=1e-4)
    raw = b"".join(bytes(entry.bytes or []) for entry in content)
    assert raw.decode("utf-8", errors="replace") == chat.choices[0].message.content
    text = client.completions.create(model=MODEL, prompt=[40, 50], logprobs=2, **{**GREEDY, "max_tokens": 5})
    found = text.choices[0].logprobs
    assert found is not None
    assert len(found.tokens or []) == len(found.token_logprobs or []) == len(found.text_offset or []) == 5
    offsets: list[int] = []
    pieces: list[str] = []
    for part in client.completions.create(
        model=MODEL, prompt=[40, 50], logprobs=0, stream=True, **{**GREEDY, "max_tokens": 5}
    ):
        if part.choices[0].logprobs is not None:
            pieces += part.choices[0].logprobs.tokens or []
            offsets += part.choices[0].logprobs.text_offset or []
    assert pieces == found.tokens
    assert offsets == found.text_offset
    for piece, offset in zip(pieces, offsets, strict=True):
        assert piece.startswith("bytes:") or text.choices[0].text[offset:].startswith(piece)
    for top, piece, logprob in zip(found.top_logprobs, pieces, found.token_logprobs, strict=True):  # type: ignore[arg-type]
        assert top[piece] == logprob
    end = live.server.engine.target.tokenizer.eos_token_id
    special = client.completions.create(
        model=MODEL, prompt=[40, 50], logprobs=0, logit_bias={str(end): 100}, **{**GREEDY, "max_tokens": 3}
    ).choices[0]  # fmt: skip
    assert special.text == ""
    assert special.logprobs is not None
    assert special.logprobs.text_offset == [0] * 3  # they are no part of the text
    streamed: list[str] = []
    for chunk in client.chat.completions.create(
        model=MODEL, messages=messages("Hi"), logprobs=True, stream=True, **{**GREEDY, "max_tokens": 6}
    ):
        if chunk.choices[0].logprobs is not None:
            streamed += [entry.token for entry in chunk.choices[0].logprobs.content or []]
    assert streamed == [entry.token for entry in content]


def test_penalties_and_bias_reach_the_engine(live: Running) -> None:
    client = live.client()
    options = {**GREEDY, "max_tokens": 8, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
    biased = client.chat.completions.create(
        model=MODEL, messages=messages("Hi"), logit_bias={"77": 100}, **options
    )
    assert biased.choices[0].token_ids == [77] * 8  # type: ignore[attr-defined]
    mixed = client.chat.completions.create(
        model=MODEL,
        messages=messages("Hi"),
        logit_bias={"77": 10},
        frequency_penalty=2,
        presence_penalty=2,
        **options,
    )
    assert mixed.choices[0].token_ids != [77] * 8  # type: ignore[attr-defined]
    assert mixed.choices[0].prompt_token_ids  # type: ignore[attr-defined]


def test_content_parts_and_the_developer_role(live: Running) -> None:
    client = live.client()
    parts = [{"type": "text", "text": "Why is the"}, {"type": "text", "text": "sky blue?"}]
    a = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}],  # type: ignore[typeddict-item, list-item]
        **GREEDY,
    )
    b = client.chat.completions.create(
        model=MODEL,
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Why is the\nsky blue?"},
        ],
        **GREEDY,
    )
    assert a.choices[0].message.content == b.choices[0].message.content


def test_answers_of_other_servers_can_stand_in_a_conversation(live: Running) -> None:
    """Clients send back an assistant's message with all the fields they got, and names of those who speak."""
    plain = [*messages("Hi"), {"role": "assistant", "content": "Yes?"}, *messages("Why is the sky blue?")]
    dumped = {
        "role": "assistant", "content": "Yes?", "refusal": None, "annotations": [], "tool_calls": [], "audio": None,
        "function_call": None, "name": "fledge",
    }  # fmt: skip
    client = live.client()
    answers = [
        client.chat.completions.create(
            model=MODEL,
            messages=conversation,  # type: ignore[arg-type]
            safety_identifier="someone",
            prompt_cache_key="a key",
            **GREEDY,
        )
        for conversation in (plain, [plain[0], dumped, plain[2]])
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_errors_are_the_clients_own_classes(live: Running) -> None:
    client = live.client()
    with pytest.raises(openai.NotFoundError, match="unknown model"):
        client.models.retrieve("gpt-9")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens") as caught:
        client.chat.completions.create(model=MODEL, messages=messages("Hi"), max_tokens=600)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="modalities isn't supported") as caught:
        client.chat.completions.create(model=MODEL, messages=messages("Hi"), modalities=["audio"])
    assert caught.value.code == "unsupported_parameter"
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "strong"}}}
    with pytest.raises(openai.BadRequestError, match="Invalid type: strong") as caught:
        client.chat.completions.create(model=MODEL, messages=messages("Hi"), response_format=schema)
    assert caught.value.param == "response_format"
    with pytest.raises(openai.BadRequestError, match="beyond the vocabulary"):
        client.completions.create(model=MODEL, prompt=[100000])
    with pytest.raises(openai.BadRequestError):  # streams, too, fail with a status
        client.chat.completions.create(
            model=MODEL, messages=messages("Hi"), logit_bias={"5000": 1}, stream=True
        )


class Cup(pydantic.BaseModel):
    """What an answer is parsed as."""

    model_config = {
        "json_schema_extra": {"x-guidance": {"whitespace_flexible": False}}
    }  # or it writes spaces for ever
    drink: Literal["tea", "coffee"]
    hot: bool


def test_answers_have_the_form_that_was_asked_for(live: Running) -> None:
    client = live.client()
    schema = Cup.model_json_schema() | {"additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "cup", "schema": schema, "strict": True}}
    for options in ({"temperature": 0}, {"temperature": 1, "seed": 3}, {"temperature": 0, "logprobs": True}):
        answer = client.chat.completions.create(
            model=MODEL, messages=messages("A cup"), max_tokens=80, response_format=form, **options
        )
        assert answer.choices[0].finish_reason == "stop"
        Cup.model_validate_json(answer.choices[0].message.content or "")
    chosen = client.completions.create(
        model=MODEL, prompt="Tea?", stream=True, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert "".join(part.choices[0].text for part in chosen) in ("yes", "no")
    parsed = client.chat.completions.parse(
        model=MODEL, messages=messages("A cup"), max_tokens=80, temperature=0, response_format=Cup
    ).choices[0].message  # fmt: skip
    assert isinstance(parsed.parsed, Cup)
    back: Any = [*messages("A cup"), parsed, *messages("Another")]
    assert client.chat.completions.create(model=MODEL, messages=back, max_tokens=2).choices
    for wrong in (
        {"structured_outputs": {"regex": "a"}, "response_format": form},
        {"structured_outputs": {"regex": "a", "json_object": True}},
        {"response_format": {"type": "json_schema"}},
    ):
        with pytest.raises(openai.BadRequestError, match=r"structured_outputs|json_schema|regex"):
            client.completions.create(model=MODEL, prompt="Tea?", extra_body=wrong)


def test_models_tokens_and_back(live: Running) -> None:
    client = live.client()
    assert [model.id for model in client.models.list()] == [MODEL, "other-name"]
    assert client.models.retrieve(MODEL).id == MODEL
    assert live.get("/v1/models").json()["data"][0]["root"] == TARGET
    text = "Zażółć gęślą jaźń 🙂 नमस्ते 你好"
    found = live.post("/tokenize", {"prompt": text, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert live.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": text}
    chat = live.post("/tokenize", {"messages": messages("Hi")}).json()
    assert chat["tokens"] == live.server.engine.prompt_ids("Hi")


def test_requests_shaped_like_those_of_benchmarks(live: Running) -> None:
    """vllm bench serve (openai, openai-chat) and sglang.bench_serving (sglang-oai)."""
    vllm = {
        "model": MODEL, "prompt": "Why is the sky", "temperature": 0.0, "repetition_penalty": 1.0, "max_tokens": 10,
        "logprobs": None, "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True,
    }  # fmt: skip
    sglang = {
        "model": MODEL, "prompt": "Why is the sky", "temperature": 0.0, "best_of": 1, "max_tokens": 10,
        "stream": True, "ignore_eos": True,
    }  # fmt: skip
    chat = {
        "model": MODEL, "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "temperature": 0.0, "max_completion_tokens": 10, "stream": True, "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }  # fmt: skip
    for path, body in (("completions", vllm), ("completions", sglang), ("chat/completions", chat)):
        response = live.post(f"/v1/{path}", body)
        assert response.status_code == 200
        parts = chunks(response.text)
        choices = [choice for part in parts for choice in part["choices"]]
        assert any(choice.get("text") or choice.get("delta", {}).get("content") for choice in choices)
        if "stream_options" in body:
            assert parts[-1]["usage"]["completion_tokens"] == 10
            assert parts[-1]["choices"] == []
    info = live.get("/get_server_info").json()
    assert info["internal_states"][0]["avg_spec_accept_length"] > 1


def test_a_trace_gives_every_token_its_origin(live: Running, plain: Engine) -> None:
    expected = plain.generate([QUESTIONS[0]], max_tokens=24, ignore_eos=True)[0]
    body = {"extra_body": {"ignore_eos": True, "return_trace": True, "return_token_ids": True}}
    pieces: list[Any] = []
    sources: list[str] = []
    trees: list[Any] = []
    ids: list[int] = []
    for chunk in live.client().chat.completions.create(
        model=MODEL, messages=messages(QUESTIONS[0]), stream=True, **{**GREEDY, **body}
    ):
        trace = chunk.choices[0].trace  # type: ignore[attr-defined]
        pieces += trace["pieces"]
        sources += trace["sources"]
        trees += trace["trees"]
        ids += chunk.choices[0].token_ids  # type: ignore[attr-defined]
    assert ids == expected.token_ids
    assert "".join(text for text, _ in pieces) == expected.text
    assert max(origin for _, origin in pieces) >= 1
    assert len(trees) >= 5
    assert all(len(tree["tokens"]) == len(tree["parents"]) == len(tree["sources"]) == 8 for tree in trees)
    assert [source == "head" for source in sources] == [origin > 0 for _, origin in pieces]


def test_metrics_carry_the_names_dashboards_scrape(live: Running) -> None:
    live.client().chat.completions.create(model=MODEL, messages=messages(QUESTIONS[0]), **GREEDY)
    page = live.get("/metrics").text
    names = {line.split("{")[0].split(" ")[0] for line in page.splitlines() if not line.startswith("#")}
    wanted = {
        "sglang:spec_accept_length", "sglang:spec_accept_rate", "sglang:num_running_reqs", "sglang:token_usage",
        "sglang:gen_throughput", "vllm:num_requests_running", "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
        "vllm:request_success_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
        "vllm:request_queue_time_seconds_sum", "vllm:request_prefill_time_seconds_sum",
        "vllm:request_decode_time_seconds_sum", "vllm:request_max_num_generation_tokens_bucket",
        "sglang:cache_hit_rate", "sglang:queue_time_seconds_bucket",
        "vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
        "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total",
        "fledge:tau", "fledge:accepted_tokens_total",
        "fledge:rounds_total", "fledge:request_rounds_total", "fledge:round_tokens_total",
        "fledge:phase_seconds_total", "fledge:http_responses_total",
    }  # fmt: skip
    for maker in ("vllm", "sglang", "fledge"):
        for kind in (
            "time_to_first_token_seconds",
            "inter_token_latency_seconds",
            "e2e_request_latency_seconds",
        ):
            wanted |= {f"{maker}:{kind}_{part}" for part in ("bucket", "sum", "count")}
    assert wanted - names == set()
    assert 'vllm:num_requests_running{model_name="tiny"} 0.0' in page
