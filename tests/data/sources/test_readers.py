"""Rows as logs and data sets really have them: the whole question is kept, answers never, and losses are named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fledge.data.sources import detect_shape, user_turns

Q = "When was the harbour built, and by whom?"
P = "PASSAGE It was built in 1611."
A = "ANSWERTEXT In 1611."
USER, ANSWER = {"role": "user", "content": Q}, {"role": "assistant", "content": A}
THREAD = [USER, ANSWER, {"role": "user", "content": "two"}]

RENDERED = {
    "llama-2": f"<s>[INST] {Q} [/INST] {A} </s><s>[INST] two [/INST] {A} </s>",
    "llama-2, system": f"<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\n{Q} [/INST] {A} </s><s>[INST] two [/INST]",
    "mistral": f"<s>[INST]{Q}[/INST]{A}</s>[INST]two[/INST]{A}</s>",
    "chatml": f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{Q}<|im_end|>\n<|im_start|>assistant\n{A}"
    "<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n",
    "llama-3": f"<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{Q}<|eot_id|><|start_header_id|>assistant"
    f"<|end_header_id|>\n\n{A}<|eot_id|><|start_header_id|>user<|end_header_id|>\n\ntwo<|eot_id|>",
    "gemma": f"<bos><start_of_turn>user\n{Q}<end_of_turn>\n<start_of_turn>model\n{A}<end_of_turn>\n"
    "<start_of_turn>user\ntwo<end_of_turn>\n",
    "zephyr": f"<|system|>\n</s>\n<|user|>\n{Q}</s>\n<|assistant|>\n{A}</s>\n<|user|>\ntwo</s>\n",
    "phi": f"<|user|>\n{Q}<|end|>\n<|assistant|>\n{A}<|end|>\n<|user|>\ntwo<|end|>\n<|assistant|>",
    "gpt-oss": f"<|start|>user<|message|>{Q}<|end|><|start|>assistant<|channel|>final<|message|>{A}<|end|>"
    "<|start|>user<|message|>two<|end|><|start|>assistant",
    "deepseek": f"<｜begin▁of▁sentence｜><｜User｜>{Q}<｜Assistant｜>{A}<｜end▁of▁sentence｜><｜User｜>two"
    "<｜Assistant｜>",
    "oasst": f"<|prompter|>{Q}<|endoftext|><|assistant|>{A}<|endoftext|><|prompter|>two<|endoftext|>",
    "command-r": f"<BOS_TOKEN><|START_OF_TURN_TOKEN|><|USER_TOKEN|>{Q}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|>"
    f"<|CHATBOT_TOKEN|>{A}<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>two<|END_OF_TURN_TOKEN|>",
    "vicuna": f"A chat between a curious user and an assistant. USER: {Q} ASSISTANT: {A}</s>"
    f"USER: two ASSISTANT: {A}</s>",
    "openchat": f"<s>GPT4 Correct User: {Q}<|end_of_turn|>GPT4 Correct Assistant: {A}<|end_of_turn|>"
    "GPT4 Correct User: two<|end_of_turn|>GPT4 Correct Assistant:",
    "guanaco": f"### Human: {Q}### Assistant: {A}### Human: two### Assistant: {A}",
    "hh": f"\n\nHuman: {Q}\n\nAssistant: {A}\n\nMore of it.\n\nHuman: two\n\nAssistant: {A}",
    "bot": f"User: {Q}\nAI: {A}\nUser: two\nAI: {A}",
    "redpajama": f"<human>: {Q}\n<bot>: {A}\n<human>: two\n<bot>: {A}",
    "q and a": f"Q: {Q}\nA: {A}\n\nQ: two\nA: {A}",
    "preamble": f"The following is a talk with an AI.\n\nHuman: {Q}\nAI: {A}\nHuman: two\nAI: {A}",
    "german": f"Frage: {Q}\nAntwort: {A}\n\nFrage: two\nAntwort: {A}",
    "chinese": f"问：{Q}\n答：{A}\n问：two\n答：{A}",
}


@pytest.mark.parametrize("name", RENDERED)
@pytest.mark.parametrize("column", ["text", "prompt", ""])
def test_of_a_rendered_conversation_the_users_side_is_taken(name: str, column: str) -> None:
    row = {column: RENDERED[name]} if column else RENDERED[name]
    found = user_turns(row, detect_shape([row]) or "")
    assert not isinstance(found, str), found
    assert found.turns == (Q, "two")
    assert "ANSWERTEXT" not in str(found)


@pytest.mark.parametrize(
    "text",
    [
        f"Below is an instruction.\n\n### Instruction:\n{Q}\n\n### Input:\n{P}\n\n### Response:\n{A}",
        f"Question: {Q}\n\n{P}\nAnswer: {A}\nIt goes on.",
        f"{Q}\n\n{P}\n\nAnswer: {A}",
        f"**Question:** {Q}\n\n{P}\n**Answer:** {A}",
    ],
)
def test_one_question_with_its_answer(text: str) -> None:
    found = user_turns({"text": text}, "prompt")
    assert found[0] == (f"{Q}\n\n{P}",)


@pytest.mark.parametrize(
    "text",
    [
        "User: alice\nAssistant: bob\nPlease write a regular expression for this log format.",
        "User: alice can't log in any more. What can I do?",
        "Question: why is the sky blue?",
        "Answer as shown.\n\nQ: two and two?\nA: 4\n\nQ: three and three?\nA:",
        "Which is right?\nAnswer: 4\nAnswer: 5",
        "Question: which is it?\nA: red\nB: green\nC: blue",
        "Customer: Jane\nModel: X200\nProblem: it won't start",
        "Query: find books\nProblem: it is slow\nSolution: unknown",
        "Add the numbers.\n\nInput: 1 2\nOutput: 3\n\nInput: 2 3\nOutput: 5",
        "Explain what `a | b` and <s>this</s> do.",
    ],
)
def test_a_prompt_about_a_transcript_is_kept_whole(text: str) -> None:
    assert user_turns({"prompt": text}, "prompt")[0] == (text,)


def test_a_prompt_that_may_end_in_an_answer_is_no_prompt() -> None:
    assert user_turns({"prompt": "User: hello\nAssistant: hi\nI can help you."}, "prompt") == "transcript"


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"context": P, "question": Q, "answers": {"text": [A]}}, f"{Q}\n\n{P}"),
        ({"question": Q, "text": P}, f"{Q}\n\n{P}"),
        ({"query": Q, "passages": [{"title": "T", "text": P}, {"title": "U", "text": "B"}]}, f"{Q}\n\nT\n{P}\n\nU\nB"),
        ({"question": Q, "context": {"title": ["T", "U"], "sentences": [["One.", "Two."], ["Three."]]}},
         f"{Q}\n\nT\nOne. Two.\n\nU\nThree."),
        ({"question": Q, "documents": json.dumps([P])}, f"{Q}\n\n{P}"),
        ({"instruction": Q, "input": P, "output": A}, f"{Q}\n\n{P}"),
        ({"instruction": "Answer.", "question": Q, "context": P, "response": A}, f"Answer.\n\n{Q}\n\n{P}"),
        ({"question": "Which?", "choices": ["x", "y"], "answer": 1}, "Which?\n\nA. x\nB. y"),
        ({"question": "Which?", "options": {"A": "x", "B": "y"}, "answer": "A"}, "Which?\n\nA. x\nB. y"),
        ({"question": "Which?", "choices": {"text": ["x", "y"], "label": ["1", "2"]}}, "Which?\n\n1. x\n2. y"),
    ],
)  # fmt: skip
def test_a_question_keeps_its_passage(row: Any, expected: str) -> None:
    assert user_turns(row, detect_shape([row]) or "")[0] == (expected,)


@pytest.mark.parametrize(
    "history",
    [
        [["one", A], ["two", A]],
        json.dumps([["one", A], ["two", A]]),
        [{"role": "user", "content": "one"}, ANSWER, {"role": "user", "content": "two"}, ANSWER],
        [{"question": "one", "answer": A}, {"question": "two", "answer": A}],
        [{"user": "one", "bot": A}, {"user": "two", "bot": A}],
    ],
)
@pytest.mark.parametrize("column", ["instruction", "question", "prompt"])
def test_turns_of_a_history_come_first(history: Any, column: str) -> None:
    row = {column: Q, "history": history, "output": A}
    assert user_turns(row, detect_shape([row]) or "")[0] == ("one", "two", Q)


def test_a_history_that_cant_be_read_is_named() -> None:
    assert user_turns({"instruction": Q, "history": ["one", A]}, "alpaca") == "history"


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"messages": json.dumps(THREAD), "response": A}, ""),
        ({"messages": [json.dumps(message) for message in THREAD]}, ""),
        ({"input": {"messages": THREAD}, "output": A}, ""),
        ({"input": json.dumps({"messages": THREAD}), "output": A}, ""),
        ({"input": json.dumps(THREAD), "output": ANSWER}, ""),
        ({"request": {"body": {"messages": THREAD}}, "response": A}, ""),
        ({"request": json.dumps({"body": json.dumps({"messages": THREAD})})}, ""),
        ({"messages": {}, "proxy_server_request": {"messages": THREAD}}, ""),
        ({"a": {"b": [{"c": THREAD}]}}, "a.b.0.c"),
        ({"trace": json.dumps({"in": {"messages": json.dumps(THREAD)}})}, "trace.in.messages"),
        ({"messages": [THREAD]}, ""),
        ({"contents": [{"role": "user", "parts": [{"text": Q}]}, {"role": "model", "parts": [{"text": A}]},
                       {"role": "user", "parts": [{"text": "two"}]}]}, ""),
        ({"messages": [{"type": "human", "data": {"content": Q}}, {"type": "ai", "data": {"content": A}},
                       {"type": "human", "data": {"content": "two"}}]}, ""),
        ({"inputs": {"messages": [[{"lc": 1, "type": "constructor", "id": ["langchain", "HumanMessage"],
                                    "kwargs": {"content": Q}}, {"type": "human", "content": "two"}]]}}, ""),
        ({"conversation": [[Q, A], ["two", A]]}, ""),
        ({"conversation": [{"human": Q, "assistant": A}, {"human": "two", "assistant": A}]}, ""),
        ({"prompt": THREAD, "chosen": [ANSWER], "rejected": [ANSWER]}, ""),
        ({"prompt": {"role": "prompter", "text": Q, "replies": [
            {"role": "assistant", "text": A, "replies": [{"role": "prompter", "text": "two", "replies": []}]}]}}, ""),
    ],
)  # fmt: skip
def test_messages_in_text_and_at_any_depth(row: Any, field: str) -> None:
    found = user_turns(row, detect_shape([row], field) or "", field)
    assert found[0] == (Q, "two")
    assert "ANSWERTEXT" not in str(found)
    if not field and not {"conversation", "prompt"} & set(row):
        assert user_turns(row, "request")[0] == (Q, "two")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": A, "role": "assistant", "parent_id": "1"}, "answer"),
        ({"text": "two", "role": "prompter", "parent_id": "2"}, "later_turn"),
        ({"message": A, "speaker": "bot"}, "answer"),
        ({"content": "Be brief.", "role": "system"}, "no_user_turn"),
        ({"content": A, "author": {"role": "assistant"}}, "answer"),
    ],
)
def test_a_row_that_is_one_message_is_a_prompt_only_if_a_user_began_with_it(row: Any, reason: str) -> None:
    assert detect_shape([row]) == "prompt"
    assert user_turns(row, "prompt") == reason
    first = {**row, "parent_id": None, next(k for k in ("role", "speaker", "author") if k in row): "user"}
    assert not isinstance(user_turns(first, "prompt"), str)


IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(
    ("later", "loss"),
    [
        ([{"role": "user", "content": [{"type": "text", "text": "this"}, IMAGE]}], "media"),
        ([{"role": "user", "content": [{"type": "image", "text": ""}]}], "media"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "media"),
        ([{"role": "user", "content": " "}], "empty_turn"),
        ([{"role": "narrator", "content": "Later that day."}, {"role": "user", "content": "two"}], "role"),
        ([{"role": "tool", "content": [IMAGE]}, {"role": "user", "content": "two"}], "media"),
    ],
)  # fmt: skip
def test_what_cant_be_kept_ends_the_turns_and_is_named(later: list[Any], loss: str) -> None:
    found = user_turns({"messages": [USER, ANSWER, *later]}, "messages")
    assert not isinstance(found, str)
    assert (found.turns, found.losses) == ((Q,), (loss,))


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
def test_an_empty_system_prompt_is_none(content: Any) -> None:
    found = user_turns({"messages": [{"role": "system", "content": content}, USER]}, "messages")
    assert found[:2] == ((Q,), None)
    assert not isinstance(found, str)
    assert found.losses == ()


def test_a_system_prompt_with_an_image_is_named() -> None:
    found = user_turns({"messages": [{"role": "system", "content": [IMAGE]}, USER]}, "messages")
    assert not isinstance(found, str)
    assert (found.turns, found.losses) == ((Q,), ("system_media",))


FUNCTION = {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": json.dumps({"a": A})}}
OPENAI = {
    "tools": [{"type": "function", "function": FUNCTION}],
    "chat_template_kwargs": {"enable_thinking": False},
    "messages": [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "06:12"},
        ANSWER,
        {"role": "user", "content": "two"},
    ],
}
ANTHROPIC = {
    "tools": [{"name": "look_up", "description": "Looks up.", "input_schema": FUNCTION["parameters"]}],
    "messages": [
        USER,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "look_up", "input": {"a": A}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "06:12"}]},
        ANSWER,
        {"role": "user", "content": "two"},
    ],
}
RESPONSES = {
    "tools": [{"type": "function", **FUNCTION}],
    "input": [
        {"type": "message", **USER},
        {"type": "reasoning", "summary": [{"text": A}]},
        {"type": "function_call", "id": "f", "call_id": "c1", "name": "look_up", "arguments": A},
        {"type": "function_call_output", "call_id": "c1", "output": "06:12"},
        {"role": "user", "content": "two"},
    ],
}
LEGACY = {
    "functions": [FUNCTION],
    "messages": [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "look_up", "arguments": A}},
        {"role": "function", "name": "look_up", "content": "06:12"},
        {"role": "user", "content": "two"},
    ],
}


@pytest.mark.parametrize("body", [OPENAI, ANTHROPIC, RESPONSES, LEGACY])
def test_tools_and_their_results_are_kept_and_calls_are_not(body: dict[str, Any]) -> None:
    for row in (body, {"body": body}, {"request": json.dumps({"body": body})}):
        found = user_turns(row, "request")
        assert not isinstance(found, str)
        assert found.turns == (Q, "two")
        assert json.loads(found.tools) == OPENAI["tools"]
        assert found.results == ((("look_up", "06:12"),), ())
        assert "ANSWERTEXT" not in str(found)
    assert json.loads(user_turns(OPENAI, "messages")[4]) == {"enable_thinking": False}


def test_tools_of_a_data_set_stand_in_a_column() -> None:
    row = {
        "tools": json.dumps([FUNCTION]),
        "conversations": [
            {"from": "human", "value": Q},
            {"from": "function_call", "value": A},
            {"from": "observation", "value": "06:12"},
            {"from": "gpt", "value": A},
        ],
    }
    found = user_turns(row, detect_shape([row]) or "")
    assert not isinstance(found, str)
    assert json.loads(found.tools) == OPENAI["tools"]
    assert found.results == ((("", "06:12"),),)


def test_tools_that_arent_functions_are_named() -> None:
    found = user_turns({"tools": [{"type": "web_search"}], "messages": [USER]}, "messages")
    assert not isinstance(found, str)
    assert (found.tools, found.losses) == ("", ("other_tools",))
