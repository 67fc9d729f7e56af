"""A head in training: it learns, it is measured on what it hasn't seen, and what is wrong never gets through."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.base.errors import DataError
from fledge.engine import Engine, SamplingParams
from fledge.features import FeatureExtractor, FeatureSample
from fledge.features.extract import check_finite
from fledge.learn.options import LearnOptions
from fledge.learn.ring import Ring
from fledge.learn.student import (
    Student,
    is_likely,
    surely_worse,
    vocabulary_counts,
    with_argmax,
)
from fledge.target.target import Target
from fledge.train.compare import TauDifference
from fledge.train.options import TrainOptions
from tests.data.conversation import conversation
from tests.heads.tiny_head import estimating, random_head
from tests.learn.conftest import VOCABULARY

TRAIN = TrainOptions(ttt_steps=3, batch_tokens=256, draft_vocab_size=256, dtype="float32", learning_rate=3e-3)


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return Target.load(str(tiny_target_folder), dtype="float32", backend="torch")


@pytest.fixture(scope="module")
def samples(target: Target) -> list[FeatureSample]:
    """Twenty-four answers, of which four are different: six times the first, then six times the second, and so on."""
    return traffic(target, seed=1)


def traffic(target: Target, seed: int, group: str = "a", **setting: float) -> list[FeatureSample]:
    """Four prompts' answers, each six times; sampled ones are all different."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(6, 200) for _ in range(5)] for _ in range(4)]
    prompts = [prompt for prompt in prompts for _ in range(6)]
    params = [
        SamplingParams(max_tokens=35, ignore_eos=True, seed=number, **setting)
        for number in range(len(prompts))
    ]
    temperature = setting.get("temperature", 0.0)
    answers = Engine(target, max_batch=8).generate(prompts, params)
    conversations = [
        conversation(str(1000 * seed + n), a.prompt_token_ids, a.token_ids, "train", group, temperature)
        for n, a in enumerate(answers, 1)
    ]
    return FeatureExtractor(target, 1024).extract(conversations)


def student(target: Target, samples: Sequence[FeatureSample], **more: float) -> tuple[Student, Ring]:
    quick = {"memory_mb": 16, "start_tokens": 100, "heldout": 0.4, "heldout_tokens": 1000, "passes": 1000.0}
    quick["average"] = 0.8
    options = LearnOptions(folder="none", train=TRAIN, **{**quick, **more})  # type: ignore[arg-type]
    ring = Ring(options)
    for sample in samples:
        ring.add(sample)
    return Student(target, ring, options, None), ring


def measured(learning: Student) -> TauDifference:
    return learning.measure()[0]


def test_it_learns_what_the_traffic_is_like_and_the_gain_is_sure(
    target: Target, samples: list[FeatureSample]
) -> None:
    learning, _ = student(target, samples)
    assert not learning.waits_for
    first = learning.step()
    for _ in range(40):
        last = learning.step()
    assert last < first
    found = measured(learning)
    assert found.tau[0] == 1.0  # plain decode serves
    assert found.tau[1] > 1.3
    assert found.low > 0
    learning.accept()
    again = measured(learning)
    assert again.tau[0] == again.tau[1] == pytest.approx(found.tau[1])


def test_a_candidate_is_a_head_of_the_target_with_the_weights_that_were_measured(
    target: Target, samples: list[FeatureSample]
) -> None:
    learning, _ = student(target, samples)
    for _ in range(3):
        learning.step()
    found = measured(learning)
    head = learning.candidate(found)
    head.check_target(target)
    assert head.metadata.training["steps"] == 3
    assert len(head.vocabulary) == TRAIN.draft_vocab_size


def test_a_heads_low_rank_estimates_are_made_again_for_what_it_has_learnt(
    target: Target, samples: list[FeatureSample]
) -> None:
    serving = estimating(random_head(target, size=256), count=20)
    _, ring = student(target, samples)
    options = LearnOptions(folder="none", train=TRAIN, memory_mb=16, start_tokens=100, passes=1000.0)
    learning = Student(target, ring, options, serving)
    for _ in range(3):
        learning.step()
    head = learning.candidate(measured(learning))
    assert (head.config.candidates, head.config.candidate_rank) == (20, 32)
    before, after = serving.weights.candidate_up, head.weights.candidate_up
    assert before is not None
    assert after is not None
    assert not torch.equal(before, after)


