"""A head needs answers to learn from and others to be judged on, however few prompts there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fledge.data.conversations import (
    Answered,
    Conversation,
    ConversationWriter,
    is_trainable,
    read_conversations,
)
from fledge.data.split import on_both_sides, split_of


def answered(number: int, heldout: float, tokens: int = 4) -> Answered:
    """A prompt's answer; one of a single token supervises nothing."""
    name = f"p{number}"
    mask = [False, *([True] * (tokens - 1))]
    split = split_of(name, heldout)
    found = Conversation(name, name, "log", "chat", list(range(tokens)), mask, [0, 1], 0.0, "stop", split)
    return Answered(name, (found,))


def written(folder: Path, shards: list[list[Answered]], heldout: float) -> list[Conversation]:
    """What the respond stage leaves of answers in these shards."""
    writer = ConversationWriter(str(folder))
    for shard in shards[:-1]:
        writer.write(shard)
    writer.write(on_both_sides(shards[-1], str(folder), heldout))
    return list(read_conversations(str(folder)))


@pytest.mark.parametrize("heldout", [0.001, 0.999])
@pytest.mark.parametrize("sizes", [[2], [3, 1], [1, 1], [4, 4, 2]])
def test_both_sides_get_a_prompt_where_there_are_two(
    tmp_path: Path, heldout: float, sizes: list[int]
) -> None:
    numbers = iter(range(100))
    shards = [[answered(next(numbers), heldout) for _ in range(size)] for size in sizes]
    before = [c.split for shard in shards for a in shard for c in a.conversations]
    found = [c.split for c in written(tmp_path, shards, heldout)]
    assert set(found) == {"train", "heldout"}
    assert sum(a != b for a, b in zip(found, before, strict=True)) == 1


def test_an_answer_that_nothing_can_be_learnt_from_is_on_no_side(tmp_path: Path) -> None:
    shards = [[answered(0, 0.001), answered(1, 0.001)], [answered(2, 0.001), answered(3, 0.001, tokens=2)]]
    found = {c.prompt_id: c.split for c in written(tmp_path, shards, 0.001)}
    assert found["p2"] == "heldout"


@pytest.mark.parametrize("heldout", [0.0, 1.0])
def test_a_side_that_is_meant_to_be_empty_stays_so(tmp_path: Path, heldout: float) -> None:
    shards = [[answered(number, heldout) for number in range(4)]]
    assert len({c.split for c in written(tmp_path, shards, heldout)}) == 1


def test_the_share_of_prompts_that_are_held_out_is_the_one_asked_for() -> None:
    found = [split_of(f"p{number}", 0.25) for number in range(10_000)]
    assert found.count("heldout") / 10_000 == pytest.approx(0.25, abs=0.015)


@pytest.mark.parametrize(("heldout", "nearest"), [(0.0001, min), (0.9999, max)])
def test_the_prompt_that_changes_sides_is_the_next_one_that_another_share_would_have_moved(
    heldout: float, nearest: Callable[..., str]
) -> None:
    answers = [answered(number, heldout) for number in range(9)]

    def needed(name: str) -> float:
        """The share from which on a prompt is held out."""
        return next(share / 1000 for share in range(1001) if split_of(name, share / 1000) == "heldout")

    moved = on_both_sides(answers, "memory://no-shards-before", heldout)
    changed = [new.prompt_id for new, old in zip(moved, answers, strict=True) if new != old]
    assert changed == [nearest((a.prompt_id for a in answers), key=needed)]


@pytest.mark.parametrize(("tokens", "supervised", "trainable"), [(3, 2, True), (2, 2, False), (3, 1, False)])
def test_three_tokens_of_which_the_target_wrote_two_are_the_least(
    tokens: int, supervised: int, trainable: bool
) -> None:
    assert is_trainable(tokens, supervised) == trainable


def test_where_the_hash_gives_both_sides_nothing_changes() -> None:
    answers = [answered(number, 0.5) for number in range(20)]
    assert on_both_sides(answers, "memory://none-before", 0.5) == answers
