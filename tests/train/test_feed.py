"""Features made while training asks for them give the same head as stored ones; reading ahead is bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.base.errors import FingerprintError
from fledge.features import (
    FeatureExtractor,
    FeatureOptions,
    FeatureServers,
    FeatureStore,
    OnlineFeatures,
    ServedExtractor,
    extract_features,
    server_arguments,
)
from fledge.target import Target
from fledge.train import train
from tests.features.test_features import make_conversations, write_conversations
from tests.features.test_served import Server, unreliable
from tests.heads.tiny_head import load_tiny_target
from tests.train.test_trainer import OPTIONS

SMALL = OPTIONS.model_copy(update={"epochs": 2.0, "ttt_steps": 2, "dtype": "float32"})


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


def test_training_from_servers_gives_the_head_of_what_they_stored(
    tiny_target_folder: Path, conversations: str, tmp_path: Path
) -> None:
    """Bit for bit, as these servers' values don't depend on what else they compute."""
    target = load_tiny_target(tiny_target_folder, "bfloat16")
    places = [tmp_path / name for name in ("stored", "streamed")]
    arguments = server_arguments(target, str(tmp_path))
    one, other = (Server(tiny_target_folder, arguments, name) for name in ("one", "other"))
    with one.running() as first, other.running() as second:
        for folder, feed in zip(places, ("offline", "online"), strict=True):
            servers = FeatureServers(urls=(first, second), ahead=3)
            options = FeatureOptions(feed=feed, server=servers)  # type: ignore[arg-type]
            served = ServedExtractor(target, servers, pause=lambda seconds: None)
            extract_features(target, conversations, options, str(folder / "features"), extractor=served)
            online = None
            if feed == "online":
                online = OnlineFeatures(target, conversations, options, extractor=served)
                unreliable(one)
                unreliable(other, killed_at=20)
            head = str(folder / "features"), SMALL, str(folder / "head"), str(folder / "train")
            train(target, *head, online=online)
    stored, streamed = ((folder / "head" / "model.safetensors").read_bytes() for folder in places)
    assert stored == streamed


def test_a_conversation_that_a_server_refuses_is_left_out_of_its_batch(
    tiny_target_folder: Path, conversations: str, tmp_path: Path
) -> None:
    target = load_tiny_target(tiny_target_folder, "bfloat16")
    server = Server(tiny_target_folder, server_arguments(target, str(tmp_path)))
    answer = server.reply
    server.reply = lambda body: 400 if len(body["prompt"]) > 20 else answer(body)  # type: ignore[method-assign, assignment, return-value]
    with server.running() as address:
        servers = FeatureServers(urls=(address,))
        options = FeatureOptions(feed="online", server=servers)
        served = ServedExtractor(target, servers)
        online = OnlineFeatures(target, conversations, options, extractor=served)
        extract_features(target, conversations, options, str(tmp_path / "features"), extractor=served)
        train(
            target,
            str(tmp_path / "features"),
            SMALL,
            str(tmp_path / "head"),
            str(tmp_path / "train"),
            online=online,
        )
        batch = online.split("train")
        samples = online.read_many(batch)
    long = {info.conversation_id for info in batch if info.tokens > 20}
    assert {sample.conversation_id for sample in samples} == {i.conversation_id for i in batch} - long
    assert long <= served.refused


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
