"""Another head in the midst of serving: no request notices."""

from __future__ import annotations

import pytest
import torch

from fledge.base.errors import EngineError
from fledge.draft import DraftVocabulary
from fledge.engine import Engine, SamplingParams, TreeShape
from fledge.heads import Head, head_runner
from fledge.target.target import Target
from tests.engine.conftest import noisy_head
from tests.learn.conftest import VOCABULARY


@pytest.mark.parametrize(
    ("setting", "tree"),
    [
        ({}, None),
        ({"temperature": 1.0, "seed": 5}, TreeShape(3, 2, 8)),
        pytest.param({}, TreeShape(3, 2, 8), marks=pytest.mark.slow),
        pytest.param({"temperature": 1.0, "seed": 5}, None, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_answers_stay_the_same_when_the_head_changes_between_any_two_rounds(
    target: Target, prompts: list[list[int]], tree: TreeShape | None, setting: dict[str, object]
) -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True, **setting)  # type: ignore[arg-type]
    expected = [a.token_ids for a in Engine(target).generate(prompts, params)]
    heads = [head_runner(target, noisy_head(target)), head_runner(target, spoiled(noisy_head(target)))]
    engine = Engine(target, heads[0], max_batch=5, tree=tree)
    for _ in range(2):  # the second time with what the first left in the prefix cache
        got: dict[int, list[int]] = {}

        def sink(result: object, got: dict[int, list[int]] = got) -> None:
            if result.completion is not None:  # type: ignore[attr-defined]
                got[result.request_id] = result.completion.token_ids  # type: ignore[attr-defined]

        for prompt in prompts:
            engine.submit(prompt, params, sink=sink)
        number = 0
        while engine.busy:
            engine.step()
            number += 1
            engine.change_head(heads[number % 2])
        assert [got[key] for key in sorted(got)] == expected
    engine.check()


def test_a_head_of_another_size_is_refused(target: Target) -> None:
    engine = Engine(target, noisy_head(target))
    vocabulary = DraftVocabulary.from_counts(torch.ones(VOCABULARY), 100)
    with pytest.raises(EngineError, match="other sizes"):
        engine.change_head(head_runner(target, Head.from_target(target, vocabulary)))
    with pytest.raises(EngineError, match="no draft head"):
        Engine(target).change_head(head_runner(target, noisy_head(target)))


def spoiled(head: Head) -> Head:
    """One that drafts nonsense."""
    for tensor in head.weights.trainable().values():
        tensor.mul_(-1)
    return head
