"""Fields of other servers' clients: what means the same is used, what changes nothing dropped, the rest named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.conftest import Running, running_template
from tests.server.taught import TEMPLATES

CHAT = "/v1/chat/completions"
HI: dict[str, Any] = {"role": "user", "content": "Hi"}
ASK: dict[str, Any] = {"messages": [HI], "temperature": 0, "max_tokens": 5}
FORM = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
THINKS = TEMPLATES["hermes"].replace(
    "{% if think %}<think>", "{% if enable_thinking is defined and not enable_thinking %}NO{% endif %}{% if x %}<think>"
)  # fmt: skip


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_template(tmp_path_factory.mktemp("thinking"), THINKS, positions=1024) as started:
        yield started


def content(server: Running, **more: Any) -> str:
    answer = server.post(CHAT, {**ASK, **more})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"repeat_penalty": 1.9}, {"repetition_penalty": 1.9}),
        (
            {"options": {"repeat_penalty": 1.9, "num_predict": 3}, "max_tokens": None},
            {"repetition_penalty": 1.9, "max_tokens": 3},
        ),
        ({"n_predict": 2, "max_tokens": None}, {"max_tokens": 2}),
        ({"options": {"temperature": 5.0, "seed": 3}, "temperature": 0}, {"temperature": 0}),
        ({"options": {"stop": ["e"]}, "max_tokens": 40}, {"stop": ["e"], "max_tokens": 40}),
        ({"logit_bias": [[5, 90.5], [7, False]]}, {"logit_bias": {"5": 90.5, "7": -100}}),
        ({"grammar": 'root ::= "yes" | "no" [0-9]'}, {"structured_outputs": {"regex": "yes|no[0-9]"}}),
        ({"grammar": ""}, {}),
        ({"json_schema": FORM}, {"structured_outputs": {"json": FORM}}),
        (
            {"response_format": {"type": "json_object", "schema": FORM}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": FORM}}},
        ),
    ],
    ids=str,
)  # fmt: skip
def test_what_means_the_same_is_used(live: Running, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    assert content(live, **theirs) == content(live, **ours)
    prompt = {"prompt": "Hi", "temperature": 0, "max_tokens": 5}
    both = [live.post("/v1/completions", {**prompt, **each}).json()["choices"] for each in (theirs, ours)]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    "said",
    [
        {"enable_thinking": False},
        {"thinking": {"type": "disabled"}},
        {"thinking": False},
        {"think": False},
    ],
    ids=str,
)
def test_thinking_is_told_to_templates_that_look_at_it(thinking: Running, said: dict[str, Any]) -> None:
    def tokens(**more: Any) -> int:
        return int(thinking.post(CHAT, {**ASK, **more}).json()["usage"]["prompt_tokens"])

    off = tokens(chat_template_kwargs={"enable_thinking": False})
    assert tokens(**said) == off > tokens()
    assert tokens(thinking={"type": "enabled", "budget_tokens": 1024}) == tokens()
    assert (
        tokens(**said, chat_template_kwargs={"enable_thinking": True}) == tokens()
    )  # the template's own name counts


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "reasoning", "text": "Hm."},
    ],
)
def test_thoughts_in_a_history_reach_the_template_as_reasoning(
    thinking: Running, part: dict[str, Any]
) -> None:
    said = {"type": "text", "text": "Yes."}
    turns = [
        HI,
        {"role": "assistant", "content": [part, {"type": "redacted_thinking", "data": "x"}, said]},
        HI,
    ]
    named = [HI, {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}, HI]
    counts = [thinking.post("/tokenize", {"messages": each}).json()["tokens"] for each in (turns, named)]
    assert counts[0] == counts[1]
    misplaced = thinking.post(CHAT, {**ASK, "messages": [{"role": "user", "content": [part]}]})
    assert misplaced.status_code == 400


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (CHAT, {**ASK, "grammar": "root ::= ("}, "grammar can't be read as GBNF"),
        (CHAT, {**ASK, "grammar": 'root ::= "a"', "guided_regex": "a"}, "give one of guided_json"),
        (CHAT, {**ASK, "json_schema": {"type": "nothing"}}, "json_schema"),
        (CHAT, {**ASK, "guided_regex": "", "json_schema": {}}, "give one of guided_json"),
        (CHAT, {**ASK, "response_format": {"type": "text", "schema": {}}}, "json_schema goes with type"),
        (CHAT, {**ASK, "logit_bias": [["He", 1]]}, "keys are token ids"),
        (CHAT, {**ASK, "mirostat": 2}, "mirostat isn't supported"),
        (CHAT, {**ASK, "options": {"mirostat": 2}}, "mirostat isn't supported"),
        (CHAT, {**ASK, "max_new_tokens": 3}, "max_tokens"),
        (CHAT, {**ASK, "n_predict": 3}, "n_predict isn't supported"),  # besides max_tokens 5
        (CHAT, {**ASK, "thinking": {"type": "perhaps"}}, "thinking isn't supported"),
        (CHAT, {**ASK, "repeat_penalty": "x"}, "repetition_penalty"),
        ("/tokenize", {"content": 3}, "prompt"),
    ],
)
def test_what_would_change_an_answer_is_named_with_what_to_do(
    live: Running, path: str, body: dict[str, Any], told: str
) -> None:
    refused = live.post(path, body)
    assert refused.status_code == 400
    assert told in refused.json()["error"]["message"]


def test_llama_cpp_s_clients_tokenize(live: Running) -> None:
    for more, special in (({}, False), ({"add_special": True}, True)):
        theirs = live.post("/tokenize", {"content": "Hi there", **more}).json()
        ours = live.post("/tokenize", {"prompt": "Hi there", "add_special_tokens": special}).json()
        assert theirs == ours
