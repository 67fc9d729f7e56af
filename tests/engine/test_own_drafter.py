"""A user's own drafter: ids that the target doesn't have are never accepted, and only proposals are counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from fledge.engine import Engine, SamplingParams
from fledge.engine.batch import Member, RunningBatch
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


def test_it_is_started_with_the_target_and_sees_the_requests(target: Target) -> None:
    class Knowing(Drafter):
        """Knows the answers by their requests' seeds."""

        name = "knowing"

        def __init__(self) -> None:
            self.target: Target | None = None
            self.requests: dict[int, Member] = {}

        def start(self, target: Target) -> None:
            self.target = target

        def append(self, row: int, request: Member, pages: Sequence[int], bonus: Tensor) -> None:
            self.requests[row] = request

        def remove(self, row: int, last: int) -> None:
            self.requests[row] = self.requests[last]

        def propose(self, batch: RunningBatch, plan: RoundPlan) -> Candidates:
            now, chains = batch.view(), []
            for row, length in enumerate(now.length.tolist()):
                request = self.requests[row]
                rest = answers[request.seed][length + 1 - len(request.prompt_ids) :]
                chains.append([(token, 0.9) for token in rest[: plan.bound.reach]])
            return Candidates.chains(now.bonus, chains)

    params = [replace(PARAMS, temperature=0.8, seed=seed) for seed in range(3)]
    plain = Engine(target, max_batch=4, max_context=128).generate(PROMPTS[:1] * 3, params)
    answers = [one.token_ids for one in plain]
    drafter = Knowing()
    drafting = Engine(target, drafter=drafter, max_batch=4, max_context=128, tree=TreeShape(3, 1, 4))
    assert drafter.target is target
    made = drafting.generate(PROMPTS[:1] * 3, params)
    assert [one.token_ids for one in made] == answers
    assert all(request.params in params for request in drafter.requests.values())
    assert drafting.stats().accepted_by_source == {"knowing": sum(drafting.stats().accepted_by_depth)}
    assert drafting.stats().tau > 3


def test_prompt_lookup_in_a_heads_place_is_called_lookup(target: Target) -> None:
    engine = Engine(
        target, drafter="fledge.engine:Lookup", max_batch=4, max_context=128, tree=TreeShape(3, 1, 4)
    )
    params = replace(PARAMS, logit_bias={7: 100.0}, max_tokens=48)  # 7, again and again
    (answer,) = engine.generate([PROMPTS[0]], params)
    for stats in (answer.stats, engine.stats()):
        assert stats.accepted_by_source == {"lookup": sum(stats.accepted_by_depth)}
        assert stats.accepted_by_source["lookup"] > 20
