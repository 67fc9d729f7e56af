"""Features made while training asks for them give the same head as stored ones; reading ahead is bounded."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.base.errors import FingerprintError
from fledge.features import FeatureExtractor, FeatureOptions, FeatureStore, OnlineFeatures, extract_features
from fledge.target import Target
from fledge.train import train
from fledge.train.feed import read_ahead
from tests.features.test_features import make_conversations, write_conversations
from tests.heads.tiny_head import load_tiny_target
from tests.train.test_trainer import OPTIONS

SMALL = OPTIONS.model_copy(update={"epochs": 2.0, "ttt_steps": 2, "dtype": "float32"})


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return load_tiny_target(tiny_target_folder)


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = make_conversations(20)
    counting = [
        replace(c, token_ids=[(7 * i + 3 * t) % 120 for t in range(len(c.token_ids))])
        for i, c in enumerate(made)
    ]
    return write_conversations(tmp_path_factory.mktemp("conversations"), counting)


@pytest.fixture(scope="module")
def stored(target: Target, conversations: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head trained from a store."""
    folder = tmp_path_factory.mktemp("stored")
    extract_features(target, conversations, FeatureOptions(), str(folder / "features"))
    train(target, str(folder / "features"), SMALL, str(folder / "head"), str(folder / "train"))
    return folder


def train_online(target: Target, conversations: str, folder: Path, feed: str, progress=None) -> None:
    options = FeatureOptions(feed=feed, shard_mib=1)  # type: ignore[arg-type]
    extract_features(target, conversations, options, str(folder / "features"))
    keep = str(folder / "kept") if feed == "hybrid" else None
    online = OnlineFeatures(target, conversations, options, keep)
    places = str(folder / "features"), SMALL, str(folder / "head"), str(folder / "train")
    train(target, *places, progress or (lambda d, t, n: None), online)


def test_the_features_stage_stores_only_what_is_held_out(target: Target, conversations: str, tmp_path: Path):
    extract_features(target, conversations, FeatureOptions(feed="online"), str(tmp_path))
    assert {info.split for info in FeatureStore(str(tmp_path)).samples} == {"heldout"}


def assert_same_head(one: Path, other: Path) -> None:
    """Equal but for rounding: batches of other conversations go through the target's products in other sizes."""
    from fledge.heads import Head

    first, second = (Head.load(str(folder / "head")) for folder in (one, other))
    assert first.metadata.training["steps"] == second.metadata.training["steps"]
    for name, tensor in first.weights.trainable().items():
        difference = (tensor - second.weights.trainable()[name]).norm() / tensor.norm()
        assert difference < 2e-2, name  # the head is kept in bf16


def test_online_training_gives_the_head_of_offline_training(
    target: Target, conversations: str, stored: Path, tmp_path: Path
):
    train_online(target, conversations, tmp_path, "online")
    assert_same_head(tmp_path, stored)


def test_hybrid_asks_the_target_once_for_each_conversation_and_keeps_a_sound_store(
    target: Target, conversations: str, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[str] = []
    real = FeatureExtractor.extract

    def counted(self, group):
        asked.extend(c.conversation_id for c in group if c.split == "train")
        return real(self, group)

    monkeypatch.setattr(FeatureExtractor, "extract", counted)

    def kill(done: float, total: float, note: str) -> None:
        if done == total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # after the last step, before the head is written
        train_online(target, conversations, tmp_path, "hybrid", kill)
    trainable = set(asked)
    assert len(asked) == len(trainable)
    train_online(target, conversations, tmp_path, "hybrid")
    assert_same_head(tmp_path, stored)
    kept = FeatureStore(str(tmp_path / "kept")).samples
    assert {info.conversation_id for info in kept} == trainable


@pytest.mark.parametrize("codec", ["bf16", "fp8"])
def test_hybrid_gives_the_values_of_its_store_before_they_are_in_it(
    target: Target, conversations: str, tmp_path: Path, codec: str
):
    """A killed run reads from the store what it had fresh from the target before."""
    options = FeatureOptions(feed="hybrid", codec=codec)  # type: ignore[arg-type]
    online = OnlineFeatures(target, conversations, options, str(tmp_path / "kept"))
    infos = online.split("train")[1:]  # training may never ask for some: too short, or train.response_tokens
    made = online.read_many(infos)
    online.read_many(infos[:1])  # the second pass
    kept = FeatureStore(str(tmp_path / "kept"))
    for sample, info in zip(made, kept.samples, strict=True):
        stored = kept.read(info)
        assert sample.conversation_id == stored.conversation_id
        assert torch.equal(sample.features, stored.features)
        assert torch.equal(sample.hidden, stored.hidden)


def test_a_kept_store_of_other_conversations_is_refused(target: Target, conversations: str, tmp_path: Path):
    options = FeatureOptions(feed="hybrid")
    OnlineFeatures(target, conversations, options, str(tmp_path / "kept"))
    other = write_conversations(tmp_path / "other", make_conversations(4, seed=9))
    with pytest.raises(FingerprintError, match="conversations"):
        OnlineFeatures(target, other, options, str(tmp_path / "kept"))


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_reading_ahead_keeps_the_order_and_is_bounded(ahead: int):
    read: list[int] = []

    def slow_step(item: int) -> int:
        read.append(item)
        return item * item

    got = []
    for number, value in enumerate(read_ahead(range(20), slow_step, ahead)):
        got.append(value)
        time.sleep(0.002)
        assert len(read) <= number + 1 + ahead + 1
    assert got == [n * n for n in range(20)]


def test_an_error_while_reading_ahead_arrives_where_the_batch_is_used_and_no_thread_is_left():
    def fails_at_three(item: int) -> int:
        if item == 3:
            raise ValueError("damaged")
        return item

    before = threading.active_count()
    got = []
    batches = read_ahead(range(9), fails_at_three, 2)
    with pytest.raises(ValueError, match="damaged"):
        got.extend(batches)
    assert threading.active_count() == before
