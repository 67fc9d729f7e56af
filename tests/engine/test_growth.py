"""Trees grow as EAGLE-2 says, and whatever the scores, they are trees."""

from __future__ import annotations

import random
from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.base.errors import EngineError
from fledge.draft.tree import DraftTree
from fledge.engine.drafters.growth import TreeGrowth
from fledge.engine.shapes import TreeShape

Path = tuple[int, ...]
ROOT_TOKEN = 7
SHAPES = [
    TreeShape(1, 3, 3),
    TreeShape(2, 2, 7),
    TreeShape(3, 3, 8),
    TreeShape(5, 4, 16),
    TreeShape(7, 10, 60),
    TreeShape(4, 16, 64),
]


def children(path: Path, topk: int, *, seed: int, ties: bool) -> tuple[list[int], list[float]]:
    """What the scripted head proposes below a path of tokens: distinct tokens, log probabilities best first."""
    rng = random.Random(f"{seed} {path}")
    if ties:
        return rng.sample(range(1000), topk), sorted(
            (-float(rng.randrange(2)) for _ in range(topk)), reverse=True
        )
    return rng.sample(range(1000), topk), sorted((-rng.expovariate(1) for _ in range(topk)), reverse=True)


def grow(shape: TreeShape, seeds: list[int], *, ties: bool = False) -> DraftTree:
    first = [children((), shape.topk, seed=seed, ties=ties) for seed in seeds]
    growth = TreeGrowth(torch.full((len(seeds), 1), ROOT_TOKEN))
    frontier = growth.begin(
        torch.tensor([tokens for tokens, _ in first]), torch.tensor([scores for _, scores in first])
    )
    paths: list[list[Path]] = [[(token,) for token in tokens] for tokens, _ in first]
    for _ in range(shape.depth - 1):
        assert frontier.token_ids.tolist() == [[path[-1] for path in line] for line in paths]
        below = [
            [children(path, shape.topk, seed=seed, ties=ties) for path in line]
            for seed, line in zip(seeds, paths, strict=True)
        ]
        tokens = torch.tensor([child[0] for line in below for child in line])
        scores = torch.tensor([child[1] for line in below for child in line])
        frontier = growth.expand(frontier, tokens, scores)
        before = [path for line in paths for path in line]
        new = frontier.token_ids.view(-1).tolist()
        ends = [(*before[row], token) for row, token in zip(frontier.above.tolist(), new, strict=True)]
        paths = [ends[n : n + shape.topk] for n in range(0, len(ends), shape.topk)]
    return growth.candidates().select(shape.nodes, shape.reach)


def naive_tree(shape: TreeShape, seed: int) -> dict[Path, float]:
    """EAGLE-2, sec. 4, one node at a time: path -> cumulative log probability of all nodes but the root."""
    tokens, scores = children((), shape.topk, seed=seed, ties=False)
    level = {(token,): score for token, score in zip(tokens, scores, strict=True)}
    everything = dict(level)
    for _ in range(shape.depth - 1):
        frontier = sorted(level, key=lambda path: -level[path])[: shape.topk]
        level = {
            (*path, token): level[path] + score
            for path in frontier
            for token, score in zip(*children(path, shape.topk, seed=seed, ties=False), strict=True)
        }
        everything.update(level)
    best = sorted(everything, key=lambda path: -everything[path])[: shape.nodes - 1]
    return {path: everything[path] for path in best}


def paths_of(tree: DraftTree, row: int) -> list[Path]:
    """Each node's tokens from below the root on; checks the tree's own consistency on the way."""
    parents, tokens = tree.parents[row].tolist(), tree.token_ids[row].tolist()
    masks, depths = tree.window_mask[row].tolist(), tree.depths[row].tolist()
    paths: list[Path] = []
    for node, parent in enumerate(parents):
        if node == 0:
            assert (parent, tokens[0], depths[0], masks[0]) == (-1, ROOT_TOKEN, 0, 1)
            paths.append(())
            continue
        assert 0 <= parent < node
        assert depths[node] == depths[parent] + 1
        bits = {j for j in range(64) if (masks[node] >> j) & 1}
        assert bits == {j for j in range(64) if (masks[parent] >> j) & 1} | {node}
        paths.append((*paths[parent], tokens[node]))
    assert len(set(paths)) == len(paths)
    return paths


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(seeds=st.lists(st.integers(0, 10**6), min_size=1, max_size=3))
def test_growth_equals_a_naive_eagle_2(shape: TreeShape, seeds: list[int]) -> None:
    tree = grow(shape, seeds)
    for row, seed in enumerate(seeds):
        expected = naive_tree(shape, seed)
        paths = paths_of(tree, row)
        assert set(paths[1:]) == set(expected)
        for path, score in zip(paths[1:], tree.log_probs[row, 1:].tolist(), strict=True):
            assert score == pytest.approx(expected[path], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_equal_scores_still_give_a_tree(shape: TreeShape, seed: int) -> None:
    """A sure child is exactly as probable as its parent."""
    assert len(paths_of(grow(shape, [seed], ties=True), 0)) == shape.nodes


def test_a_chain_is_one_path() -> None:
    tree = grow(TreeShape(4, 1, 5), [1, 2])
    assert tree.parents.tolist() == [[-1, 0, 1, 2, 3]] * 2
    assert tree.window_mask.tolist() == [[1, 3, 7, 15, 31]] * 2
    assert len(paths_of(tree, 1)[-1]) == 4


def test_shapes_that_cannot_be_grown_are_refused() -> None:
    for depth, topk, nodes in [
        (3, 1, 3),
        (3, 1, 5),
        (2, 2, 8),
        (20, 4, 30),
        (3, 9, 65),
        (1, 65, 9),
        (2, 0, 3),
        (-1, 1, 1),
    ]:
        with pytest.raises(EngineError, match="use"):
            TreeShape(depth, topk, nodes)
    for bad in ({"depth": 2.0}, {"topk": "2"}, {"nodes": None}, {"lookup": True}):
        with pytest.raises(EngineError, match=r"a tree's .* use a whole number"):
            TreeShape(**{"depth": 2, "topk": 2, "nodes": 5, **bad})  # type: ignore[arg-type]
    counted = TreeShape(np.int64(2), np.int64(2), np.int64(5))  # type: ignore[arg-type]
    assert repr(astuple(counted)) == "(2, 2, 5, 0)"


def test_frontier_masks_name_the_ancestors_in_the_draft_window() -> None:
    tokens, scores = children((), 3, seed=5, ties=False)
    growth = TreeGrowth(torch.tensor([[ROOT_TOKEN]]))
    frontier = growth.begin(torch.tensor([tokens]), torch.tensor([scores]))
    chains = [[j] for j in range(3)]  # window indices from the top down
    assert frontier.mask.tolist() == [[1, 2, 4]]
    for level in range(1, 3):
        below = [children((level, j), 3, seed=5, ties=False) for j in range(3)]
        frontier = growth.expand(
            frontier, torch.tensor([b[0] for b in below]), torch.tensor([b[1] for b in below])
        )
        chains = [[*chains[row], level * 3 + j] for j, row in enumerate(frontier.above.tolist())]
        assert frontier.mask.tolist() == [[sum(1 << bit for bit in chain) for chain in chains]]
        assert all(a < b for chain in chains for a, b in pairwise(chain))
