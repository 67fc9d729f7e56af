"""Functions on offer over OpenAI's interface, with the `openai` client and a target that has learnt to call them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from fledge.base.errors import ServerError
from fledge.engine import Engine, TreeShape
from fledge.server.call_forms import CALL_FORMS
from fledge.server.dialect import Dialect
from fledge.server.errors import ApiError
from fledge.server.options import ServerOptions
from fledge.server.protocol import ChatRequest
from fledge.target import Target
from tests.engine.context_head import ContextHead
from tests.server.conftest import MODEL, Running, running
from tests.server.taught import TEMPLATES, teach
from tests.server.test_messages import added_up as messages_added_up
from tests.server.test_messages import events
from tests.tiny import TinyShape, save_tiny_target

LOOK: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"$ref": "#/$defs/place"}},
            "required": ["place"],
            "additionalProperties": False,
            "$defs": {"place": {"enum": ["sea", "wood"]}},
            "x-guidance": {"whitespace_flexible": False},
        },
    },
}
WAIT: Any = {
    "type": "function",
    "function": {"name": "wait", "parameters": {**LOOK["function"]["parameters"]}},
}
SEA, WOOD = '{"place": "sea"}', '{"place": "wood"}'
CALL = '<tool_call>\n{"name": "look", "arguments": %s}\n</tool_call>'
LOOKS = {"messages": [{"role": "user", "content": "Look at the sea"}], "tools": [LOOK]}
THINKS = {"messages": [{"role": "user", "content": "Tell me a story"}]}
GOES_ON = {"messages": [{"role": "user", "content": "Go on"}], "options": {"think": True}}
CALLS_ANSWER = "Let me see.\n" + CALL % SEA + "\n" + CALL % WOOD
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 200}

# Speculation emits one token or several at once; plain decode, one at a time, is left to the slow tests.
WAYS = [
    pytest.param(False, id="plain", marks=pytest.mark.slow),
    pytest.param(True, id="speculative"),
]


def served(target: Target, questions: list[Any], *, speculative: bool, **options: Any) -> Iterator[Running]:
    plain = Engine(target, max_batch=4)
    head = None
    if speculative:
        prompts = [target.chat.prompt_ids(**question) for question in questions]
        head = ContextHead(target.decoder.page_size, 512, 0.8)
        head.strict = False
        head.learn(
            [*answer.prompt_token_ids, *answer.token_ids]
            for answer in plain.generate(prompts, max_tokens=200)
        )
    engine = Engine(target, head, tree=TreeShape(3, 3, 8), max_batch=4) if head else plain
    with running(engine, ServerOptions(port=0, model_names=(MODEL,), **options)) as server:
        yield server


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Target:
    lessons = [
        (LOOKS, CALLS_ANSWER),
        (THINKS, "<think>\nA story, then.\n</think>\n\nOnce upon a time."),
        (GOES_ON, "Go where?\n</think>\nThe end."),
    ]
    return teach(tmp_path_factory.mktemp("taught") / "llama", TEMPLATES["hermes"], lessons)


@pytest.fixture(scope="module", params=WAYS)
def calling(request: pytest.FixtureRequest, taught: Target) -> Iterator[Running]:
    questions = [LOOKS, THINKS, GOES_ON]
    yield from served(taught, questions, speculative=request.param, reasoning_parser="qwen3")


@pytest.fixture(scope="module", params=WAYS)
def forced(request: pytest.FixtureRequest, taught: Target) -> Iterator[Running]:
    """Without a parser of reasoning, so that calls come at once."""
    yield from served(taught, [LOOKS, THINKS], speculative=request.param)


def added_up(chunks: Any) -> list[dict[str, Any]]:
    """A stream's choices, as a client makes them; what a delta may not hold is an error."""
    choices: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for part in chunk.choices:
            choice = choices.setdefault(
                part.index, {"content": "", "reasoning": "", "calls": [], "finish": None, "logprobs": 0}
            )
            assert choice["finish"] is None
            choice["finish"] = part.finish_reason
            choice["content"] += part.delta.content or ""
            choice["reasoning"] += getattr(part.delta, "reasoning_content", None) or ""
            choice["logprobs"] += len(part.logprobs.content) if part.logprobs else 0
            for call in part.delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(choice["calls"])
                    choice["calls"].append([call.function.name, ""])
                choice["calls"][call.index][1] += call.function.arguments
    return [choices[index] for index in sorted(choices)]


