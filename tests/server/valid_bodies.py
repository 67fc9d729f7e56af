"""Valid bodies for every route that answers, and what an answer says, whole or added up from its stream."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import openai.types
import openai.types.chat
import openai.types.responses
from hypothesis import strategies as st

from tests.server.conftest import chunks
from tests.server.test_messages import added_up as message_of
from tests.server.test_messages import events

Json = dict[str, Any]
Bodies = st.SearchStrategy[Json]
TEXT = st.text(max_size=8)
SAID = st.text(min_size=1, max_size=8)
PARAMETERS = {
    "type": "object",
    "properties": {"place": {"enum": ["sea", "wood"]}, "days": {"type": "integer"}},
    "required": ["place"],
    "additionalProperties": False,
}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}
HINTS: Json = {
    "user": st.sampled_from(["u", 7]),
    "metadata": st.just({"run": "a"}),
    "store": st.booleans(),
    "service_tier": st.just("auto"),
    "prompt_cache_key": TEXT,
}
SAMPLING: Json = {
    "temperature": st.sampled_from([None, 0, 1e-8, 0.7, 1, 2.5]),
    "top_p": st.sampled_from([None, 0, 0.3, 1]),
    "top_k": st.sampled_from([None, -1, 0, 1, 5.0]),
    "min_p": st.sampled_from([None, 0, 0.1]),
    "presence_penalty": st.sampled_from([0, -1, 1.5]),
    "frequency_penalty": st.sampled_from([0, 0.5]),
    "repetition_penalty": st.sampled_from([1, 1.2]),
    "logit_bias": st.sampled_from([None, {}, {"65": 5, "66": -100}]),
    "stop": st.one_of(st.none(), st.text(min_size=1, max_size=2), st.lists(SAID, max_size=3)),
    "stop_token_ids": st.lists(st.integers(0, 511), max_size=3),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
}
OPENAI: Json = {
    **SAMPLING,
    **HINTS,
    "n": st.sampled_from([None, 1, 2]),
    "return_token_ids": st.booleans(),
    "speculate": st.booleans(),
    "truncate_prompt_tokens": st.sampled_from([None, -1, 20]),
}
SEED = st.integers(-(1 << 63), (1 << 63) - 4)
FREE_LIMIT = {"max_tokens": st.integers(3, 6)}
FREE: Json = {"min_tokens": st.integers(0, 3), "ignore_eos": st.booleans()}
FORMS = st.sampled_from(
    [
        {"structured_outputs": {"choice": ["yes", "no"]}},
        {"structured_outputs": {"regex": "[ab]{2,4}"}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"grammar": 'start: "x" /[yz]+/'}},
        {"guided_choice": ["a", "bc"]},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"bad_words": ["e", "th"]},
    ]
)


def some(required: Json, optional: Json) -> Bodies:
    """An object with some of the optional fields."""
    return st.fixed_dictionaries(required, optional=optional)


def merged(*bodies: Bodies) -> Bodies:
    return st.tuples(*bodies).map(lambda parts: {key: value for part in parts for key, value in part.items()})


def _calls(ids: list[str]) -> list[Json]:
    call = {"name": "look", "arguments": '{"place": "sea"}'}
    return [{"id": name, "type": "function", "function": call} for name in ids]


def _turn(said: tuple[Any, str, bool, str]) -> list[Json]:
    content, answer, calls, reasoning = said
    extra = {"reasoning_content": reasoning} if reasoning else {}
    if not calls:
        return [{"role": "user", "content": content}, {"role": "assistant", "content": answer, **extra}]
    called = {"role": "assistant", "content": answer or None, "tool_calls": _calls(["c1", "c2"]), **extra}
    results = [{"role": "tool", "tool_call_id": name, "content": answer} for name in ("c1", "c2")]
    return [{"role": "user", "content": content}, called, *results]


PARTS = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), min_size=1, max_size=2)
CONTENT = st.one_of(TEXT, PARTS)
TURNS = st.lists(st.tuples(CONTENT, TEXT, st.booleans(), TEXT).map(_turn), max_size=1)
CHAT_MESSAGES = st.tuples(st.lists(TEXT, max_size=1), TURNS, CONTENT).map(
    lambda said: [
        *({"role": "system", "content": text} for text in said[0]),
        *(message for turn in said[1] for message in turn),
        {"role": "user", "content": said[2]},
    ]
)
LOOK = {"name": "look", "description": "Look.", "parameters": PARAMETERS}
TOOLS = st.fixed_dictionaries(
    {"tools": st.just([{"type": "function", "function": LOOK}])},
    optional={
        "tool_choice": st.sampled_from(
            ["none", "auto", "required", {"type": "function", "function": {"name": "look"}}]
        ),
        "parallel_tool_calls": st.booleans(),
    },
)
LIMIT = {"max_tokens": st.integers(1, 6)}
LONG = {"max_tokens": st.sampled_from([12, 60])}
CHAT = merged(
    some({"messages": CHAT_MESSAGES, "seed": SEED}, {**OPENAI, "reasoning_effort": st.just("low")}),
    st.one_of(
        some(FREE_LIMIT, FREE), merged(some(LONG, {}), TOOLS), merged(some(LONG, {}), FORMS),
        some({**LIMIT, "logprobs": st.just(True)}, {"top_logprobs": st.integers(0, 3)}),
    ),
)  # fmt: skip
IDS = st.lists(st.integers(3, 500), min_size=1, max_size=12)
COMPLETION = merged(
    some(
        {
            "prompt": st.one_of(SAID, IDS, *(st.lists(each, min_size=1, max_size=2) for each in (SAID, IDS))),
            "seed": SEED,
        },
        {**OPENAI, "add_special_tokens": st.booleans()},
    ),
    st.one_of(
        some(FREE_LIMIT, {**FREE, "echo": st.booleans()}), some(LIMIT, {"logprobs": st.integers(0, 3)}),
        merged(some(LONG, {}), FORMS),
    ),
)  # fmt: skip
RESPONSES = merged(
    some(
        {
            "input": st.one_of(
                TEXT,
                CHAT_MESSAGES.filter(lambda said: len(said) == 1).map(
                    lambda said: [{"role": "user", "content": text(said[0]["content"])}]
                ),
                st.just(
                    [
                        {"role": "user", "content": [{"type": "input_text", "text": "Look"}]},
                        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
                        {"type": "function_call_output", "call_id": "c1", "output": "42"},
                    ]
                ),
            ),
            "temperature": st.just(0),
        },
        {**{key: HINTS[key] for key in ("user", "metadata", "store", "service_tier")}, "instructions": TEXT,
         "top_p": st.just(1), "reasoning": st.just({"effort": "low"})},
    ),
    st.one_of(
        some({"max_output_tokens": st.integers(1, 6)}, {}),
        some(
            {"max_output_tokens": st.sampled_from([12, 60]), "tools": st.just([{"type": "function", **LOOK}])},
            {"tool_choice": st.sampled_from(["auto", "required", {"type": "function", "name": "look"}])},
        ),
        some(
            {"max_output_tokens": st.just(40)},
            {"text": st.just({"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}})},
        ),
    ),
)  # fmt: skip


def text(content: Any) -> str:
    """The text of a message's content."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _anthropic(messages: list[Json]) -> list[Json]:
    """A chat's messages as Anthropic's clients write them."""
    made: list[Json] = []
    for message in messages:
        if message["role"] == "tool":
            block = {
                "type": "tool_result",
                "tool_use_id": message["tool_call_id"],
                "content": message["content"],
            }
            made.append({"role": "user", "content": [block]})
        elif message.get("tool_calls"):
            blocks: list[Json] = [{"type": "text", "text": message["content"]}] if message["content"] else []
            for call in message["tool_calls"]:
                given = json.loads(call["function"]["arguments"])
                blocks.append({"type": "tool_use", "id": call["id"], "name": "look", "input": given})
            made.append({"role": "assistant", "content": blocks})
        else:
            made.append({"role": message["role"], "content": message["content"]})
    return made


