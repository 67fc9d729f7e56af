"""Traced requests carry their draft trees; an engine whose step failed serves again after a reset."""

from __future__ import annotations

import pytest
import torch

from fledge.engine import (
    Candidates,
    Completion,
    Drafter,
    Engine,
    SamplingParams,
    StepResult,
    TreeShape,
)
from fledge.engine.batch import RunningBatch
from fledge.engine.planner.plan import RoundPlan
from fledge.target.target import Target
from tests.engine.conftest import scripted_head


@pytest.mark.parametrize("shape", [TreeShape(3, 3, 8), TreeShape(3, 1, 4)], ids=str)
def test_a_trace_shows_the_tree_and_the_accepted_path(
    target: Target, plain: Engine, prompts: list[list[int]], shape: TreeShape
) -> None:
    answers = plain.generate(prompts[:2], max_tokens=20, ignore_eos=True)
    engine = Engine(target, scripted_head(target, answers, 0.9), tree=shape)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    traced = engine.submit(prompts[0], params, trace=True)
    silent = engine.submit(prompts[1], params)
    results: list[StepResult] = []
    while engine.busy:
        results += engine.step()
    assert all(result.tree is None for result in results if result.request_id == silent)
    before = None
    trees = 0
    for result in (result for result in results if result.request_id == traced):
        if result.tree is not None:
            tree = result.tree
            trees += 1
            assert tree.token_ids[0] == before  # the root is the token before the round
            assert len(tree.token_ids) == len(tree.parents) == len(tree.log_probs) == shape.nodes
            drafts = [tree.token_ids[node] for node in tree.path[1:]]
            assert result.token_ids[: len(drafts)] == drafts[: len(result.token_ids)]
            assert [tree.parents[node] for node in tree.path] == [-1, *tree.path[:-1]]
        before = result.token_ids[-1]
    assert trees > 3
    stats = engine.stats()
    assert stats.drafts >= trees
    assert stats.draft_tokens == stats.drafts * (shape.nodes - 1)
    assert stats.accepted_by_depth == sorted(stats.accepted_by_depth, reverse=True)
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)


def test_a_trace_leaves_out_the_nodes_that_only_neighbours_have(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    """Trees of one round have room for the largest."""
    answers = plain.generate(prompts[:2], max_tokens=40, ignore_eos=True)
    engine = Engine(target, drafter=Uneven(answers), tree=TreeShape(7, 1, 8), max_context=160)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    for prompt in prompts[:2]:
        engine.submit(prompt, params, trace=True)
    sizes = list[tuple[int, ...]]()
    while engine.busy:
        trees = [result.tree for result in engine.step() if result.tree is not None]
        assert all(min(tree.token_ids) >= 0 for tree in trees)
        assert all(len(tree.token_ids) == len(tree.parents) == len(tree.log_probs) for tree in trees)
        sizes.append(tuple(len(tree.token_ids) for tree in trees))
    assert (3, 8) in sizes


class Uneven(Drafter):
    """Knows the answers; the first request gets 2 drafts, others 7."""

    def __init__(self, answers: list[Completion]) -> None:
        self._texts = [[*answer.prompt_token_ids, *answer.token_ids] for answer in answers]

    def propose(self, batch: RunningBatch, plan: RoundPlan) -> Candidates:
        now, most = batch.view(), plan.bound.reach
        token_ids, log_probs = torch.full((batch.size, most), -1), torch.full((batch.size, most), -torch.inf)
        for row, (length, history) in enumerate(zip(now.length.tolist(), now.history.tolist(), strict=True)):
            begun = history[: length + 1]
            (text,) = (text for text in self._texts if text[: length + 1] == begun)
            drafts = text[length + 1 :][: most if row else 2]
            token_ids[row, : len(drafts)] = torch.tensor(drafts, dtype=torch.int64)
            log_probs[row, : len(drafts)] = -torch.arange(len(drafts), dtype=torch.float32)
        depths = torch.arange(most + 1)
        parents = (depths - 1).clamp(min=0).repeat(batch.size, 1)
        return Candidates(torch.cat((now.bonus[:, None], token_ids), 1), parents, depths, log_probs)


def test_reset_drops_everything_and_the_engine_serves_on(
    target: Target, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(target, max_batch=2)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    expected = engine.generate(prompts[:3], max_tokens=12, ignore_eos=True)
    for prompt in prompts[:4]:
        engine.submit(prompt, params)
    engine.step()
    pages = engine._core._pool.free_pages

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(target.decoder, "forward", broken)
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
    engine.reset()
    assert not engine.busy
    assert engine._core._pool.free_pages > pages
    again = engine.generate(prompts[:3], max_tokens=12, ignore_eos=True)
    assert [answer.token_ids for answer in again] == [answer.token_ids for answer in expected]
