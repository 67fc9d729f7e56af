"""A head in training: it learns, it is measured on what it hasn't seen, and what is wrong never gets through."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

from fledge.base.errors import DataError
from fledge.data import Conversation
from fledge.engine import Engine
from fledge.features import FeatureExtractor, FeatureSample
from fledge.learn.options import LearnOptions
from fledge.learn.ring import Ring
from fledge.learn.student import Student, check_finite, vocabulary_counts, with_argmax
from fledge.target.target import Target
from fledge.train.options import TrainOptions
from tests.learn.conftest import VOCABULARY

TRAIN = TrainOptions(
    ttt_steps=3, batch_tokens=256, draft_vocab_size=256, ema=0.8, dtype="float32", learning_rate=3e-3
)


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return Target.load(str(tiny_target_folder), dtype="float32", backend="torch")


@pytest.fixture(scope="module")
def samples(target: Target) -> list[FeatureSample]:
    """Twenty-four answers, of which four are different: six times the first, then six times the second, and so on."""
    rng = random.Random(1)
    prompts = [[rng.randrange(6, 200) for _ in range(5)] for _ in range(4)]
    answers = Engine(target, max_batch=4).generate(prompts, max_tokens=35, ignore_eos=True)
    texts = [answer.prompt_token_ids + answer.token_ids for answer in answers]
    conversations = [
        Conversation(
            conversation_id=str(number),
            prompt_id="p",
            source="",
            category="a",
            token_ids=texts[(number - 1) // 6],
            loss_mask=[False] * 5 + [True] * 35,
            turn_starts=[0, 4],
            temperature=0.0,
            finish_reason="length",
            split="train",
        )
        for number in range(1, 25)
    ]
    return FeatureExtractor(target, 1024).extract(conversations)


def student(target: Target, samples: list[FeatureSample]) -> tuple[Student, Ring]:
    options = LearnOptions(folder="none", memory=1 << 24, start_tokens=100, passes=1000.0, train=TRAIN)
    ring = Ring(1 << 24, 0.4, 1000)
    for sample in samples:
        ring.add(sample)
    return Student(target, ring, options, None), ring


def test_it_learns_what_the_traffic_is_like_and_the_gain_is_sure(
    target: Target, samples: list[FeatureSample]
) -> None:
    learning, _ = student(target, samples)
    assert learning.ready
    first = learning.step()
    for _ in range(40):
        last = learning.step()
    assert last < first
    found = learning.measure()
    assert found is not None
    assert found.tau[0] == 1.0  # plain decode serves
    assert found.tau[1] > 1.3
    assert found.low > 0
    learning.accept()
    again = learning.measure()
    assert again is not None
    assert again.tau[0] == again.tau[1] == pytest.approx(found.tau[1])


def test_a_candidate_is_a_head_of_the_target_with_the_weights_that_were_measured(
    target: Target, samples: list[FeatureSample]
) -> None:
    learning, _ = student(target, samples)
    for _ in range(3):
        learning.step()
    found = learning.measure()
    assert found is not None
    head = learning.candidate(found)
    head.check_target(target)
    assert head.metadata.training["steps"] == 3
    assert len(head.vocabulary) == TRAIN.draft_vocab_size


def test_after_a_setback_it_is_the_serving_head_again(target: Target, samples: list[FeatureSample]) -> None:
    learning, _ = student(target, samples)
    for _ in range(30):
        learning.step()
    learning.accept()
    before = learning.measure()
    for _ in range(5):
        learning.step()
    learning.begin_again()
    after = learning.measure()
    assert before is not None
    assert after is not None
    assert after.tau == (before.tau[0], before.tau[0])


def test_there_is_an_end_to_passes_over_the_same_answers(
    target: Target, samples: list[FeatureSample]
) -> None:
    options = LearnOptions(folder="none", memory=1 << 24, start_tokens=100, passes=2.0, train=TRAIN)
    ring = Ring(1 << 24, 0.4, 1000)
    for sample in samples:
        ring.add(sample)
    learning, steps = Student(target, ring, options, None), 0
    while learning.ready:
        assert math.isfinite(learning.step())
        steps += 1
        assert steps < 100
    ring.add(samples[0])
    assert steps > 2
    assert learning.trained_tokens < 2 * ring.tokens_in + TRAIN.batch_tokens + 40


def test_it_waits_for_enough_to_begin_with(target: Target, samples: list[FeatureSample]) -> None:
    assert not student(target, samples[:6])[0].ready


def test_hidden_states_that_are_no_numbers_are_refused(samples: list[FeatureSample]) -> None:
    check_finite(samples[0])
    samples[0].hidden[3, 0] = torch.nan
    try:
        with pytest.raises(DataError, match="NaN"):
            check_finite(samples[0])
    finally:
        samples[0].hidden[3, 0] = 0


def test_a_vocabulary_takes_a_token_only_if_several_answers_have_it(
    target: Target, samples: list[FeatureSample]
) -> None:
    counts = vocabulary_counts(target, samples)
    assert len(counts) == VOCABULARY
    common = set(samples[0].token_ids.tolist())  # the next five have the same
    assert all(counts[token] > 0 for token in common)
    assert vocabulary_counts(target, samples[:2]).sum() == 0


def test_the_most_probable_tokens_of_a_sampled_answer_come_from_its_hidden_states(
    target: Target, samples: list[FeatureSample]
) -> None:
    from dataclasses import replace

    given = samples[1]
    unknown = replace(given, temperature=1.0, argmax=torch.full_like(given.argmax, -1))
    assert torch.equal(with_argmax(unknown, target.ends.lm_head.bfloat16()).argmax, given.argmax)
    assert with_argmax(replace(unknown, temperature=0.0), target.ends.lm_head).argmax.max() == -1
