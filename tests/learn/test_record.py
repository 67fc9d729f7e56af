"""What the engine leaves of a request: the states of a forward over its tokens, whichever rounds emitted them."""

from __future__ import annotations

import pytest
import torch

from fledge.engine import Engine, SamplingParams, TreeShape
from fledge.features import FeatureExtractor
from fledge.target.target import Target
from tests.data.conversation import conversation
from tests.engine.conftest import noisy_head
from tests.learn.conftest import Notes

SHAPES = [None, TreeShape(3, 1, 4), TreeShape(4, 4, 12)]


def serve(
    engine: Engine, prompts: list[list[int]], params: SamplingParams, group: str = ""
) -> list[list[int]]:
    """Each prompt with its answer."""
    done: dict[int, list[int]] = {}

    def sink(result: object) -> None:
        completion = result.completion  # type: ignore[attr-defined]
        if completion is not None:
            done[result.request_id] = completion.prompt_token_ids + completion.token_ids  # type: ignore[attr-defined]

    for prompt in prompts:
        engine.submit(prompt, params, sink=sink, record=group)
    while engine.busy:
        engine.step()
    return [done[number] for number in sorted(done)]


def states(target: Target, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    (sample,) = FeatureExtractor(target, 1024).extract([conversation("c", [], token_ids)])
    return sample.features.float(), sample.hidden.float()


def close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Up to bf16's rounding along different orders of addition."""
    return bool(((mine.float() - theirs).norm(dim=1) <= 0.05 * theirs.norm(dim=1) + 1e-3).all())


@pytest.mark.parametrize(
    ("setting", "shape"),
    [
        pytest.param(setting, shape, marks=() if number == place else pytest.mark.slow)
        for number, setting in enumerate([{}, {"temperature": 1.0, "seed": 3}, {"logit_bias": {5: 1.0}}])
        for place, shape in enumerate(SHAPES)
    ],
    ids=str,
)
def test_recorded_states_are_those_of_a_forward_over_the_conversation(
    target: Target,
    prompts: list[list[int]],
    notes: Notes,
    shape: TreeShape | None,
    setting: dict[str, object],
) -> None:
    head = None if shape is None else noisy_head(target)
    engine = Engine(target, head, max_batch=3, tree=shape, recorder=notes)
    whole = serve(engine, prompts, SamplingParams(max_tokens=20, ignore_eos=True, **setting))  # type: ignore[arg-type]
    assert sorted(done.token_ids for done in notes.recorded) == sorted(whole)
    for done in notes.recorded:
        prompt = len(done.prompt_features)
        features, hidden = states(target, done.token_ids)
        assert len(done.answer_states) == len(done.token_ids) - prompt - 1
        width = 3 * target.config.hidden_size
        assert close(done.prompt_features, features[:prompt])
        assert close(done.answer_states[:, :width], features[prompt:-1])
        assert close(done.answer_states[:, width:], hidden[prompt:-1])
        assert done.greedy == (not setting)


def test_recording_changes_no_answer(target: Target, prompts: list[list[int]], notes: Notes) -> None:
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    expected = serve(Engine(target), prompts, params)
    head = noisy_head(target)
    assert serve(Engine(target, head, tree=TreeShape(3, 2, 8), recorder=notes), prompts, params) == expected
    assert serve(Engine(target, recorder=notes), prompts, params) == expected


def test_a_request_that_says_no_is_not_recorded(
    target: Target, prompts: list[list[int]], notes: Notes
) -> None:
    engine = Engine(target, recorder=notes)
    engine.submit(prompts[0], SamplingParams(max_tokens=8, ignore_eos=True))
    while engine.busy:
        engine.step()
    assert notes.recorded == []


def test_of_a_prompt_in_the_prefix_cache_what_was_read_is_recorded(target: Target, notes: Notes) -> None:
    engine = Engine(target, recorder=notes)
    prompt, params = (
        list(range(10, 10 + 3 * target.decoder.page_size)),
        SamplingParams(max_tokens=8, ignore_eos=True),
    )
    serve(engine, [prompt], params)
    serve(engine, [prompt], params)
    first, second = notes.recorded
    assert len(first.prompt_features) == len(prompt)
    assert 0 < len(second.prompt_features) < len(prompt)
    assert second.token_ids == first.token_ids[-len(second.token_ids) :]
    assert close(second.prompt_features, first.prompt_features[-len(second.prompt_features) :].float())
