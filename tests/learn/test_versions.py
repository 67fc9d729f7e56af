"""Versions: whole or not at all, the newest that wasn't rolled back is served, or the pinned one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.base.errors import HeadError
from fledge.heads import Head
from fledge.learn.versions import Card, Versions
from fledge.target.target import Target
from tests.engine.conftest import noisy_head

CARD = Card(0, tau=2.0, before=1.0, low=0.8, high=1.2, conversations=9, steps=20, tokens=5000, created=0.0)


@pytest.fixture(scope="module")
def head(tiny_target_folder: Path) -> Head:
    return noisy_head(Target.load(str(tiny_target_folder), backend="torch"))


def test_a_version_is_loaded_as_it_was_added(tmp_path: Path, head: Head) -> None:
    versions = Versions(tmp_path / "learned")
    assert versions.cards() == []
    assert versions.to_serve() is None
    assert [versions.add(head, CARD).number for _ in range(3)] == [1, 2, 3]
    assert versions.to_serve() == 3
    again = versions.load(3)
    assert again.config == head.config
    assert torch.equal(again.weights.d2t, head.weights.d2t)


def test_what_a_kill_left_half_written_is_no_version(tmp_path: Path, head: Head) -> None:
    versions = Versions(tmp_path)
    versions.add(head, CARD)
    (tmp_path / ".writing-000002-1").mkdir()
    (tmp_path / ".writing-000002-1" / "config.json").write_text("{")
    assert [card.number for card in versions.cards()] == [1]
    assert versions.add(head, CARD).number == 2
    assert not list(tmp_path.glob(".writing-*"))


def test_a_failed_write_leaves_nothing(tmp_path: Path, head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Versions(tmp_path)

    def full(head: Head, url: str) -> None:
        Path(url).mkdir()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Head, "save", full)
    with pytest.raises(OSError, match="No space"):
        versions.add(head, CARD)
    assert list(tmp_path.iterdir()) == []


def test_old_versions_go_but_for_the_serving_and_the_pinned_one(tmp_path: Path, head: Head) -> None:
    versions = Versions(tmp_path)
    for _ in range(6):
        versions.add(head, CARD)
    versions.pin(1)
    versions.prune(2, 2)
    assert [card.number for card in versions.cards()] == [1, 2, 5, 6]
    assert versions.to_serve() == 1
    versions.pin(None)
    assert versions.to_serve() == 6
    versions.mark_rolled_back(6)
    assert versions.to_serve() == 5


def test_pinning_what_is_not_there_says_so(tmp_path: Path, head: Head) -> None:
    versions = Versions(tmp_path / "learned")
    versions.add(head, CARD)
    with pytest.raises(HeadError, match=r"no version 7; it has 1"):
        versions.pin(7)
    assert Head.load(str(versions.path(1))).config == head.config  # a version is an ordinary head
