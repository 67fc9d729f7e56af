"""A user's own drafter: ids that the target doesn't have are never accepted, and only proposals are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fledge.engine import Engine, SamplingParams
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.drafter import Candidates, Drafter
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.shapes import TreeShape
from fledge.target import Target

PROMPTS = [[5, 6, 7, 8] * 4, [40, 41] * 6, [9, 10, 11]]
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)


class Chains(Drafter):
    """Proposes for each request what `of` says of its number in the batch."""

    def __init__(self, of: Callable[[int], Sequence[tuple[int, float]]]) -> None:
        self._of = of

    def propose(self, batch: RunningBatch, plan: RoundPlan) -> Candidates:
        root = batch.view().bonus
        return Candidates.chains(root, [self._of(row) for row in range(len(root))])


@pytest.fixture(scope="module", params=["torch", pytest.param("native", marks=pytest.mark.kernels)])
def target(request: pytest.FixtureRequest, tiny_target_folder: Path) -> Target:
    dtype = (
        "float32" if request.param == "torch" else "bfloat16"
    )  # in which torch's products are row-invariant
    return Target.load(str(tiny_target_folder), backend=request.param, dtype=dtype)


def engine(target: Target, of: Callable[[int], Sequence[tuple[int, float]]]) -> Engine:
    return Engine(target, drafter=Chains(of), max_batch=4, max_context=128, tree=TreeShape(3, 1, 4))


@pytest.mark.parametrize(
    ("offset", "place"),
    [
        pytest.param(offset, place, marks=pytest.mark.slow if (number + place) % 3 else ())
        for number, offset in enumerate([0, 1, 10**6, 2**31, 2**40, -(10**6)])
        for place in range(3)
    ],
)
def test_ids_that_the_target_does_not_have_are_never_accepted(
    target: Target, offset: int, place: int
) -> None:
    bad = (target.config.vocab_size + offset, 0.9)
    chain = [(7, 0.9), (8, 0.9), (9, 0.9)]
    chain[place] = bad
    drafting = engine(target, lambda row: chain)
    plain = Engine(target, max_batch=4, max_context=128)
    assert [c.token_ids for c in drafting.generate(PROMPTS, PARAMS)] == [
        c.token_ids for c in plain.generate(PROMPTS, PARAMS)
    ]


def test_requests_without_a_proposal_are_not_counted_as_drafted(target: Target) -> None:
    drafting = engine(target, lambda row: [(7, 0.5), (8, 0.5)] if row == 1 else [])
    drafting.generate(PROMPTS, PARAMS)
    stats = drafting.stats()
    assert stats.rounds == stats.request_rounds // 3
    assert stats.drafts == stats.rounds
    assert stats.draft_tokens == 2 * stats.rounds
