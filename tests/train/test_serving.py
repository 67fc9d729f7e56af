"""The tau that `evaluate` predicts from stored features is the tau the engine has on the same prompts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.data.conversations import Conversation
from fledge.engine import Engine, TreeShape
from fledge.features import FeatureExtractor, FeatureOptions, FeatureStore, extract_features
from fledge.heads import Head
from fledge.target import Target
from fledge.train import Acceptance, EvaluateOptions, TrainOptions, evaluate, train
from fledge.train.acceptance import replay
from fledge.train.batches import make_batch
from fledge.train.learner import Learner
from fledge.train.serving import ServingReplay
from tests.data.conversation import conversation
from tests.features.test_features import write_conversations
from tests.heads.tiny_head import load_tiny_target
from tests.tiny import TinyShape, save_tiny_target

SHAPES = [(3, 1, 4), (5, 1, 6), (3, 4, 12), (5, 3, 20)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = save_tiny_target(tmp_path_factory.mktemp("target"), shape=TinyShape(layers=4), seed=3)
    return load_tiny_target(folder)


@pytest.fixture(scope="module")
def conversations(target: Target) -> list[Conversation]:
    """What the target answers to short prompts, greedily."""
    prompts = [[7 * i % 500 + 4, 11, 3 * i % 500 + 2, 90 + i] for i in range(24)]
    answers = Engine(target, max_batch=20).generate(prompts, max_tokens=40, ignore_eos=True)
    return [
        conversation(f"c{i}", prompts[i], answer.token_ids, "heldout" if i % 2 else "train")
        for i, answer in enumerate(answers)
    ]


@pytest.fixture(scope="module")
def features(target: Target, conversations: list[Conversation], tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("features")
    url = write_conversations(folder / "conversations", conversations)
    extract_features(target, url, FeatureOptions(), str(folder / "features"))
    return str(folder / "features")


@pytest.fixture(scope="module")
def head(target: Target, conversations: list[Conversation], tmp_path_factory) -> Head:
    """Trained on the held-out conversations themselves, so that there is something to accept."""
    folder = tmp_path_factory.mktemp("head")
    seen = [replace(c, split="train") for c in conversations]
    url = write_conversations(folder / "conversations", seen)
    extract_features(target, url, FeatureOptions(), str(folder / "features"))
    options = TrainOptions(
        init="target", draft_vocab_size=300, ttt_steps=3, epochs=20, batch_tokens=400, dtype="float32"
    )
    train(target, str(folder / "features"), options, str(folder / "head"), str(folder / "train"))
    return Head.load(str(folder / "head"))


@pytest.mark.parametrize(
    "shape", [s if s in SHAPES[1::2] else pytest.param(s, marks=pytest.mark.slow) for s in SHAPES], ids=str
)
def test_predicted_tau_is_what_the_engine_measures(
    target: Target, conversations: list[Conversation], features: str, head: Head, shape: tuple[int, int, int]
):
    heldout = [c for c in conversations if c.split == "heldout"]
    engine = Engine(target, head, tree=TreeShape(*shape), max_batch=12)
    rounds = tokens = 0
    prompts = [c.token_ids[:4] for c in heldout]
    answers = engine.generate(prompts, max_tokens=40, temperature=0.0, ignore_eos=True)
    for c, answer in zip(heldout, answers, strict=True):
        assert answer.token_ids == c.token_ids[4:]
        rounds += answer.stats.rounds
        tokens += round(answer.stats.tau * answer.stats.rounds)
    options = EvaluateOptions(depth=3, shapes=(shape,))
    found = evaluate(target, head, features, options, None).serving[",".join(map(str, shape))]
    assert tokens / rounds > 1.3
    assert found.tau == pytest.approx(tokens / rounds, rel=0.03)


def test_both_ways_of_replaying_a_chain_agree(target: Target, conversations: list[Conversation], head: Head):
    """The unroll's hits, and the engine's drafting; float32 features, so that they agree exactly."""
    samples = FeatureExtractor(target, 4096).extract(conversations)
    learner = Learner(head, target.weights, torch.float32, torch.device("cpu"))
    batch = make_batch(samples, torch.float32)
    by_hits = replay(learner.hits(batch, 4), batch, ~head.vocabulary.t2d)
    served = ServingReplay(target, head, TreeShape(4, 1, 5)).rounds(samples)
    key = lambda r: (r.sample, r.position)  # noqa: E731
    same = [a == b for a, b in zip(sorted(by_hits, key=key), sorted(served, key=key), strict=False)]
    assert len(by_hits) == pytest.approx(len(served), rel=0.01)
    assert Acceptance.of(by_hits, 4).tau == pytest.approx(Acceptance.of(served, 4).tau, rel=0.005)
    assert sum(same) > 0.9 * len(same)
    assert Acceptance.of(served, 4).misses == pytest.approx(Acceptance.of(by_hits, 4).misses, abs=0.01)
    assert Acceptance.of(served, 4).misses > 0


def test_only_greedy_answers_predict_a_greedy_engine(
    target: Target, conversations: list[Conversation], head: Head, tmp_path: Path
):
    sampled = [replace(c, temperature=0.7) for c in conversations]
    url = write_conversations(tmp_path / "conversations", sampled)
    extract_features(target, url, FeatureOptions(), str(tmp_path / "features"))
    assert FeatureStore(str(tmp_path / "features")).split("heldout")
    assert evaluate(target, head, str(tmp_path / "features"), EvaluateOptions(), None).serving == {}


def test_features_in_eight_bits_predict_the_same_tau(
    target: Target, conversations: list[Conversation], features: str, head: Head, tmp_path: Path
):
    url = write_conversations(tmp_path / "conversations", conversations)
    extract_features(target, url, FeatureOptions(codec="fp8"), str(tmp_path / "features"))
    options = EvaluateOptions(depth=4, shape_tokens=0)
    full, half = (
        evaluate(target, head, place, options, None).overall
        for place in (features, str(tmp_path / "features"))
    )
    assert full.tau > 1.3
    assert half.tau == pytest.approx(full.tau, rel=0.02)
