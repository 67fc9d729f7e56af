"""`--learn-privacy`: no token that holds some of what the filter finds is in the loss, and all others are."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fledge.data.privacy import PrivacyFilter
from fledge.features import FeatureSample
from fledge.learn.private import without_private
from fledge.target.target import Target

PRIVATE = ("jane.roe@acme-widgets.com", "4539 1488 0343 6467", "(212) 555-7834")


@pytest.fixture(scope="module")
def privacy() -> PrivacyFilter:
    return PrivacyFilter()


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return Target.load(str(tiny_target_folder), dtype="float32", backend="torch")


def masked(target: Target, privacy: PrivacyFilter, text: str) -> tuple[list[int], list[int]]:
    """The text's tokens, and which of them are still in the loss."""
    ids = target.tokenizer.encode(text, add_special_tokens=False)
    empty = torch.zeros(len(ids), 0, dtype=torch.bfloat16)
    mask = torch.ones(len(ids), dtype=torch.uint8)
    sample = FeatureSample("1", "a", "train", 0.0, torch.tensor(ids).int(), mask, mask.int(), empty, empty)
    return ids, without_private(sample, target.tokenizer, privacy).loss_mask.tolist()


@pytest.mark.parametrize("around", ["", "Größe 你好 🙂 "], ids=["ascii", "characters of several tokens"])
def test_what_is_found_is_out_of_the_loss_and_nothing_else(
    target: Target, privacy: PrivacyFilter, around: str
) -> None:
    words = [f"{around}Write to {PRIVATE[0]}", f"pay with the credit card {PRIVATE[1]}", f"call {PRIVATE[2]}"]
    ids, mask = masked(target, privacy, f" {around}or ".join([*words, "stay as you are"]))
    kept = target.tokenizer.decode([token for token, one in zip(ids, mask, strict=True) if one])
    assert not any(character.isdigit() for character in kept)
    assert "jane" not in kept
    assert "widgets" not in kept
    assert kept.count("or") >= 3
    assert "stay as you are" in kept
    assert kept.count(around) == 4 if around else True


def test_a_text_without_any_stays_whole(target: Target, privacy: PrivacyFilter) -> None:
    _, mask = masked(target, privacy, "Why is the sky blue? 你好 🙂")
    assert all(mask)
