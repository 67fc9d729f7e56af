"""The project's own prompts, and files of the same format."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fledge.base.errors import DataError
from fledge.bench.options import BenchOptions
from fledge.bench.workloads import (
    CATEGORIES,
    OWN_WORKLOAD,
    Prompt,
    Workload,
    load_workloads,
    own_workload,
    read_workload,
)

GOOD = {"question_id": 7, "category": "code", "turns": ["Write a loop.", "Explain it."], "reference": ["..."]}


def write_lines(path: Path, lines: list[str]) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_own_set_has_ten_prompts_in_each_category_and_no_doubles() -> None:
    prompts = own_workload().prompts
    assert Counter(prompt.category for prompt in prompts) == dict.fromkeys(CATEGORIES, 10)
    assert len({prompt.question_id for prompt in prompts}) == len(prompts) == 80
    assert len({prompt.turns[0] for prompt in prompts}) == len(prompts)


def test_file_of_turns_is_read_and_named_after_the_file(tmp_path: Path) -> None:
    workload = read_workload(write_lines(tmp_path / "gsm8k.jsonl", [json.dumps(GOOD), "", json.dumps(GOOD)]))
    assert workload.name == "gsm8k"
    assert workload.prompts[0] == Prompt("7", "code", ("Write a loop.", "Explain it."))
    assert workload.prompts[1].messages == [{"role": "user", "content": "Write a loop."}]


def test_line_separators_inside_texts_and_a_byte_order_mark_are_no_ends_of_lines(tmp_path: Path) -> None:
    value = {"category": "a\u2028b", "turns": ["one\u2028two\x85three"]}
    path = tmp_path / "web.jsonl"
    path.write_text(json.dumps(value, ensure_ascii=False) + "\r\n", encoding="utf-8-sig", newline="")
    assert read_workload(str(path)).prompts == (Prompt("1", "a\u2028b", ("one\u2028two\x85three",)),)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"output_length": 52, "hash_ids": [46]}', "there are lengths but no text to send"),
        ('{"turns": ["unfinished"', "Invalid JSON"),
        ('["a list"]', "Input should be an object"),
        ('{"question_id": 1, "category": "x"}', "turns: Field required"),
        ('{"question_id": 1, "category": "x", "turns": []}', "turns: "),
        ('{"question_id": 1, "category": "x", "turns": "text"}', "turns: Input should be a valid "),
        (
            '{"question_id": 1, "category": "x", "turns": ["fine", 3]}',
            "turns: 1: Input should be a valid string",
        ),
        ('{"question_id": 1, "category": "x", "turns": ["  "]}', "turns: 0: "),
        ('{"question_id": [1], "category": "x", "turns": ["fine"]}', "question_id: "),
        ('{"question_id": 1, "category": null, "turns": ["fine"]}', "category: "),
        ('{"question_id": 1, "category": "x", "turns": ["torn \\ud83d"]}', "Invalid JSON"),
    ],
)
def test_malformed_line_is_refused_with_its_number(tmp_path: Path, line: str, problem: str) -> None:
    url = write_lines(tmp_path / "bad.jsonl", [json.dumps(GOOD), line])
    with pytest.raises(DataError) as caught:
        read_workload(url)
    message = str(caught.value)
    assert f"{url}, line 2: " in message
    assert problem in message
    assert "write each line like" in message


def test_missing_empty_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no prompt file"):
        read_workload(str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(DataError, match="holds no prompts"):
        read_workload(write_lines(tmp_path / "empty.jsonl", [""]))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_workload(str(tmp_path / "binary.jsonl"))


def test_limit_takes_evenly_from_all_categories_in_the_files_order() -> None:
    limited = own_workload().limited(20)
    counts = Counter(prompt.category for prompt in limited.prompts)
    assert set(counts) == set(CATEGORIES)
    assert max(counts.values()) - min(counts.values()) <= 1
    order = [prompt.question_id for prompt in own_workload().prompts]
    places = [order.index(prompt.question_id) for prompt in limited.prompts]
    assert places == sorted(places)
    one_category = Workload("w", tuple(Prompt(str(n), "math", ("x",)) for n in range(9))).limited(4)
    assert [prompt.question_id for prompt in one_category.prompts] == ["0", "1", "2", "3"]
    with pytest.raises(DataError, match="be measured"):
        own_workload().limited(0)


def test_workloads_of_the_same_name_stay_apart(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    urls = [write_lines(tmp_path / folder / "set.jsonl", [json.dumps(GOOD)] * 3) for folder in ("a", "b")]
    workloads = load_workloads(BenchOptions(own_prompts=5, prompts=urls, prompts_limit=2))
    assert [workload.name for workload in workloads] == [OWN_WORKLOAD, "set", "set-2"]
    assert [len(workload.prompts) for workload in workloads] == [5, 2, 2]
    assert [workload.name for workload in load_workloads(BenchOptions(own_prompts=0, prompts=urls[:1]))] == [
        "set"
    ]


def test_nothing_to_measure_on_is_refused() -> None:
    with pytest.raises(DataError, match="nothing to measure"):
        load_workloads(BenchOptions(own_prompts=0))


def test_traffic_keeps_its_system_prompt_tools_and_options(tmp_path: Path) -> None:
    tools = [
        {
            "type": "function",
            "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}},
        }
    ]
    asked = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Where is it?"}]
    rows = [
        {"turns": ["Where is it?"], "system": "Be short."},
        {"messages": asked},
        {"body": {"messages": asked, "tools": tools, "chat_template_kwargs": {"enable_thinking": False}}},
        {
            "conversations": [
                {"from": "system", "value": "Be short."},
                {"from": "human", "value": "Where is it?"},
            ]
        },
    ]
    prompts = read_workload(write_lines(tmp_path / "traffic.jsonl", list(map(json.dumps, rows)))).prompts
    assert [prompt.messages for prompt in prompts] == [asked] * 4
    assert [prompt.extras for prompt in prompts] == [
        {},
        {},
        {"tools": tools, "chat_template_kwargs": {"enable_thinking": False}},
        {},
    ]
    with pytest.raises(DataError, match=r"line 1: there is no turn of a user \(answer\)"):
        read_workload(write_lines(tmp_path / "b.jsonl", ['{"text": "It is here.", "role": "assistant"}']))


HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("row", "lengths", "unused"),
    [
        ({"prompt": "Hi", "output_tokens": 5}, (5,), ()),  # vLLM's custom data set
        ({"turns": ["Hi", "And?"], "output_tokens": [5, 7]}, (5, 7), ()),
        ({"turns": ["Hi"], "max_tokens": 5, "category": "x"}, (5,), ()),
        (
            {"messages": HI, "output_length": 5, "max_tokens": 9},
            (5,),
            (),
        ),  # what was written, not what was allowed
        ({"body": {"messages": HI, "max_completion_tokens": 5, "temperature": 0.7}}, (5,), ("temperature",)),
        ({"request": {"inputs": "Hi", "parameters": {"max_new_tokens": 5, "top_p": 0.9}}}, (5,), ("top_p",)),
        ({"messages": HI, "response": {"usage": {"completion_tokens": 5}}}, (5,), ()),
        ({"turns": ["Hi"], "reference": {"answer": 4}}, (), ()),
        (
            {"messages": HI, "tools": [{"function": {"parameters": {"max_tokens": 5}}}], "max_tokens": None},
            (),
            (),
        ),
    ],
)
def test_a_rows_length_of_the_answer_is_read_at_any_depth(
    row: Any, lengths: Any, unused: Any, tmp_path: Path
) -> None:
    prompt = read_workload(write_lines(tmp_path / "a.jsonl", [json.dumps(row)])).prompts[0]
    assert (prompt.lengths, prompt.unused) == (lengths, unused)
    assert [prompt.max_tokens(turn, 128) for turn in (0, 1, 2)] == [*lengths, *[(lengths or (128,))[-1]] * 3][
        :3
    ]


@pytest.mark.parametrize("value", [0, -1, 2.5, "5", True, [5, 0], []])
def test_a_length_that_is_none_is_refused(value: Any, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [json.dumps({"turns": ["Hi"], "output_tokens": value})])
    with pytest.raises(DataError, match=r"a\.jsonl, line 1: output_tokens is .*; give a whole number"):
        read_workload(path)


def test_where_one_length_holds_for_all_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_lines(tmp_path / "a.jsonl", [json.dumps({"turns": ["Hi"], "output_tokens": 5})])
    load_workloads(BenchOptions(own_prompts=0, prompts=(path,)))
    assert (
        "a: the lengths of answers in its rows aren't used here; every answer has up to 128 tokens"
        in caplog.text
    )