def test_candidates_are_averages_that_follow_closely_at_first_and_then_slowly(
    target: Target, samples: list[FeatureSample]
) -> None:
    learning, _ = student(target, samples, average=0.5)
    learning.step()
    expected = learning._average.clone()
    for since in range(1, 14):
        learning.step()
        decay = min(0.5, (since + 1) / (since + 10))  # 0.18, 0.25, ... 0.5
        expected = decay * expected + (1 - decay) * learning._masters
        assert torch.allclose(learning._average, expected, atol=1e-5)
        assert not torch.allclose(learning._masters, expected, atol=1e-5)


def test_after_a_setback_it_is_the_serving_head_again(target: Target, samples: list[FeatureSample]) -> None:
    learning, _ = student(target, samples)
    for _ in range(20):
        learning.step()
    learning.accept()
    before = measured(learning)
    for _ in range(5):
        learning.step()
    learning.begin_again()
    after = measured(learning)
    assert after.tau == (before.tau[0], before.tau[0])


def test_there_is_an_end_to_passes_over_the_same_answers(
    target: Target, samples: list[FeatureSample]
) -> None:
    learning, _ = student(target, samples, passes=2.0)
    steps = 0
    while not learning.waits_for:
        assert math.isfinite(learning.step() or math.nan)
        steps += 1
        assert steps < 100
    assert steps > 2


def test_it_waits_for_enough_to_begin_with(target: Target, samples: list[FeatureSample]) -> None:
    assert "8 with" in student(target, samples[:6])[0].waits_for


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
    given = samples[1]
    unknown = replace(given, temperature=1.0, argmax=torch.full_like(given.argmax, -1))
    assert torch.equal(with_argmax(unknown, target.ends.lm_head.bfloat16()).argmax, given.argmax)
    assert with_argmax(replace(unknown, temperature=0.0), target.ends.lm_head).argmax.max() == -1


def train(learning: Student, steps: int) -> TauDifference:
    for _ in range(steps):
        learning.step()
    return measured(learning)


def test_when_traffic_changes_half_way_it_learns_the_new_one(target: Target) -> None:
    morning, afternoon = traffic(target, seed=1), traffic(target, seed=2)
    # Room for as many conversations as come in half a day.
    size = sum(t.numel() * t.element_size() for t in (morning[0].features, morning[0].hidden))
    learning, ring = student(target, morning, memory_mb=max(len(morning) * size / 2**20, 1))
    at_first = train(learning, 40).tau[1]
    learning.accept()
    for sample in afternoon * (2 * ring.limit // (size * len(afternoon))):
        ring.add(replace(sample, conversation_id=str(10_000 + ring.next_number())))
    changed = measured(learning)
    assert changed.tau[0] < 0.8 * at_first  # what serves knows nothing of this
    recovered = train(learning, 40)
    assert recovered.low > 0
    assert recovered.tau[1] > 0.9 * at_first


def test_one_that_sends_random_tokens_is_left_out(target: Target, samples: list[FeatureSample]) -> None:
    poison = traffic(target, seed=3, group="poison", temperature=5.0)
    assert all(map(is_likely, samples))
    assert not any(is_likely(with_argmax(sample, target.ends.lm_head)) for sample in poison)


def test_where_half_of_the_traffic_is_random_the_others_lose_next_to_nothing(
    target: Target, samples: list[FeatureSample]
) -> None:
    poison = traffic(target, seed=3, group="poison", temperature=5.0)
    alone, _ = student(target, samples)
    both, _ = student(target, [one for pair in zip(samples, poison, strict=True) for one in pair])
    expected = train(alone, 25).tau[1]
    train(both, 50)
    others = next(one for one in both.measure() if one.name == "a")
    assert others.tau[1] > 0.95 * expected


def test_a_candidate_that_some_traffic_loses_by_is_found() -> None:
    def of(name: str, gain: float, error: float) -> TauDifference:
        return TauDifference(name, 9, (2.0, 2.0 + gain), gain - 1.96 * error, gain + 1.96 * error)

    few = TauDifference("few", 2, (2.0, 1.0), -math.inf, math.inf)
    better = [of(str(number), 0.5, 0.1) for number in range(20)]
    assert surely_worse([*better, few]) is None
    assert surely_worse([]) is None
    assert surely_worse([*better, of("hurt", -0.5, 0.1)]) == "hurt"
    # One of many that loses by chance keeps nothing out.
    assert surely_worse([of("hurt", -0.25, 0.1)]) == "hurt"
    assert surely_worse([*better, of("hurt", -0.25, 0.1)]) is None
