"""What other servers have called, and what this one has, can be sent back, whatever the chat template demands of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fledge.base.errors import TargetError
from fledge.engine import Engine
from fledge.server.options import ServerOptions
from fledge.target import Target
from tests.server.conftest import MODEL, running
from tests.server.taught import TEMPLATES, teach
from tests.server.test_messages import added_up, events
from tests.tiny import TinyShape, save_tiny_target

NINE = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 or not c.id is string %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}{% endfor %}"
    "{% if m.role == 'tool' and m.tool_call_id | length != 9 %}"
    "{{ raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{% endif %}{% endfor %}"
)
IDS = "{% for c in m.tool_calls or [] %}({{ c.id }}){% endfor %}"
SHOWN = TEMPLATES["hermes"].replace("{{ m.content }}", "{{ m.tool_call_id or '' }}{{ m.content }}" + IDS)
ASK = {"role": "user", "content": "Look"}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}


def called(*ids: str, content: str = "") -> dict[str, Any]:
    calls = [
        {"id": each, "type": "function", "function": {"name": "look", "arguments": {"place": each}}}
        for each in ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


@pytest.fixture(scope="module")
def make_target(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Target]:
    def make(template: str) -> Target:
        folder = tmp_path_factory.mktemp("history")
        save_tiny_target(folder, shape=TinyShape(layers=3, positions=2048), chat_template=template)
        return Target.load(str(folder))

    return make


def text_of(target: Target, messages: list[dict[str, Any]]) -> str:
    return str(target.tokenizer.decode(target.chat.prompt_ids(messages, tools=[TOOL])))


FOREIGN = [
    "call_8fK2mZ0aQ1bB2cC3dD4eE5fF",
    "chatcmpl-tool-0123456789abcdef",
    "toolu_01A09q90qw90lq9",
    "c1",
    "with-dash",
]


@pytest.mark.parametrize("call_id", FOREIGN)
def test_ids_of_another_server_become_those_that_the_template_takes(
    make_target: Callable[[str], Target], call_id: str
) -> None:
    strict = NINE.replace("c.id | length != 9", "(c.id | length != 9 or '-' in c.id)")
    target = make_target(strict + SHOWN)
    messages = [ASK, called(call_id, "abc123DEF"), result(call_id, "42"), result("abc123DEF", "43"), ASK]
    text = text_of(target, messages)
    given = text.split("(")[1].split(")")[0]
    assert len(given) == 9
    assert given.isalnum()
    assert f"tool\n{given}42" in text
    assert "(abc123DEF)" in text  # was right
    assert text == text_of(target, messages)  # as the prefix cache needs it


def test_ids_stay_where_the_template_takes_them(make_target: Callable[[str], Target]) -> None:
    text = text_of(make_target(SHOWN), [ASK, called(FOREIGN[0]), result(FOREIGN[0], "42"), ASK])
    assert text.count(FOREIGN[0]) == 3  # its argument, too


def test_calls_of_one_message_are_shown_one_by_one_where_the_template_takes_no_more(
    make_target: Callable[[str], Target],
) -> None:
    several = "{% for m in messages if m.tool_calls and m.tool_calls | length > 1 %}"
    one = several + "{{ raise_exception('one') }}{% endfor %}"
    together = [ASK, called("a", "b", content="So."), result("b", "2"), result("a", "1"), ASK]
    apart = [ASK, called("a", content="So."), result("a", "1"), called("b"), result("b", "2"), ASK]
    assert text_of(make_target(one + SHOWN), together) == text_of(make_target(SHOWN), apart)
    both = make_target(one + NINE + SHOWN)
    assert text_of(both, together) == text_of(make_target(NINE + SHOWN), apart)
    unanswered = text_of(both, [ASK, called("a", "b", "c")])
    assert unanswered.count("<tool_call>") == 3


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        ("Conversation roles must alternate user/assistant", "give the roles it knows"),
        ("Only user, assistant and tool roles are supported", "give the roles it knows"),
        ("calls must carry a reason", "change what it names"),
    ],
)
def test_another_refusal_is_told_in_the_template_s_words_with_advice_that_fits(
    make_target: Callable[[str], Target], words: str, advice: str
) -> None:
    target = make_target(
        f"{{% if messages | length > 1 %}}{{{{ raise_exception('{words}') }}}}{{% endif %}}" + SHOWN
    )
    with pytest.raises(TargetError, match=words) as caught:
        text_of(target, [ASK, called("a", "b"), result("a", "1")])
    assert advice in str(caught.value)


@pytest.fixture(scope="module")
def calling_twice(tmp_path_factory: pytest.TempPathFactory) -> Target:
    two = (
        '{"name": "look", "parameters": {"place": "sea"}}; {"name": "look", "parameters": {"place": "wood"}}'
    )
    lesson = ({"messages": [ASK], "tools": [TOOL]}, two)
    return teach(tmp_path_factory.mktemp("taught"), TEMPLATES["llama3_json, one call"], [lesson])


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_server_hands_out_it_takes_back(calling_twice: Target, stream: bool) -> None:
    with running(Engine(calling_twice, max_batch=2), ServerOptions(port=0, model_names=(MODEL,))) as server:
        for more in ({}, {"tool_choice": "required"}, {"parallel_tool_calls": False}):
            body = {"messages": [ASK], "tools": [TOOL], "temperature": 0, "max_tokens": 200, **more}
            if stream:
                with server.client().chat.completions.stream(model=MODEL, **body) as answer:  # type: ignore[arg-type]
                    message = json.loads(answer.get_final_completion().choices[0].message.model_dump_json())
            else:
                message = server.post("/v1/chat/completions", body).json()["choices"][0]["message"]
            assert message["tool_calls"]
            results = [result(call["id"], "1") for call in message["tool_calls"]]
            back = {**body, "messages": [ASK, message, *results], "max_tokens": 4}
            answered = server.post("/v1/chat/completions", back)
            assert answered.status_code == 200, answered.text
        tool = {"name": "look", "input_schema": TOOL["function"]["parameters"]}
        asked = {"messages": [ASK], "tools": [tool], "temperature": 0, "max_tokens": 200, "stream": stream}
        given = server.post("/v1/messages", asked)
        blocks = (added_up(events(given.text)) if stream else given.json())["content"]
        told = [{"type": "tool_result", "tool_use_id": each["id"], "content": "1"} for each in blocks]
        turns = [ASK, {"role": "assistant", "content": blocks}, {"role": "user", "content": told}]
        assert server.post("/v1/messages", {**asked, "messages": turns}).status_code == 200
