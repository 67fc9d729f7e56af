"""Repeats within the set and overlap with evaluation prompts are found; neighbours are left alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fledge.base.errors import DataError
from fledge.data import EvaluationIndex, read_evaluation_texts
from fledge.data.overlap import RepeatIndex

LONG = (
    "A farmer keeps 12 hens and each hen lays 2 eggs every day except Sunday, when they rest. "
    "How many eggs does the farmer collect in two weeks?"
)


def test_equal_words_are_a_repeat_whatever_the_punctuation() -> None:
    index = RepeatIndex(near=0.5)
    index.add("What is the best way to cook rice?")
    assert index.reason("what is the BEST way to cook rice") == "repeat"
    assert index.reason("What is the best way to cook beans?") is None


def test_mostly_equal_text_is_a_near_repeat() -> None:
    index = RepeatIndex(near=0.5)
    index.add(LONG)
    assert index.reason(LONG.replace("two weeks", "three weeks")) == "near_repeat"
    assert index.reason("A farmer keeps 12 hens and sells their eggs. What does she earn in a year?") is None


def test_what_was_not_added_is_no_repeat() -> None:
    index = RepeatIndex(near=0.5)
    assert index.reason(LONG) is None
    assert index.reason(LONG) is None


@pytest.mark.parametrize(
    ("text", "overlaps"),
    [
        (LONG, True),
        ("Please help. " + LONG.upper() + " Thanks!", True),
        ("and each hen lays 2 eggs every day, except Sunday when they rest. Why?", True),  # 13 words in a row
        ("A farmer keeps 12 hens and each hen lays 3 eggs. How many in a week?", False),
        ("each hen lays 2 eggs", True),  # a short text inside an evaluation prompt
        ("each hen lays three eggs", False),
        ("Now rephrase that as a poem. Use simple words.", True),  # a short evaluation prompt inside the text
        ("rephrase that as a letter", False),
        ("Why though?", True),
        ("Why", False),
    ],
)
def test_overlap_with_evaluation_prompts(text: str, overlaps: bool) -> None:
    index = EvaluationIndex([LONG, "Rephrase that as a poem", "Why, though"])
    assert (text in index) is overlaps


def test_evaluation_files_of_every_shape_are_read(tmp_path: Path) -> None:
    rows = [{"turns": ["one", "two"]}, {"prompt": "three"}, {"question": "four", "id": 1}, {"text": "five"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    assert read_evaluation_texts([str(path), str(path)]) == ["one", "two", "three", "four", "five"] * 2


def test_evaluation_files_may_be_conversations_arrays_and_packed(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "answer"}]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json.dumps({"messages": chat}).encode()))
    (tmp_path / "b.json").write_text(json.dumps([{"prompt": "two"}, {"instruction": "three"}]))
    (tmp_path / "c.csv").write_text("question,answer\nfour,answer\n")
    found = read_evaluation_texts([str(tmp_path / name) for name in ("a.jsonl.gz", "b.json", "c.csv")])
    assert found == ["one", "two", "three", "four"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"row 2 can't be read \(not_json\)"),
        ('{"messages": []}', r"row 2: no user turns \(shape\); put them in `turns`, `messages`"),
        ('{"answer": "42"}', r"row 2: no user turns \(shape\)"),
    ],
)
def test_a_bad_evaluation_file_is_a_clear_error(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "Why?"}\n' + line)
    with pytest.raises(DataError, match=message):
        read_evaluation_texts([str(path)])
