"""gpt-oss's channels: reasoning, content and calls, wherever the text is cut, in answers, streams and history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.engine import Engine
from fledge.server.harmony import ChannelParser
from fledge.server.options import ServerOptions
from fledge.server.reader import Reader
from tests.server.conftest import MODEL, Running, chunks, running
from tests.server.pieces import added_up
from tests.server.taught import teach

# Shaped like gpt-oss's own: replies close with <|return|>, history with <|end|> and without its reasoning.
TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }}{% endfor %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "{% if m.content and m.thinking %}{{ raise_exception('content or thinking') }}{% endif %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
SPECIAL = {
    "<|im_start|>": "<|start|>",
    "<|im_end|>": "<|return|>",
    "<|start_header_id|>": "<|channel|>",
    "<|end_header_id|>": "<|message|>",
    "<|eot_id|>": "<|end|>",
}
ASK = [{"role": "user", "content": "Two and two?"}]
LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": {"properties": {"a": {"type": "integer"}}}},
}
ANSWER = "<|channel|>analysis<|message|>The user wants a sum.<|end|><|start|>assistant<|channel|>final<|message|>Four."
CALLS = (
    "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.look "
    '<|constrain|>json<|message|>{"a": 1}'
)
TEXTS = [
    (ANSWER, "The user wants a sum.", "Four.", []),
    (ANSWER + "<|return|>", "The user wants a sum.", "Four.", []),
    (CALLS, "Look.", "", [("look", '{"a": 1}')]),
    (CALLS.replace("functions.look", "functions.none"), "Look.", '{"a": 1}', []),
    (" to=functions.look<|channel|>commentary json<|message|>{}<|call|>", "", "", [("look", "{}")]),
    (
        "<|channel|>commentary<|message|>First.<|end|><|start|>assistant" + ANSWER,
        "The user wants a sum.", "First.\n\nFour.", [],
    ),
    ("<|channel|>analysis<|message|>Cut", "Cut", "", []),
    ("<|channel|>fin", "", "", []),
    ("No channels < here.", "", "No channels < here.", []),
    ("", "", "", []),
]  # fmt: skip


def new_reader() -> Reader:
    return Reader(None, ChannelParser({"look": {}}))


@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 200), max_size=8))
def test_channels_are_told_apart_wherever_the_text_is_cut(
    case: tuple[str, str, str, list[tuple[str, str]]], cuts: list[int]
) -> None:
    text, *expected = case
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for pieces in ([text], [*text, ""], [text[begin:end] for begin, end in pairwise(places)]):
        assert list(added_up(new_reader(), pieces)) == expected


def test_a_whole_answer_has_no_call_without_json() -> None:
    parts = new_reader().read(CALLS.replace("1", "True"), ended=True)
    assert (parts.calls, parts.content) == ({}, '{"a": True}')
    assert new_reader().read(CALLS[:-1], ended=False).calls[0].arguments == '{"a": 1'


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("harmony") / "t"
    lessons = [({"messages": ASK}, ANSWER), ({"messages": ASK, "tools": [LOOK]}, CALLS)]
    target = teach(folder, TEMPLATE, lessons, SPECIAL)
    with running(Engine(target, max_batch=2), ServerOptions(port=0, model_names=(MODEL,))) as server:
        yield server


def test_an_answer_its_stream_and_its_place_in_history(served: Running) -> None:
    body: dict[str, Any] = {"messages": ASK, "temperature": 0, "max_tokens": 80}
    message = served.post("/v1/chat/completions", body).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Four.", "The user wants a sum.")
    stream = served.post("/v1/chat/completions", {**body, "stream": True}).text
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks(stream)]
    assert "".join(delta.get("content", "") for delta in deltas) == "Four."
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "The user wants a sum."
    tokens = served.post("/tokenize", {"messages": [*ASK, message, *ASK]}).json()["tokens"]
    shown = served.server.engine.target.tokenizer.decode(tokens)
    assert "<|start|>assistant<|channel|>final<|message|>Four.<|end|><|start|>user" in shown
    assert "analysis" not in shown


def test_calls_come_and_go_back(served: Running) -> None:
    body: dict[str, Any] = {"messages": ASK, "tools": [LOOK], "temperature": 0, "max_tokens": 80}
    choice = served.post("/v1/chat/completions", body).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("look", {"a": 1})
    assert (choice["finish_reason"], choice["message"]["reasoning"]) == ("tool_calls", "Look.")
    back = [
        *ASK,
        {**choice["message"], "content": "Let me see."},
        {"role": "tool", "tool_call_id": call["id"], "content": "4"},
    ]
    tokens = served.post("/tokenize", {"messages": back, "tools": [LOOK]}).json()["tokens"]
    assert "analysis<|message|>Look.\n\nLet me see.<|end|>" in served.server.engine.target.tokenizer.decode(
        tokens
    )


def test_forms_and_forced_calls_are_in_their_channels(served: Running) -> None:
    body: dict[str, Any] = {"messages": ASK, "max_tokens": 60, "return_token_ids": True}
    choice = served.post(
        "/v1/chat/completions", {**body, "structured_outputs": {"choice": ["yes", "no"]}}
    ).json()["choices"][0]
    assert choice["message"]["content"] in ("yes", "no")
    assert "reasoning" not in choice["message"]
    shown = served.server.engine.target.tokenizer.decode(choice["prompt_token_ids"])
    assert shown.endswith("<|start|>assistant<|channel|>final<|message|>")
    tool = {
        **LOOK["function"],
        "parameters": {"properties": {"a": {"enum": [7]}}, "required": ["a"], "additionalProperties": False},
    }  # type: ignore[dict-item]
    forced = {**body, "tools": [{"type": "function", "function": tool}], "tool_choice": "required"}
    choice = served.post("/v1/chat/completions", forced).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "look"
    if choice["finish_reason"] == "tool_calls":
        assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"a": 7}
