"""A tiny target's head that really accepts: trained on the very answers the doctor looks at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fledge.doctor import PROMPTS
from fledge.engine import Engine
from fledge.features import FeatureOptions, extract_features
from fledge.target import Target
from fledge.train import TrainOptions, train
from tests.conftest import made_once
from tests.data.conversation import conversation
from tests.features.test_features import write_conversations
from tests.heads.tiny_head import load_tiny_target
from tests.tiny import TinyShape, save_tiny_target

TOKENS = 24
SHAPE = TinyShape(positions=256)  # every examination makes an engine, with a pool for so many


@dataclass(frozen=True)
class Patient:
    """A target and the folder of a head for it."""

    target: Target
    head: Path


@pytest.fixture(scope="session")
def patient(shared: Path) -> Patient:
    folder = made_once(shared, "patient", make_patient)
    return Patient(load_tiny_target(folder / "llama"), folder / "head")


def make_patient(folder: Path) -> None:
    """Its target and its head."""
    target = load_tiny_target(save_tiny_target(folder / "llama", shape=SHAPE))
    answers = Engine(target, None).generate(list(PROMPTS), max_tokens=TOKENS)
    conversations = [
        conversation(f"{split}-{number}", a.prompt_token_ids, a.token_ids, split)
        for split in ("train", "heldout")
        for number, a in enumerate(answers)
    ]
    url = write_conversations(folder / "conversations", conversations)
    extract_features(target, url, FeatureOptions(batch_tokens=512, shard_mib=1), str(folder / "features"))
    options = TrainOptions(
        init="target",  # so short a training leaves a random MLP little to say, and no swap is noticed
        draft_vocab_size=200,
        ttt_steps=2,
        epochs=60,
        batch_tokens=512,
        learning_rate=3e-3,
        evaluate_every=1000,
        dtype="float32",  # bf16 rounds differently from processor to processor
    )
    train(target, str(folder / "features"), options, str(folder / "head"), str(folder / "train"))