def test_calls_are_told_apart_from_the_content(calling: Running, taught: Target) -> None:
    answer = calling.client().chat.completions.create(**LOOKS, **GREEDY, n=2, logprobs=True)  # type: ignore[call-overload]
    ids = set()
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        assert [call.function.arguments for call in choice.message.tool_calls] == [SEA, WOOD]
        assert {(call.type, call.function.name) for call in choice.message.tool_calls} == {
            ("function", "look")
        }
        ids |= {call.id for call in choice.message.tool_calls}
        tokens = len(taught.tokenizer.encode(CALLS_ANSWER)) + 1
        assert len(choice.logprobs.content) == tokens
    assert len(ids) == 4
    assert answer.usage.completion_tokens == 2 * tokens


def test_streamed_calls_come_in_pieces_that_add_up(calling: Running) -> None:
    stream = calling.client().chat.completions.create(
        **LOOKS, **GREEDY, n=2, logprobs=True, stream=True, stream_options={"include_usage": True}
    )  # type: ignore[call-overload]
    chunks = list(stream)
    for choice in added_up(chunks):
        assert choice["calls"] == [["look", SEA], ["look", WOOD]]
        assert (choice["content"], choice["finish"]) == ("Let me see.", "tool_calls")
        assert choice["logprobs"] == chunks[-1].usage.completion_tokens / 2
    parts = [c.delta.tool_calls[0] for chunk in chunks for c in chunk.choices if c.delta.tool_calls]
    assert len(parts) > 8
    assert [part.type for part in parts if part.id] == ["function"] * 4


@pytest.mark.parametrize("stream", [False, True])
def test_at_most_one_call_is_passed_on_where_that_is_wanted(calling: Running, stream: bool) -> None:
    answer: Any = calling.client().chat.completions.create(
        **LOOKS, **GREEDY, parallel_tool_calls=False, stream=stream
    )  # type: ignore[call-overload]
    if stream:
        assert added_up(answer)[0]["calls"] == [["look", SEA]]
    else:
        assert [call.function.arguments for call in answer.choices[0].message.tool_calls] == [SEA]


def test_what_breaks_off_or_stops_within_a_call_keeps_its_beginning(calling: Running) -> None:
    client = calling.client()
    for limit in (8, 40, 50):
        more: Any = {**LOOKS, **GREEDY, "max_tokens": limit}
        whole = client.chat.completions.create(**more).choices[0]
        streamed = added_up(client.chat.completions.create(**more, stream=True))[0]
        assert whole.finish_reason == streamed["finish"] == "length"
        calls = [[call.function.name, call.function.arguments] for call in whole.message.tool_calls or []]
        assert calls == streamed["calls"]
        assert (whole.message.content or "") == streamed["content"]
        assert all(SEA.startswith(arguments) for _, arguments in calls)
    assert calls
    stopped = client.chat.completions.create(**LOOKS, **GREEDY, stop=["wood"]).choices[0]  # type: ignore[call-overload]
    assert stopped.finish_reason == "tool_calls"
    assert [call.function.arguments for call in stopped.message.tool_calls] == [SEA, '{"place": "']


def test_functions_that_are_not_to_be_called_are_not_offered(calling: Running) -> None:
    client = calling.client()
    for more in ({"tool_choice": "none"}, {"tools": []}):
        message = client.chat.completions.create(**{**LOOKS, **GREEDY, **more}, max_completion_tokens=200)
        assert message.choices[0].message.tool_calls is None
        assert message.usage.prompt_tokens < 40


@pytest.mark.parametrize(
    ("choice", "several", "stream"),
    [
        pytest.param(*choice, stream, marks=() if (number + stream) % 2 else pytest.mark.slow)
        for number, choice in enumerate(
            [
                ("required", True),
                ("required", False),
                ({"type": "function", "function": {"name": "wait"}}, True),
            ]
        )
        for stream in (False, True)
    ],
)
def test_a_call_that_is_asked_for_is_made_with_arguments_of_its_schema(
    forced: Running, choice: Any, several: bool, stream: bool
) -> None:
    asked: Any = {**THINKS, **GREEDY, "temperature": 1, "tools": [LOOK, WAIT], "tool_choice": choice}
    asked["max_tokens"] = 100
    for seed in range(2):
        answer: Any = forced.client().chat.completions.create(
            **asked, seed=seed, parallel_tool_calls=several, stream=stream
        )
        if stream:
            found = added_up(answer)[0]
            calls, content, finish = found["calls"], found["content"] or None, found["finish"]
        else:
            message, finish = answer.choices[0].message, answer.choices[0].finish_reason
            calls = [[call.function.name, call.function.arguments] for call in message.tool_calls]
            content = message.content
        assert content is None
        assert finish in ("tool_calls", "length")
        assert calls
        assert {name for name, _ in calls} <= ({"look", "wait"} if choice == "required" else {"wait"})
        if choice != "required" or not several:
            assert len(calls) == 1
        for _, arguments in calls[: None if finish == "tool_calls" else -1]:
            assert json.loads(arguments)["place"] in ("sea", "wood")


