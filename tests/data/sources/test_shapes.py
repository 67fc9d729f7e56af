"""Every shape gives the user's turns and nothing of the answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fledge.data.sources import SourceOptions, detect_shape, user_turns

ROWS: dict[str, list[Any]] = {
    "sharegpt": [
        {"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "one"},
                           {"from": "gpt", "value": "FOREIGN"}, {"from": "human", "value": "two"}]},
        {"conversations": [{"from": "gpt", "value": "FOREIGN"}, {"from": "human", "value": "one"},
                           {"from": "user", "value": "two"}, {"from": "system", "value": "S"}]},
        {"system": "S", "conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "FOREIGN"},
                                          {"from": "human", "value": "two"}]},
    ],
    "messages": [
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "one"},
                      {"role": "assistant", "content": "FOREIGN", "tool_calls": [{"x": "FOREIGN"}]},
                      {"role": "tool", "content": "4"}, {"role": "user", "content": "two"}]},
        {"messages": json.dumps([{"role": "system", "content": "S"}, {"role": "user", "content": "one"},
                                 {"role": "assistant", "content": "FOREIGN"}, {"role": "user", "content": "two"}])},
        {"conversation": [{"role": "developer", "content": "S"},
                          {"role": "user", "content": [{"type": "text", "text": "one"}]},
                          {"role": "user", "content": "two"}]},
        {"turns": [{"role": "system", "content": "S"}, {"role": "user", "content": "one"},
                   {"role": "assistant", "content": "FOREIGN"}, {"role": "user", "content": "two"}]},
        [{"role": "system", "content": "S"}, {"role": "user", "content": "one"}, {"role": "user", "content": "two"}],
    ],
    "alternating": [
        {"id": "0", "system": "S", "data": ["one", "FOREIGN", "two", "FOREIGN"]},
        {"system": "S", "data": json.dumps(["one", "FOREIGN", "two"])},
    ],
    "prompt": [
        {"system": "S", "chosen": "\n\nHuman: one\n\nAssistant: FOREIGN\n\nHuman: two\n\nAssistant: FOREIGN",
         "rejected": "\n\nHuman: one\n\nAssistant: FOREIGN"},
        {"system": "S", "prompt": "\n\nHuman: one\n\nAssistant: FOREIGN\n\nHuman: two\n\nAssistant:"},
        {"system": "S", "text": "### Human: one### Assistant: FOREIGN### Human: two### Assistant: FOREIGN"},
        {"system": "S", "text": "\n### User: one\n### Assistant: FOREIGN\nFOREIGN\nUser: two\nAssistant: FOREIGN"},
    ],
    "request": [
        {"time": 1, "body": {"model": "m", "messages": [{"role": "system", "content": "S"},
                                                         {"role": "user", "content": "one"},
                                                         {"role": "user", "content": "two"}]},
         "response": {"choices": [{"message": {"content": "FOREIGN"}}]}},
        {"request": json.dumps({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "one"},
                                             {"role": "user", "content": "two"}]}), "response": "FOREIGN"},
        {"body": {"input": [{"role": "system", "content": "S"}, {"role": "user", "content": "one"},
                            {"role": "user", "content": [{"type": "input_text", "text": "two"}]}]}},
        {"body": {"system": [{"type": "text", "text": "S"}], "messages": [{"role": "user", "content": "one"},
                                                                         {"role": "user", "content": "two"}]}},
        {"body": {"instructions": "S", "input": [{"role": "user", "content": "one"},
                                                 {"role": "user", "content": "two"}]}},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("shape", "row"), [(shape, row) for shape, rows in ROWS.items() for row in rows])
def test_conversations_give_user_turns_and_system_prompt(shape: str, row: Any) -> None:
    found = user_turns(row, shape)
    assert not isinstance(found, str)
    assert found.turns == ("one", "two")
    assert found.system == "S"
    assert "FOREIGN" not in str(found)


def first_three(row: Any, shape: str, field: str = "") -> Any:
    """Turns, system prompt and category."""
    return user_turns(row, shape, field)[:3]


def test_single_turn_shapes() -> None:
    alpaca = {"instruction": "Add.", "input": "1 2", "output": "FOREIGN"}
    assert first_three(alpaca, "alpaca") == (("Add.\n\n1 2",), None, None)
    assert first_three({**alpaca, "input": ""}, "alpaca") == (("Add.",), None, None)
    dolly = {"instruction": "Who ran it?", "context": "It was run by X.", "response": "FOREIGN"}
    assert first_three(dolly, "alpaca") == (("Who ran it?\n\nIt was run by X.",), None, None)
    assert first_three({"turns": ["a", "b"], "category": "code"}, "turns") == (("a", "b"), None, "code")
    assert first_three({"prompt": " Hi ", "response": "FOREIGN"}, "prompt") == (("Hi",), None, None)
    orca = {"system_prompt": "S", "question": "Hi", "response": "FOREIGN"}
    assert first_three(orca, "prompt") == (("Hi",), "S", None)
    assert first_three({**alpaca, "system": "S"}, "alpaca") == (("Add.\n\n1 2",), "S", None)
    assert first_three("Hi", "prompt") == (("Hi",), None, None)
    assert first_three({"body": {"prompt": "Hi"}}, "request") == (("Hi",), None, None)


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        *((row, shape) for shape, rows in ROWS.items() for row in rows if "request" not in row),
        ({"instruction": "a", "input": "b"}, "alpaca"),
        ({"turns": ["a"]}, "turns"),
        (["a", "b"], "turns"),
        ({"question": "a"}, "prompt"),
        ("a", "prompt"),
        ({"prompt": "a", "data": ["x", "y"]}, "prompt"),
        ({"ask": "a", "chosen": "an answer"}, None),
        ({"number": 3}, None),
        (7, None),
    ],
)
def test_shapes_are_detected(row: Any, shape: str | None) -> None:
    assert detect_shape([row]) == shape


def test_the_shape_of_most_rows_wins() -> None:
    assert detect_shape([{"text": "x"}, *ROWS["sharegpt"], 5]) == "sharegpt"


@pytest.mark.parametrize(
    ("row", "shape", "reason"),
    [
        ({"messages": "no list"}, "messages", "shape"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "no_user_turn"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
            "messages",
            "no_text",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages", "no_text"),
        ({"turns": []}, "turns", "no_user_turn"),
        ({"turns": ["", "b"]}, "turns", "no_user_turn"),
        ({"turns": [3]}, "turns", "no_text"),
        ({"text": 3}, "prompt", "shape"),
        ({"chosen": "an answer"}, "prompt", "shape"),
        ({"text": "Assistant: Hello."}, "prompt", "no_user_turn"),
        ({"body": {"prompt": [1, 2, 3]}}, "request", "no_text"),
        ({"status": 200}, "request", "shape"),
        ({"body": "[" * 100_000}, "request", "shape"),
    ],
)
def test_rows_without_user_turns_say_why(row: Any, shape: str, reason: str) -> None:
    assert user_turns(row, shape) == reason


def test_answers_in_a_named_list_of_texts_are_not_taken_for_turns() -> None:
    texts = ["one", "FOREIGN", "two"]
    assert detect_shape([{"turns": texts}], "turns") == "turns"
    assert detect_shape([{"data": texts}], "data") == "alternating"
    assert detect_shape([{"dialog": texts}], "dialog") is None
    assert first_three({"dialog": texts}, "alternating", "dialog") == (("one", "two"), None, None)
    assert detect_shape([{"chat": json.dumps([{"role": "user", "content": "one"}])}], "chat") == "messages"
    with pytest.raises(ValueError, match="its shape is alternating"):
        SourceOptions(path="a.jsonl", shape="turns", field="data")


def test_turns_after_an_empty_one_are_dropped_and_columns_can_be_named() -> None:
    assert first_three({"turns": ["a", " ", "c"]}, "turns") == (("a",), None, None)
    assert first_three({"ask": "a"}, "prompt", "ask") == (("a",), None, None)
    row = {"chat": ROWS["sharegpt"][0]["conversations"]}
    assert user_turns(row, "sharegpt", "chat") == user_turns(ROWS["sharegpt"][0], "sharegpt")
