"""Rows of the kinds that went wrong before, as other loggers, data sets and exports write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fledge.data.sources import Record, SourceOptions, detect_shape, open_source, user_turns
from fledge.server.conversation import Tool

Q, Q2, A, P = (
    "How do tides follow the moon?",
    "And what does wind do?",
    "ANSWERTEXT It does.",
    "PASSAGE From 1611.",
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "f", "description": "D", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
SAID, IMAGE = {"role": "assistant", "content": A}, {"type": "image_url", "image_url": {"url": "x"}}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


THREAD = [user(Q), SAID, user(Q2)]
PROVIDERS: list[Any] = [
    {"messages": [user([{"text": Q}]), {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t", "name": "f"}}]},
                  user([{"toolResult": {"toolUseId": "t", "content": [{"text": "4"}]}}]), user([{"text": Q2}])],
     "toolConfig": {"tools": [{"toolSpec": {**FUNCTION, "inputSchema": {"json": SCHEMA}, "parameters": None}}]}},
    {"contents": [{"role": "user", "parts": [{"text": Q}]},
                  {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": "4"}}]},
                  {"role": "user", "parts": [{"text": Q2}]}],
     "config": {"tools": [{"functionDeclarations": [FUNCTION]}]}},
    {"messages": [user("", parts=[{"type": "text", "text": Q}]), {"role": "tool", "content": [
        {"type": "tool-result", "toolName": "f", "output": {"type": "text", "value": "4"}}]}, user(Q2)],
     "tools": str([TOOL])},
]  # fmt: skip


@pytest.mark.parametrize("row", PROVIDERS, ids=["bedrock", "gemini", "vercel"])
def test_tools_and_results_in_the_forms_of_other_providers(row: Any) -> None:
    found = user_turns({"request": row}, "request")
    assert not isinstance(found, str)
    assert (found.turns, json.loads(found.tools), found.losses) == ((Q, Q2), [TOOL], ())
    assert found.results == ((("f", "4"),), ())


LOGGED: list[Any] = [
    {"messages": THREAD, "model_parameters": {"tools": [TOOL], **THINKING}, "response": A},  # LiteLLM
    {"messages": THREAD, "optional_params": {"tools": str([TOOL]), "extra_body": THINKING}},
    {"input": THREAD, "output": SAID, "metadata": {"tools": [json.dumps(TOOL)], **THINKING}},  # Langfuse
    {"inputs": {"messages": [THREAD]}, "extra": {"invocation_params": {"functions": [FUNCTION], **THINKING}}},
    {"request": {"messages": THREAD}, "tools": [{"type": "function", **FUNCTION}], **THINKING},
    {"body": {"messages": THREAD, "tools": [TOOL, {"type": "function", "function": {"name": "g"}}], **THINKING,
              "tool_choice": {"type": "function", "function": {"name": "f"}}}},
]  # fmt: skip


@pytest.mark.parametrize("row", LOGGED)
def test_tools_are_kept_wherever_a_logger_puts_them(row: Any) -> None:
    found = user_turns(row, "request")
    assert not isinstance(found, str)
    assert (found.turns, json.loads(found.tools)) == ((Q, Q2), [TOOL])
    assert json.loads(found.template_options) == {"enable_thinking": False}


@pytest.mark.parametrize(
    "function", [FUNCTION, {"name": "f"}, {"name": "f", "parameters": {}, "strict": True}]
)
def test_tools_are_those_that_the_server_renders(function: Any) -> None:
    tool = {"type": "function", "function": function}
    assert json.loads(user_turns({"messages": THREAD, "tools": [tool]}, "request")[3]) == [Tool(**tool).plain]


REQUESTS: list[tuple[Any, Any, Any]] = [
    ({"messages": [user(Q), SAID, user(Q2, images=["aGk="])]}, (Q,), ("media",)),  # Ollama
    ({"messages": [user(Q), SAID, user(json.dumps([{"type": "text", "text": Q2}, IMAGE]))]}, (Q,), ("media",)),
    ({"messages": [user([{"type": "text", "text": {"value": Q}}]), user(Q2, attachments=[{}])]}, (Q,), ("media",)),
    ({"log": json.dumps({"body": {"messages": [SAID, user(Q)]}}), "stream": "stdout"}, (Q,), ("opening",)),
    ({"_source": {"event": {"request": {"messages": THREAD}}}, "response": {"messages": [user(A)]}}, (Q, Q2), ()),
    ({"messages": [user(Q), {"role": "System", "content": "S"}, user(Q2)]}, (Q, Q2), ("system_moved",)),
    ({"messages": [user(Q), None, {"role": None, "content": None}, SAID, user(Q2)]}, (Q, Q2), ()),
    ({"messages": [user(Q), 5, user(Q2)]}, (Q,), ("role",)),
    ({"messages": THREAD, "context": P}, (Q, Q2), ("documents",)),
    ({"messages": [{"role": "MessageRole.USER", "content": Q}, {"type": "AIMessageChunk", "content": A},
                   {"type": "HumanMessage", "content": Q2}]}, (Q, Q2), ()),
    ({"message": Q2, "chat_history": [{"role": "USER", "message": Q}, {"role": "CHATBOT", "message": A}]}, (Q, Q2), ()),
    ({"text": Q, "sampling_params": {}}, (Q,), ()),  # SGLang
    ({"input": Q, "reasoning": {"effort": "low"}, "tools": [{"type": "mcp"}]}, (Q,), ("other_tools",)),
    ({"prompt": Q, "continue_final_message": True}, (Q,), ("prefill",)),
]  # fmt: skip


@pytest.mark.parametrize(("row", "turns", "losses"), REQUESTS)
def test_what_requests_hold_is_kept_or_named(
    row: Any, turns: tuple[str, ...], losses: tuple[str, ...]
) -> None:
    found = user_turns(row, "request")
    assert not isinstance(found, str)
    assert (found.turns, found.losses) == (turns, losses)
    assert "ANSWERTEXT" not in str(found)


RENDERED = [
    "user\n\n{q}assistant\n\n{a}user\n\n{q2}assistant\n\n{a}", "system\nS\nuser\n{q}\nassistant\n{a}\nuser\n{q2}\n",
    "[|user|]{q}\n[|assistant|]{a}[|endofturn|]\n[|user|]{q2}", "<user>{q}</user><assistant>{a}</assistant><user>{q2}",
    "<extra_id_1>User\n{q}\n<extra_id_1>Assistant\n{a}\n<extra_id_1>User\n{q2}",
    "[USER]: {q}\n[ASSISTANT]: {a}\n[USER]: {q2}", "## User\n{q}\n## Assistant\n{a}\n## User\n{q2}",
    "[10:31] User: {q}\n[10:32] Assistant: {a}\n[10:33] User: {q2}", "User: {q}\nFalcon: {a}\nUser: {q2}\nFalcon:",
    "Q1: {q}\nA1: {a}\nQ2: {q2}\nA2: {a}", "> User: {q}\n> AI: {a}\n> User: {q2}",
    "Вопрос: {q}\nОтвет: {a}\nВопрос: {q2}", "### 指示:\n{q}\n\n### 応答:\n{a}\n\n### 指示:\n{q2}",
    "[Round 1]\n问：{q}\n答：{a}\n[Round 2]\n问：{q2}",
    "[" + "\n ".join(map(str, THREAD)) + "]", str({"messages": THREAD}),
]  # fmt: skip


@pytest.mark.parametrize("column", ["text", "prompt"])
@pytest.mark.parametrize("text", RENDERED)
def test_transcripts_of_more_writers(text: str, column: str) -> None:
    text = text.replace("{q}", Q).replace("{q2}", Q2).replace("{a}", A)
    assert user_turns({column: text}, "prompt")[0] == (Q, Q2)


@pytest.mark.parametrize(
    "text", [f"Be brief. USER: {Q} ASSISTANT: {A}</s>", f"Be brief.\n<|user|>{Q}<|assistant|>{A}"]
)
def test_what_stands_before_a_conversation_is_its_system_prompt(text: str) -> None:
    assert user_turns({"text": text}, "prompt")[:2] == ((Q,), "Be brief.")


COLUMNS: list[tuple[Any, Any]] = [
    ({"prompt": f"### Instruction\n{Q}\n\n### Output\nJSON with two fields."}, "transcript"),
    ({"text": f"{Q}\n\nOutput: 3\nThink first."}, "transcript"),
    ({"prompt": "What does [INST] mean to a model?"}, "template"),
    ({"prompt": json.dumps(THREAD)[:-9]}, "transcript"),
    ({"input": Q, "previous_response_id": "r"}, "later_turn"),
    ({"role": "user", "content": Q, "turn": 2}, "later_turn"),
    ({"role": "user", "content": Q, "parent_id": float("nan")}, (Q,)),
    ({"question": Q, "answer": A, "text": f"{Q} {A}"}, (Q,)),
    ({"text": f"### Human: {Q}### Assistant: {A}", "context": P}, (f"{Q}\n\n{P}",)),
    ({"question": Q, "ctxs": [{"title": "T", "text": P}]}, (f"{Q}\n\nT\n{P}",)),
    ({"question": Q, "A": "x", "B": "y", "answer": "A"}, (f"{Q}\n\nA. x\nB. y",)),
    ({"instruction": Q, "input": "nan", "history": f"User: {Q2}\nAssistant: {A}"}, (Q2, Q)),
    ({"user": Q, "assistant": A, "text": "x"}, (Q,)),
    ({"prompt": '{"a": 1}'}, ('{"a": 1}',)),
    ({"items": [{"from": "human", "value": Q}], "output": [SAID]}, (Q,)),
]


@pytest.mark.parametrize(("row", "expected"), COLUMNS)
def test_what_stands_in_columns(row: Any, expected: Any) -> None:
    found = user_turns(row, detect_shape([row]) or "")
    assert (found if isinstance(found, str) else found.turns) == expected


def test_files_with_rows_of_every_kind(tmp_path: Path) -> None:
    def read(name: str, data: str = "", **options: Any) -> list[Any]:
        if data:
            (tmp_path / name).write_text(data, encoding="utf-8-sig")
        opened = open_source(SourceOptions(path=str(tmp_path / name), licence="own", **options))
        found = list(opened.records())
        assert [list(opened.records(skip)) for skip in (1, 2)] == [found[1:], found[2:]]
        return [record.turns if isinstance(record, Record) else record.reason for record in found]

    spoken = [json.dumps({"thread_id": 1, "from": "Human", "value": text}) for text in (Q, Q2)]
    deep = f'{{"prompt": "{Q}", "context": {"[" * 700 + "]" * 700}}}'
    rows = [*[{"messages": THREAD}] * 5, None, 5, {"prompt": Q, "completion": A}, {"text": A},
            {"messages": [user(Q), {"role": "tool", "name": "f\ud83d", "content": "4"}]}]  # fmt: skip
    lines = [*map(json.dumps, rows), deep, f'{{"messages": NaN, "prompt": "{Q}", "n": {"9" * 5000}}}']
    mixed = read("a.jsonl", "\r\n".join(lines))
    assert mixed == [*[(Q, Q2)] * 5, "shape", "shape", (Q,), "shape", "encoding", "shape", (Q,)]
    assert read("a.jsonl", shape="messages", field="input.messages") == ["shape"] * len(lines)
    assert read("b.jsonl", "\n".join(spoken)) == [(Q,), "later_turn"]
    array = json.dumps([{"prompt": Q, "score": float("nan")}, {"prompt": Q2, "n": 10**400}])
    assert read("c.json", array) == [(Q,), (Q2,)]
    assert read("d.csv", f'id,prompt\n1,"{THREAD}"\n') == [(Q, Q2)]
    other = {
        "type": "function",
        "function": {**FUNCTION, "parameters": {"type": "object", "properties": {"b": SCHEMA}}},
    }
    table = pa.Table.from_pylist(
        [{"messages": THREAD, "tools": [TOOL, other]}]
    )  # fills the structs up with nulls
    pq.write_table(table, tmp_path / "e.parquet")
    assert read("e.parquet") == [(Q, Q2)]
    assert json.loads(user_turns(table.to_pylist()[0], "messages")[3])[0] == TOOL
