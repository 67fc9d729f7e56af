"""Random batch compositions, arrivals, cancels, prefix hits and preemptions change no token and lose no page."""

from __future__ import annotations

import functools
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fledge.engine import PLAIN, Engine, TreeShape
from fledge.engine.planner import RoundPlan
from fledge.target.target import Target
from tests.engine.context_head import ContextHead
from tests.engine.random_load import Job, RandomLoad, make_jobs
from tests.engine.soak import soak, tiny
from tests.tiny import TinyShape, save_tiny_target

CONTEXT = 320
pytestmark = [pytest.mark.kernels, pytest.mark.usefixtures("spoiled_first_levels", "late_flights")]


@pytest.fixture(scope="module")
def bf16_target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Three layers on the native kernels."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=CONTEXT)
    return Target.load(str(save_tiny_target(tmp_path_factory.mktemp("load") / "llama", shape=shape)))


@functools.cache
def jobs_for(target: Target, count: int, seed: int) -> list[Job]:
    """Read only: plain decode's answers to them are made once."""
    rng = random.Random(seed)
    return make_jobs(
        target, rng, count, draw=lambda n: rng.choices(range(6, 512), k=n), longest=CONTEXT, most_tokens=100
    )


def serve(
    target: Target,
    jobs: list[Job],
    seed: int,
    tree: TreeShape | None,
    *,
    overlap: bool = False,
    pays: Sequence[bool] = (True,),
) -> None:
    """Serve the jobs in a pool that is too small, and compare. `tree` None: another shape in every round.

    `pays`: what the planner says by chance then, when asked whether heads are worth showing prompts to.
    """
    engine = Engine(
        target, perfect_head(target, jobs), max_batch=8, max_context=CONTEXT, kv_tokens=3 * CONTEXT // 2, tree=tree,
        prefill_rows=96, busy_prefill_rows=48, overlap=overlap,
    )  # fmt: skip
    rng = random.Random(seed)
    if tree is None:
        plans = [
            RoundPlan(PLAIN),
            RoundPlan(PLAIN),
            RoundPlan(TreeShape(2, 4, 8)),
            RoundPlan(TreeShape(3, 2, 6)),
        ]
        engine._core._planner.choose = lambda requests, behind: rng.choice(plans)  # type: ignore[method-assign]
        # Timings decide otherwise.
        core, guesses = engine._core, random.Random(seed)
        core._planner.pays = lambda requests: guesses.choice(pays)  # type: ignore[method-assign]
        core._scheduler._rereads = lambda tokens, answer, requests: guesses.choice(pays)
    load = RandomLoad(engine, rng)
    served = load.run(jobs)
    assert [number for number, one in enumerate(served) if not one.identical] == []
    engine.check()
    stats, count = engine.stats(), len(jobs)
    assert stats.pages_in_use == 0
    assert stats.hit_tokens > 5 * count
    assert stats.evictions > count // 4
    assert stats.preemptions > 0 or tree is None  # its wide window leaves room for growth
    assert load.cancelled > count // 20
    for one in served:
        if one.completion is None or not one.job.speculate:
            continue
        done = one.completion.stats
        if tree is not None:
            assert done.rounds <= -(-(done.tokens - 1) // (tree.depth + 1))
        elif done.drafted_rounds > 1:  # the last one may be cut off by max_tokens
            assert sum(done.accepted_by_depth[1:2]) >= done.drafted_rounds - 1


def perfect_head(target: Target, jobs: list[Job]) -> ContextHead:
    """Knows every answer as long as its KV holds exactly the tokens before: one wrong entry costs it a round."""
    head = ContextHead(target.decoder.page_size, target.config.vocab_size, 1.0, best_first=True)
    head.strict = False  # it is asked about requests that don't speculate, too
    for job in jobs:  # answers only: a later prompt may leave an earlier answer at any token
        tokens = job.prompt + job.expected
        head.sequences.append(tuple(tokens[1:]))
        for end in range(len(job.prompt), len(tokens)):
            assert head.truth.setdefault(tuple(tokens[1:end]), tokens[end]) == tokens[end]
    return head


TREES = [TreeShape(4, 1, 5), TreeShape(3, 2, 7), None]


def trees_but(*slow: TreeShape | None) -> list[Any]:
    """All of them, but these are slow."""
    return [pytest.param(tree, marks=pytest.mark.slow if tree in slow else ()) for tree in TREES]


@pytest.mark.parametrize("tree", trees_but(TREES[0], TREES[2]), ids=str)
def test_random_requests_get_plain_answers_and_hits_cost_no_acceptance(
    bf16_target: Target, tree: TreeShape | None
) -> None:
    serve(bf16_target, jobs_for(bf16_target, 80, seed=1), 1, tree)


@pytest.mark.parametrize("tree", trees_but(TREES[1]), ids=str)
def test_random_requests_get_the_same_with_overlap(bf16_target: Target, tree: TreeShape | None) -> None:
    serve(bf16_target, jobs_for(bf16_target, 80, seed=2), 2, tree, overlap=True)


@pytest.mark.parametrize(
    ("pays", "overlap"),
    [
        ((False,), False),
        ((True, False), True),
        pytest.param((False,), True, marks=pytest.mark.slow),
        pytest.param((True, False), False, marks=pytest.mark.slow),
    ],
)
def test_heads_that_are_left_behind_or_begin_later_know_all_behind_that(
    bf16_target: Target, pays: Sequence[bool], overlap: bool
) -> None:
    """What a request's head has written stays its own; of a hit on pages without head it sees the rest."""
    serve(bf16_target, jobs_for(bf16_target, 80, seed=5), 5, None, overlap=overlap, pays=pays)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tree", TREES, ids=str)
def test_a_thousand_random_requests(bf16_target: Target, tree: TreeShape | None, overlap: bool) -> None:
    serve(bf16_target, jobs_for(bf16_target, 1000, seed=3), 3, tree, overlap=overlap)


@pytest.mark.slow
def test_a_soak_loses_no_page_and_memory_stays_flat(tmp_path: Path) -> None:
    """One minute; FLEDGE_SOAK_MINUTES=30 for longer. `python -m tests.engine.soak` does it for any target."""
    target, head = tiny(tmp_path / "llama")
    jobs = jobs_for(target, 200, seed=4)
    engine = Engine(target, head, max_batch=8, max_context=CONTEXT, kv_tokens=2 * CONTEXT, tree=TREES[1])
    end = time.monotonic() + 60 * float(os.environ.get("FLEDGE_SOAK_MINUTES", "1"))
    report = soak(target, engine, jobs, random.Random(4), go_on=lambda _: time.monotonic() < end)
    assert report.different == report.near_ties == 0
    assert report.memory_is_flat, f"memory grew by {report.growth} bytes"
    assert engine.stats().evictions > 0
