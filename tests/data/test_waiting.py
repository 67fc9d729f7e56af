"""Finished answers outlive their process until they are in a shard."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fledge.base.errors import StorageError
from fledge.data import waiting as module
from fledge.data.conversations import Answered, Conversation
from fledge.data.generation import Job
from fledge.data.privacy import Audit
from fledge.data.waiting import NAME, Waiting

FOUND = Answered(
    "p",
    (Conversation("c", "p", "log", "chat", [1, 2], [False, True], [0, 1], 0.5, "stop", "train"),),
    "private_policy",
    Audit(2, 0, Counter(policy=1), Counter(PERSON=3)),
)
EMPTY = Answered("q", (), "too_long")


def finish(waiting: Waiting, number: int, found: Answered | None) -> Answered:
    """Run the job of a prompt; without an answer it must have one already."""

    def job() -> Job[Answered]:
        assert found is not None
        return found
        yield

    with pytest.raises(StopIteration) as stopped:
        next(waiting.job(number, job()))
    answered: Answered = stopped.value.value
    return answered


def test_what_waits_is_found_again_and_what_is_in_shards_goes(tmp_path: Path) -> None:
    before = Waiting(str(tmp_path), 0)
    for number, found in ((0, EMPTY), (5, FOUND), (6, EMPTY)):
        finish(before, number, found)
    before.save()
    after = Waiting(str(tmp_path), 5)  # a kill between a shard and the file: 0 is in both
    assert [finish(after, 5, None), finish(after, 6, None)] == [FOUND, EMPTY]
    assert finish(after, 0, FOUND) == FOUND
    after.forget(7)
    after.save()
    assert not (tmp_path / NAME).exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    waiting = Waiting(str(tmp_path), 0)
    finish(waiting, 1, FOUND)
    waiting.save()
    (tmp_path / NAME).write_bytes((tmp_path / NAME).read_bytes()[:-50])
    with pytest.raises(StorageError, match=rf"{NAME} is damaged .*; delete it"):
        Waiting(str(tmp_path), 0)


def test_no_flipped_bit_gives_other_rows(tmp_path: Path) -> None:
    waiting = Waiting(str(tmp_path), 0)
    finish(waiting, 1, FOUND)
    waiting.save()
    whole = (tmp_path / NAME).read_bytes()
    for bit in range(0, 8 * len(whole), 37):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (tmp_path / NAME).write_bytes(data)
        with pytest.raises(StorageError, match=rf"{NAME} is damaged .*; delete it"):
            Waiting(str(tmp_path), 0)


def test_a_kill_finds_the_file_a_minute_old_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = Waiting(str(tmp_path), 0)
    finish(waiting, 1, FOUND)
    assert not (tmp_path / NAME).exists()
    monkeypatch.setattr(module, "_EVERY_S", 0.0)
    finish(waiting, 2, EMPTY)
    assert finish(Waiting(str(tmp_path), 0), 1, None) == FOUND