def test_beside_a_format_an_answer_is_calls_or_of_that_format(calling: Running, taught: Target) -> None:
    schema = {"enum": ["done", "not yet"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "state", "schema": schema}}
    asked: Any = {**LOOKS, **GREEDY, "response_format": form, "parallel_tool_calls": False}
    called = calling.client().chat.completions.create(**asked).choices[0]
    assert (called.finish_reason, called.message.content) == ("tool_calls", None)
    assert json.loads(called.message.tool_calls[0].function.arguments)["place"] in ("sea", "wood")
    quote = str(taught.tokenizer.encode('"')[0])
    answered = calling.client().chat.completions.create(**asked, logit_bias={quote: 100}).choices[0]
    assert (answered.finish_reason, answered.message.tool_calls) == ("stop", None)
    assert json.loads(answered.message.content) in schema["enum"]


def test_calls_and_their_answers_reach_the_template(calling: Running, taught: Target) -> None:
    called = calling.client().chat.completions.create(**LOOKS, **GREEDY).choices[0].message  # type: ignore[call-overload]
    first = called.tool_calls[0]
    back = [
        *LOOKS["messages"],
        called.model_dump(),  # as agents send it back
        {"role": "tool", "tool_call_id": first.id, "content": [{"type": "text", "text": "It is blue."}]},
        {"role": "assistant", "content": "It is blue.", "reasoning_content": "Blue, then."},
    ]
    tokens = calling.post("/tokenize", {"messages": back, "tools": [LOOK]}).json()["tokens"]
    text = taught.tokenizer.decode(tokens)
    assert "assistant\nLet me see." + CALL % SEA + CALL % WOOD + "<|im_end|>" in text
    assert "<|im_start|>tool\nIt is blue.<|im_end|>" in text
    assert "<think>Blue, then.</think>It is blue.<|im_end|>" in text
    assert text.startswith(json.dumps(LOOK["function"]))


def test_messages_of_the_clients_own_helpers_can_be_sent_back(calling: Running) -> None:
    """`parse` and `stream` add what they made of an answer to its message: `parsed_arguments`, a call's `index`."""
    strict = {**LOOK, "function": {**LOOK["function"], "strict": True}}
    completions, asked = calling.client().chat.completions, {**LOOKS, **GREEDY, "tools": [strict]}
    with completions.stream(**asked) as stream:
        streamed = stream.get_final_completion()
    for answer in (completions.parse(**asked), streamed):
        called = answer.choices[0].message
        assert called.tool_calls[0].function.parsed_arguments == {"place": "sea"}
        told = [{"role": "tool", "tool_call_id": call.id, "content": "Blue."} for call in called.tool_calls]
        back = {**asked, "messages": [*LOOKS["messages"], called, *told], "max_tokens": 2}
        assert completions.create(**back).choices


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_told_apart_from_the_answer(calling: Running, taught: Target, stream: bool) -> None:
    for question, reasoning, content in (
        (THINKS, "A story, then.", "Once upon a time."),
        (GOES_ON, "Go where?", "The end."),
    ):
        kwargs = {"extra_body": {"chat_template_kwargs": question.get("options", {})}}
        answer: Any = calling.client().chat.completions.create(
            messages=question["messages"], **GREEDY, **kwargs, stream=stream
        )  # type: ignore[call-overload]
        if stream:
            found = added_up(answer)[0]
            assert (found["reasoning"], found["content"], found["finish"]) == (reasoning, content, "stop")
        else:
            message = answer.choices[0].message
            assert (message.reasoning_content, message.content) == (reasoning, content)
            whole = Engine(taught).generate([taught.chat.prompt_ids(**question)], max_tokens=200)[0]
            assert answer.usage.completion_tokens == len(whole.token_ids)
    cut: Any = calling.client().chat.completions.create(**THINKS, **{**GREEDY, "max_tokens": 8})
    assert cut.choices[0].message.content is None
    assert "A story, then.".startswith(cut.choices[0].message.reasoning_content)


