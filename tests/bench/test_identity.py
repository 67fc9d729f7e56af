"""When two answers are the same, and when a difference is rounding's doing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fledge.bench.identity import (
    Draw,
    classify,
    compare,
    first_difference,
    gumbel_noise,
    prefix_logits,
    rounding_step,
)
from fledge.engine import Completion, Engine
from fledge.target import Target


def logits_with(values: dict[int, float]) -> torch.Tensor:
    logits = torch.full((32,), -5.0)
    for token, value in values.items():
        logits[token] = value
    return logits


@given(st.floats(min_value=1e-3, max_value=1e4))
def test_rounding_step_is_the_distance_of_neighbouring_bf16_numbers(value: float) -> None:
    number = torch.tensor(value).bfloat16()
    above = (number.view(torch.int16) + 1).view(torch.bfloat16)
    assert rounding_step(float(number), torch.bfloat16) == float(above) - float(number)


def test_near_tie_needs_both_tokens_within_a_rounding_step_of_the_top() -> None:
    near = classify(logits_with({3: 20.0, 9: 19.9}), 3, 9, torch.bfloat16, 4)
    assert (near.outcome, near.position, near.rounding) == ("near_tie", 4, 0.125)
    assert near.gap == pytest.approx(0.1, abs=1e-5)
    just = classify(logits_with({3: 20.0, 9: 19.875}), 3, 9, torch.bfloat16, 4)
    assert (just.outcome, just.gap) == (
        "near_tie",
        0.125,
    )  # neighbouring numbers: one rounding makes them change places
    assert classify(logits_with({3: 20.0, 9: 19.8}), 3, 9, torch.bfloat16, 4).outcome == "different"
    third_on_top = logits_with({3: 20.0, 9: 20.05, 5: 20.6})
    assert classify(third_on_top, 3, 9, torch.bfloat16, 4).outcome == "different"


def test_a_sampled_near_tie_is_one_with_its_noise() -> None:
    logits, noise = logits_with({3: 20.0, 9: 17.0}), logits_with({3: 0.0, 9: 2.9})
    assert classify(logits, 3, 9, torch.bfloat16, 4).outcome == "different"
    assert classify(logits, 3, 9, torch.bfloat16, 4, noise).outcome == "near_tie"


def test_float32_has_no_near_ties() -> None:
    assert classify(logits_with({3: 20.0, 9: 20.0}), 3, 9, torch.float32, 0).outcome == "different"


def test_first_difference_counts_a_missing_end_too() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


@pytest.fixture(scope="module")
def answer(target: Target) -> Completion:
    return Engine(target, max_batch=1).generate(["Why is the sky blue?"], max_tokens=12, ignore_eos=True)[0]


def test_equal_answers_are_identical_and_a_changed_token_is_found(target: Target, answer: Completion) -> None:
    assert compare(target, answer, answer).outcome == "identical"
    changed = list(answer.token_ids)
    changed[5] = (changed[5] + 1) % 512
    found = compare(target, answer, replace(answer, token_ids=changed))
    assert (found.outcome, found.position) == ("different", 5)
    assert found.gap is not None
    assert found.gap > 0


def test_an_answer_that_ends_early_is_different(target: Target, answer: Completion) -> None:
    found = compare(target, answer, replace(answer, token_ids=answer.token_ids[:7]))
    assert (found.outcome, found.position) == ("different", 7)


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_gumbel_noise_picks_the_token_sampling_took(target: Target, temperature: float) -> None:
    draw = Draw(temperature, seed=5)
    engine = Engine(target, max_batch=1)
    answer = engine.generate(["Why?"], max_tokens=12, ignore_eos=True, **draw._asdict())[0]
    for position in (0, 6, 11):
        prefix = answer.prompt_token_ids + answer.token_ids[:position]
        logits = prefix_logits(target.decoder, prefix)
        assert int((logits + gumbel_noise(draw, len(prefix), logits)).argmax()) == answer.token_ids[position]


def test_prefix_logits_pick_the_token_plain_decode_took(target: Target, answer: Completion) -> None:
    for position in (0, 6, 11):
        logits = prefix_logits(target.decoder, answer.prompt_token_ids + answer.token_ids[:position])
        assert int(logits.argmax()) == answer.token_ids[position]
