"""Agents' requests with tools and history that another server has had: what matters here is used, the rest left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai.types.responses
import pytest

from tests.server.conftest import Running, running_template
from tests.server.taught import TEMPLATES
from tests.server.test_messages import events

TEXT = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
SHELL: Any = {"type": "function", "name": "shell", "description": "Runs it.", "parameters": TEXT}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
AGENTS = {"type": "namespace", "name": "agents", "tools": [{**SHELL, "name": "spawn"}, {**SHELL}]}
HOSTED: list[Any] = [
    {"type": "web_search", "external_web_access": False},
    {"type": "local_shell"},
    {"type": "image_generation", "output_format": "png"},
    {"type": "tool_search"},
    {"type": "mcp", "server_label": "a", "server_url": "http://127.0.0.1:1"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running_template(tmp_path_factory.mktemp("hosted"), TEMPLATES["hermes"]) as started:
        yield started


def respond(server: Running, *tools: Any, **more: Any) -> Any:
    body = {"input": "Go", "tools": list(tools), "max_output_tokens": 4, "temperature": 0, **more}
    return server.post("/v1/responses", body)


def prompt_tokens(server: Running, *tools: Any, **more: Any) -> int:
    answer = respond(server, *tools, **more)
    assert answer.status_code == 200, answer.text
    openai.types.responses.Response.model_validate({**answer.json(), "tools": []}, strict=True)
    return int(answer.json()["usage"]["input_tokens"])


@pytest.mark.parametrize("tool", HOSTED, ids=lambda tool: tool["type"])
def test_a_hosted_tool_is_left_out_beside_functions(server: Running, tool: Any) -> None:
    assert prompt_tokens(server, tool, SHELL) == prompt_tokens(server, SHELL)
    alone = respond(server, tool)
    assert alone.status_code == 400
    assert tool["type"] in alone.json()["error"]["message"]
    demanded = respond(server, tool, SHELL, tool_choice={"type": tool["type"]})
    assert demanded.status_code == 400
    assert tool["type"] in demanded.json()["error"]["message"]


def test_functions_of_a_namespace_are_offered_and_their_calls_name_it(server: Running) -> None:
    assert prompt_tokens(server, SHELL, AGENTS) > prompt_tokens(server, SHELL) + 20
    for name in ("spawn", "shell"):
        choice = {"type": "function", "name": name, "namespace": "agents"}
        answer = respond(server, SHELL, AGENTS, tool_choice=choice, max_output_tokens=60)
        item = answer.json()["output"][0]
        assert (item["type"], item["name"], item["namespace"]) == ("function_call", name, "agents")
        back = [{"role": "user", "content": "Go"}, {**item, "arguments": "{}"}]
        assert prompt_tokens(server, SHELL, AGENTS, input=back) > 0


def test_a_custom_tool_is_called_with_a_text(server: Running) -> None:
    asked = {"tool_choice": {"type": "custom", "name": "apply_patch"}, "max_output_tokens": 60}
    whole = respond(server, SHELL, PATCH, **asked).json()
    (item,) = whole["output"]
    assert (item["type"], item["name"]) == ("custom_tool_call", "apply_patch")
    assert "arguments" not in item
    stream = events(respond(server, SHELL, PATCH, stream=True, **asked).text)
    deltas = [each["delta"] for each in stream if each["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == item["input"] == stream[-1]["response"]["output"][0]["input"]
    follow = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}
    linked = respond(server, SHELL, PATCH, input=[follow], previous_response_id=whole["id"])
    sent = respond(server, SHELL, PATCH, input=[{"role": "user", "content": "Go"}, item, follow])
    assert linked.json()["usage"]["input_tokens"] == sent.json()["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ({"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search"}}, False),
        ({"type": "file_search_call", "id": "f", "queries": ["x"]}, False),
        ({"type": "mcp_call", "id": "m", "name": "x", "arguments": "{}", "server_label": "a"}, False),
        ({"type": "local_shell_call", "call_id": "l", "action": {"command": ["ls"]}}, True),
        ({"type": "local_shell_call_output", "id": "l", "output": "files"}, True),
        ({"type": "shell_call_output", "call_id": "l", "output": [{"stdout": "files", "stderr": ""}]}, True),
        ({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"}, True),
        ({"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]}, True),
    ],
    ids=lambda each: each["type"] if isinstance(each, dict) else "",
)  # fmt: skip
def test_calls_in_a_history_are_shown_or_left_out(server: Running, item: Any, shown: bool) -> None:
    say = {"role": "user", "content": "Go"}
    tokens = [prompt_tokens(server, SHELL, input=history) for history in ([say, say], [say, item, say])]
    assert (tokens[1] > tokens[0]) is shown


@pytest.mark.parametrize(("mode", "calls"), [("auto", False), ("required", True)])
def test_some_functions_may_be_allowed(server: Running, mode: str, calls: bool) -> None:
    named = {"type": "function", "name": "shell"}
    choice = {"type": "allowed_tools", "mode": mode, "tools": [named, {"type": "web_search"}]}
    other = {**SHELL, "name": "wait"}
    assert prompt_tokens(server, SHELL, other, tool_choice=choice) == prompt_tokens(server, SHELL)
    answer = respond(server, SHELL, other, tool_choice=choice, max_output_tokens=60).json()
    assert (answer["output"][0]["type"] == "function_call") is calls
    chat: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Go"}],
        "max_tokens": 4,
        "tools": [{"type": "function", "function": {"name": name}} for name in ("shell", "wait")],
    }
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "wait"}}]}
    chat["tool_choice"] = {"type": "allowed_tools", "allowed_tools": allowed}
    assert server.post("/v1/chat/completions", chat).status_code == 200
    allowed["tools"] = [{"type": "function", "function": {"name": "none"}}]
    refused = server.post("/v1/chat/completions", chat)
    assert "isn't in tools" in refused.json()["error"]["message"]
    allowed["tools"] = []
    assert server.post("/v1/chat/completions", chat).status_code == (400 if calls else 200)


def test_what_has_no_effect_in_a_response_is_taken(server: Running) -> None:
    for more in ({"truncation": "auto"}, {"truncation": "disabled"}, {"top_logprobs": 0}):
        answer = respond(server, SHELL, **more)
        assert answer.status_code == 200
        assert answer.json()["truncation"] == more.get("truncation", "disabled")
    long = respond(server, SHELL, truncation="auto", input="word " * 3000)
    assert long.json()["error"]["code"] == "context_length_exceeded"
    assert respond(server, SHELL, top_logprobs=3).status_code == 400


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input.0.name"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "robot", "content": "x"}]}, "input.1.role"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input.0"),
        ({"tools": [SHELL, {"type": "function"}]}, "tools.1.name"),
        ({"tools": [SHELL, {**AGENTS, "tools": [{"type": "function"}]}]}, "tools.1.tools.0.name"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ],
)
def test_errors_of_a_response_name_its_own_fields(server: Running, more: Any, place: str) -> None:
    refused = respond(server, **{"tools": [SHELL], **more}) if "tools" not in more else server.post(
        "/v1/responses", {"input": "x", **more}
    )  # fmt: skip
    assert refused.status_code == 400
    assert place in refused.json()["error"]["message"]
    assert "messages" not in refused.json()["error"]["message"].split(";")[0]


FIND = {"name": "Find", "description": "d", "input_schema": {"type": "object", "properties": {}}}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01", "name": "Find", "input": {}}]}


def message(server: Running, *blocks: Any, **more: Any) -> Any:
    body = {"max_tokens": 4, "tools": [FIND], "messages": [{"role": "user", "content": list(blocks)}], **more}
    return server.post("/v1/messages", body)


BLOCKS = [
    ({"type": "tool_reference", "tool_name": "mcp__notes__add"}, "mcp__notes__add"),
    (
        {"type": "search_result", "source": "https://a", "title": "T", "content": [{"type": "text", "text": "a"}]},
        "T\nhttps://a\na",
    ),
    ({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "abc"}}, "abc"),
    ({"type": "document", "title": "T", "source": {"type": "content", "content": "abc"}}, "T\nabc"),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "abc"}]}}, "abc"),
]  # fmt: skip


@pytest.mark.parametrize(("block", "text"), BLOCKS)
def test_blocks_that_are_text_are_read_in_results_and_messages(
    server: Running, block: Any, text: str
) -> None:
    count = "/v1/messages/count_tokens"
    for wrap in (
        lambda content: [{"role": "user", "content": content}],
        lambda content: [
            {"role": "user", "content": "Go"},
            USE,
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": content}]},
        ],
    ):  # fmt: skip
        counts = [
            server.post(count, {"messages": wrap([each]), "tools": [FIND]}).json()["input_tokens"]
            for each in (block, {"type": "text", "text": text})
        ]
        assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", ["web_search_20250305", "tool_search_tool_regex_20251119", "bash_20250124"])
def test_anthropic_s_own_tools_are_left_out_beside_functions(server: Running, kind: str) -> None:
    tool = {"type": kind, "name": kind.rpartition("_")[0]}
    say = [{"role": "user", "content": "Go"}]
    count = [
        server.post("/v1/messages/count_tokens", {"messages": say, "tools": tools}).json()["input_tokens"]
        for tools in ([FIND], [tool, FIND])
    ]
    assert count[0] == count[1]
    demanded = message(server, {"type": "text", "text": "x"}, tools=[tool, FIND],
                       tool_choice={"type": "tool", "name": tool["name"]})  # fmt: skip
    assert demanded.status_code == 400
    history = [*say, {"role": "assistant", "content": [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "It is so."},
    ]}, *say]  # fmt: skip
    assert (
        server.post("/v1/messages", {"max_tokens": 4, "messages": history, "tools": [FIND]}).status_code
        == 200
    )


def test_chats_leave_such_tools_out_too(server: Running) -> None:
    function = {"type": "function", "function": {"name": "shell", "parameters": TEXT}}
    body = {"messages": [{"role": "user", "content": "Go"}], "max_tokens": 2}
    counts = [
        server.post("/v1/chat/completions", {**body, "tools": tools}).json()["usage"]["prompt_tokens"]
        for tools in (
            [function],
            [{"type": "web_search"}, function, {"type": "custom", "custom": {"name": "x"}}],
        )
    ]
    assert counts[0] == counts[1]
    wrong = {**body, "tools": [{"type": "web_search"}, {"type": "function", "function": {}}]}
    assert (
        json.loads(server.post("/v1/chat/completions", wrong).text)["error"]["param"]
        == "tools.1.function.name"
    )