def test_what_cannot_be_done_with_tools_is_refused(calling: Running) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "[]"}}
    deep: Any = {"type": "object"}
    for _ in range(400):
        deep = {"type": "object", "properties": {"x": deep}}
    for change, told in (
        ({"structured_outputs": {"regex": "a"}}, "no room for calls"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "one of them"),
        ({"tools": [LOOK, LOOK]}, "same name"),
        ({"tool_choice": {"type": "function", "function": {"name": "wait"}}}, "isn't in tools"),
        ({"tool_choice": "required", "min_tokens": 5}, "min_tokens"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [call]}]}, "an assistant's"),
        ({"messages": [{"role": "user", "content": None}]}, "give a text"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": {"title": "\ud800"}}}]},
            "surrogate",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}]},
            "object",
        ),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "function"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "x", "parameters": {"properties": {"a": {"type": "nothing"}}}},
                    }
                ],
                "tool_choice": "required",
            },
            "nothing",
        ),
    ):
        body = json.dumps({**LOOKS, **GREEDY, **change}).encode()
        response = calling.post(
            "/v1/chat/completions", content=body, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400, change
        assert told in response.json()["error"]["message"]
    with pytest.raises(openai.BadRequestError, match="nested too deeply"):
        calling.client().chat.completions.create(
            **{**LOOKS, **GREEDY, "tools": [{**LOOK, "function": {"name": "x", "parameters": deep}}]}
        )


@pytest.mark.parametrize(
    ("template", "answer", "special"),
    [
        (
            "mistral",
            f'[TOOL_CALLS] [{{"name": "look", "arguments": {SEA}}}]',
            {"<|start_header_id|>": "[TOOL_CALLS]"},
        ),
        (
            "mistral, named",
            f"[TOOL_CALLS]look[ARGS]{SEA}",
            {"<|start_header_id|>": "[TOOL_CALLS]", "<|end_header_id|>": "[ARGS]"},
        ),
    ],
)
def test_special_tokens_that_mark_calls_are_seen(
    tmp_path: Path, template: str, answer: str, special: dict[str, str]
) -> None:
    target = teach(tmp_path / "llama", TEMPLATES[template], [(LOOKS, answer)], special)
    assert all(len(target.tokenizer.encode(mark)) == 1 for mark in special.values())
    for server in served(target, [LOOKS], speculative=True):
        for more in (
            {},
            {"stop": ["no such text"]},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ):
            answered: Any = server.client().chat.completions.create(**LOOKS, **GREEDY, **more)  # type: ignore[call-overload]
            message = answered.choices[0].message
            assert message.content is None
            assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"place": "sea"}]


@pytest.fixture(scope="module")
def make_dialect(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Dialect]:
    def make(template: str | None, parser: str, reasoning_parser: str | None = None) -> Dialect:
        folder = tmp_path_factory.mktemp("dialect")
        save_tiny_target(folder, shape=TinyShape(layers=3), chat_template=template)
        return Dialect(Target.load(str(folder)), parser, reasoning_parser)

    return make


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_shows_the_form_of_calls(make_dialect: Callable[..., Dialect], name: str) -> None:
    dialect = make_dialect(TEMPLATES[name], "auto")
    if name == "unknown":
        with pytest.raises(ApiError, match="--tool-call-parser"):
            _ = dialect.call_form
        assert make_dialect(TEMPLATES[name], "mistral").call_form is CALL_FORMS["mistral"]
    else:
        assert dialect.call_form is CALL_FORMS[name.split(",")[0]]


@pytest.mark.parametrize("name", ["llama3_json", "llama3_json, one call"])
def test_several_calls_are_asked_for_only_where_the_template_takes_them_back(
    make_dialect: Callable[..., Dialect], name: str
) -> None:
    dialect = make_dialect(TEMPLATES[name], "auto")
    asked = {**LOOKS, "tool_choice": "required"}
    several, single = (
        dialect.form(ChatRequest.model_validate({**asked, "parallel_tool_calls": parallel}), [1])
        for parallel in (True, False)
    )
    assert (several == single) is ("one call" in name)