MESSAGES = merged(
    some(
        {"messages": CHAT_MESSAGES.map(_anthropic), "temperature": st.just(0)},
        {
            "system": CONTENT,
            "top_k": st.sampled_from([1, 5]),
            "stop_sequences": st.lists(SAID, max_size=2),
            "metadata": st.just({"user_id": "u"}),
            "thinking": st.sampled_from([{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}]),
        },
    ),
    st.one_of(
        some({"max_tokens": st.integers(1, 6)}, {}),
        some(
            {
                "max_tokens": st.sampled_from([12, 60]),
                "tools": st.just([{"name": "look", "description": "Look.", "input_schema": PARAMETERS}]),
            },
            {
                "tool_choice": st.sampled_from(
                    [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "look"}]
                )
            },
        ),
        some(
            {"max_tokens": st.just(40), "output_format": st.just({"type": "json_schema", "schema": SCHEMA})},
            {},
        ),
    ),
)


class Route(NamedTuple):
    """A route, its valid bodies, and how its answers are compared."""

    bodies: Bodies
    whole: Callable[[Json], Any]  # what a whole answer says; fails if its shape is wrong
    stream: Callable[[str], Any]  # the same of a stream's text


def _chat(answer: Json) -> Any:
    openai.types.chat.ChatCompletion.model_validate(answer, strict=True)
    said = []
    for choice in answer["choices"]:
        message = choice["message"]
        calls = [
            (call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls", ())
        ]
        parts = [message.get("reasoning") or "", message["content"] or "", calls]
        said.append([*parts, *_choice(choice)])
    return said


def _choice(choice: Json) -> list[Any]:
    scored = choice["logprobs"] or {}
    tokens = scored["tokens"] if "tokens" in scored else [each["token"] for each in scored.get("content", ())]
    return [choice["finish_reason"], choice["stop_reason"], choice.get("token_ids"), tokens]


def _added(stream: str) -> dict[int, list[Json]]:
    by_index: dict[int, list[Json]] = {}
    for chunk in chunks(stream):
        for choice in chunk["choices"]:
            by_index.setdefault(choice["index"], []).append(choice)
    return by_index


def _chat_stream(stream: str) -> Any:
    for chunk in chunks(stream):
        openai.types.chat.ChatCompletionChunk.model_validate(chunk, strict=True)
    said = []
    for _, choices in sorted(_added(stream).items()):
        deltas = [choice["delta"] for choice in choices]
        calls: list[list[str]] = []
        for each in (call for delta in deltas for call in delta.get("tool_calls", ())):
            if "id" in each:
                calls.append([each["function"]["name"], ""])
            calls[each["index"]][1] += each["function"]["arguments"]
        parts = ["".join(delta.get(key) or "" for delta in deltas) for key in ("reasoning", "content")]
        said.append([*parts, [(name, arguments) for name, arguments in calls], *_ends(choices)])
    return said


def _ends(choices: list[Json]) -> list[Any]:
    ids = [token for choice in choices for token in choice.get("token_ids", ())]
    tokens = [token for choice in choices for token in _choice({"stop_reason": None, **choice})[3]]
    last = choices[-1]
    return [last["finish_reason"], last["stop_reason"], ids if "token_ids" in last else None, tokens]


def _completion(answer: Json) -> Any:
    openai.types.Completion.model_validate(answer, strict=True)
    return [[choice["text"], *_choice(choice)] for choice in answer["choices"]]


def _completion_stream(stream: str) -> Any:
    return [
        ["".join(choice["text"] for choice in choices), *_ends(choices)]
        for _, choices in sorted(_added(stream).items())
    ]


def _response(answer: Json) -> Any:
    openai.types.responses.Response.model_validate(answer, strict=True)
    items = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in answer["output"]
    ]
    return answer["status"], items, answer["usage"]["output_tokens"]


def _response_stream(stream: str) -> Any:
    found = events(stream)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    texts: dict[int, str] = {}
    for event in found:
        if event["type"].endswith(".delta"):
            texts[event["output_index"]] = texts.get(event["output_index"], "") + event["delta"]
    final = found[-1]["response"]
    for index, item in enumerate(final["output"]):
        shown = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert shown == texts.get(index, "")
    return _response(final)


def _message(answer: Json) -> Any:
    assert (answer["type"], answer["role"]) == ("message", "assistant")
    blocks = [{key: value for key, value in block.items() if key != "id"} for block in answer["content"]]
    return blocks, answer["stop_reason"], answer["stop_sequence"], answer["usage"]["output_tokens"]


ROUTES = {
    "/v1/chat/completions": Route(CHAT, _chat, _chat_stream),
    "/v1/completions": Route(COMPLETION, _completion, _completion_stream),
    "/v1/responses": Route(RESPONSES, _response, _response_stream),
    "/v1/messages": Route(MESSAGES, _message, lambda stream: _message(message_of(events(stream)))),
}
