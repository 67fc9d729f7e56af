"""Duplicates are found exactly, their order decides which stays, and near ones are told by similarity."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.data.filters import words
from fledge.data.prompt_store import TrainingPrompt
from fledge.data.selection import DuplicateFinder
from fledge.data.selection import buckets as buckets_module
from fledge.data.selection.buckets import KeyBuckets
from fledge.data.selection.duplicates import CONTINUED, KEPT, NEAR_REPEAT, REPEAT

VOCABULARY = [f"word{number}" for number in range(400)]


def prompt(turns: list[str], system: str | None = None) -> TrainingPrompt:
    return TrainingPrompt("", "log", "chat", turns, 0, "own", system)


def verdicts(folder: Path, conversations: list[list[str]], near: float = 0.7, batch: int = 3) -> list[int]:
    finder = DuplicateFinder(folder / "keys", near)
    for start in range(0, len(conversations), batch):
        finder.add([prompt(turns) for turns in conversations[start : start + batch]])
    return finder.verdicts().tolist()


def test_the_first_of_equal_conversations_stays(tmp_path: Path) -> None:
    turns = [
        ["How are you?"],
        ["Why is it so?"],
        ["how ARE you"],
        ["Why is it so?", "Really?"],
        ["How are you?!"],
    ]
    assert verdicts(tmp_path, turns) == [KEPT, CONTINUED, REPEAT, KEPT, REPEAT]


def test_a_conversation_that_another_goes_on_from_is_dropped(tmp_path: Path) -> None:
    turns = [["a b c d"], ["a b c d", "e"], ["a b c d", "f"], ["a b c d", "e", "g"]]
    assert verdicts(tmp_path, turns, near=1.0) == [CONTINUED, CONTINUED, KEPT, KEPT]


@pytest.mark.parametrize("near", [0.5, 0.7, 1.0])
def test_the_same_question_under_another_system_prompt_is_no_repeat(tmp_path: Path, near: float) -> None:
    finder = DuplicateFinder(tmp_path / "keys", near)
    turns = ["q q q"]
    finder.add([prompt(turns, "be brief"), prompt(turns), prompt(turns, "be long")])
    finder.add([prompt(turns, "be long")])
    assert finder.verdicts().tolist() == [KEPT, KEPT, KEPT, REPEAT]


def _text(rng: random.Random, length: int = 60) -> list[str]:
    return rng.choices(VOCABULARY, k=length)


@pytest.mark.parametrize("near", [0.5, 0.7, 0.9])
def test_near_duplicates_follow_the_true_similarity(tmp_path: Path, near: float) -> None:
    """Pairs far enough from the threshold on either side are judged right."""
    rng = random.Random(0)
    wrong = clear = 0
    for pair in range(150):
        first = _text(rng)
        second = [
            rng.choice(VOCABULARY) if rng.random() < rng.choice([0.01, 0.05, 0.2]) else w for w in first
        ]
        grams = [set(zip(t, t[1:], t[2:], strict=False)) for t in (first, second)]
        true = len(grams[0] & grams[1]) / len(grams[0] | grams[1])
        if abs(true - near) < 0.15 or first == second:
            continue
        clear += 1
        found = verdicts(tmp_path / str(pair), [[" ".join(first)], [" ".join(second)]], near)
        wrong += found != [KEPT, NEAR_REPEAT if true > near else KEPT]
    assert clear > 40
    assert wrong <= 0.05 * clear


def test_short_prompts_are_near_only_when_equal(tmp_path: Path) -> None:
    assert verdicts(tmp_path, [["sum of squares"], ["sum of cubes"], ["list of squares"]]) == [KEPT] * 3


def test_verdicts_do_not_depend_on_batches(tmp_path: Path) -> None:
    rng = random.Random(1)
    pool = [" ".join(_text(rng, 30)) for _ in range(40)]
    turns = [[rng.choice(pool)] for _ in range(100)]
    assert verdicts(tmp_path / "a", turns, batch=7) == verdicts(tmp_path / "b", turns, batch=100)
    kept = [t[0] for t, v in zip(turns, verdicts(tmp_path / "c", turns), strict=True) if v == KEPT]
    assert sorted(kept) == sorted(set(kept)) == sorted({t[0] for t in turns})


@settings(max_examples=30)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=200), st.sampled_from([3, 1000]))
def test_buckets_group_equal_keys(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], buffered: int
) -> None:
    """On disk and in memory."""
    with mock.patch.object(buckets_module, "_BUFFERED", buffered):
        _check_groups(tmp_path_factory, keys)


def _check_groups(tmp_path_factory: pytest.TempPathFactory, keys: list[int]) -> None:
    buckets = KeyBuckets(tmp_path_factory.mktemp("buckets") / "b")
    for row, key in enumerate(keys):
        buckets.add(np.array([key], np.uint64), np.array([row]))
    expected = defaultdict(list)
    for row, key in enumerate(keys):
        expected[key].append(row)
    found = {key: rows.tolist() for key, rows in buckets.groups()}
    assert found == {key: rows for key, rows in expected.items() if len(rows) > 1}


def test_words_fold_what_duplicates_ignore() -> None:
    assert words("How ARE you?") == words("how are you")