@pytest.mark.parametrize(
    ("parser", "end", "reasoning"),
    [
        ("qwen3", "assistant\n", ""),
        ("qwen3", "assistant\n<think>\n", "Hm."),
        ("qwen3", "assistant\n<think>\n\n</think>\n\n", ""),
        ("qwen3", "<think><|im_end|>\n<|im_start|>assistant\n", ""),
        ("deepseek_r1", "assistant\n", "Hm."),
        ("deepseek_r1", "assistant\n<think>\n\n</think>\n\n", ""),
    ],
)
def test_what_the_prompt_has_opened_is_reasoning_until_it_is_closed(
    make_dialect: Callable[..., Dialect], parser: str, end: str, reasoning: str
) -> None:
    dialect = make_dialect(None, "auto", parser)
    body = ChatRequest.model_validate(THINKS)
    reader = dialect.reader(body, dialect._target.tokenizer.encode(end))
    assert reader is not None
    parts = reader.add("Hm.</think>Yes.", last=True)
    assert (parts.reasoning, parts.content) == (reasoning, "Yes." if reasoning else "Hm.</think>Yes.")


def test_parsers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ServerError, match="hermes, qwen3_coder"):
        ServerOptions(tool_call_parser="xml")
    with pytest.raises(ServerError, match="qwen3, deepseek_r1"):
        ServerOptions(reasoning_parser="think")


def test_a_request_without_functions_is_read_as_before(
    make_dialect: Callable[..., Dialect],
) -> None:
    body = ChatRequest.model_validate({"messages": [{"role": "user", "content": "Hi"}]})
    dialect = make_dialect(None, "auto")
    assert dialect.reader(body, [1, 2, 3]) is None
    assert dialect.form(body, [1]) is None
    assert dialect.skips_special(body)


def test_calls_and_thoughts_are_blocks_of_a_message(calling: Running) -> None:
    tool = {"name": "look", "description": "Look at a place.", "input_schema": LOOK["function"]["parameters"]}
    body = {"messages": LOOKS["messages"], "tools": [tool], "temperature": 0, "max_tokens": 200}
    whole = calling.post("/v1/messages", body).json()
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use", "tool_use"]
    assert [block.get("input") for block in whole["content"]] == [None, {"place": "sea"}, {"place": "wood"}]
    assert whole["stop_reason"] == "tool_use"
    thought = calling.post("/v1/messages", {**body, "messages": THINKS["messages"], "tools": []}).json()
    assert [block["type"] for block in thought["content"]] == ["thinking", "text"]
    assert thought["content"][0]["thinking"] == "A story, then."
    for change in ({}, {"messages": THINKS["messages"], "tools": []}):
        stream = messages_added_up(
            events(calling.post("/v1/messages", {**body, **change, "stream": True}).text)
        )
        expected = thought if change else whole
        for message in (stream, expected):
            message.pop("usage"), message.pop("id")
            for block in message["content"]:
                block.pop("id", None)
                # Clients keep thoughts for the next request only if they are signed.
                assert (
                    block.pop("signature", None) if block["type"] == "thinking" else "signature" not in block
                )
        assert stream == expected
    whole["content"][1]["id"], whole["content"][2]["id"] = "c1", "c2"
    results = [{"type": "tool_result", "tool_use_id": name, "content": "blue"} for name in ("c1", "c2")]
    history = [*body["messages"], {"role": "assistant", "content": whole["content"]}]
    again = {**body, "messages": [*history, {"role": "user", "content": results}], "max_tokens": 3}
    assert calling.post("/v1/messages", again).status_code == 200


def test_a_form_is_kept_after_the_thinking(calling: Running) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["tea"]}}}
    asked: dict[str, Any] = {**GREEDY, "response_format": form}
    answers = []
    for question in (
        THINKS,
        {"messages": GOES_ON["messages"], "chat_template_kwargs": {"think": True}},
        {"messages": [{"role": "user", "content": "Hi"}]},
    ):
        answers.append(calling.post("/v1/chat/completions", {**asked, **question}).json()["choices"][0])
    messages = [answer["message"] for answer in answers]
    assert [message.get("reasoning") for message in messages[:2]] == ["A story, then.", "Go where?"]
    assert [message["content"] for message in messages[:2]] == ['"tea"', '"tea"']
    assert answers[2]["finish_reason"] in ("stop", "length")
