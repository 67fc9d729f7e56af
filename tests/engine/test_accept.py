"""Accepting by bitmask is the walk down the tree, written without a walk."""

from __future__ import annotations

import random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.draft.tree import DraftTree
from fledge.engine.rounds.tree import accept
from fledge.engine.shapes import TreeShape


def random_tree(rng: random.Random, shape: TreeShape) -> tuple[list[int], list[int], list[int], list[int]]:
    """parents, tokens, depths and masks of a random tree with distinct siblings, at most `depth` deep."""
    parents, tokens, depths, masks = [-1], [rng.randrange(9)], [0], [1]
    while len(parents) < shape.nodes:
        parent = rng.randrange(len(parents))
        taken = {tokens[node] for node, above in enumerate(parents) if above == parent}
        token = rng.randrange(9)
        if depths[parent] == shape.depth or token in taken:
            continue
        masks.append(masks[parent] | 1 << len(parents))
        parents.append(parent)
        tokens.append(token)
        depths.append(depths[parent] + 1)
    return parents, tokens, depths, masks


def naive_walk(parents: list[int], tokens: list[int], chosen: list[int]) -> list[int]:
    path = [0]
    while True:
        step = [n for n, parent in enumerate(parents) if parent == path[-1] and tokens[n] == chosen[path[-1]]]
        if not step:
            return path
        path.append(step[0])


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 10**9), requests=st.integers(1, 4), nodes=st.integers(5, 64))
def test_accept_equals_a_naive_walk(seed: int, requests: int, nodes: int) -> None:
    rng = random.Random(seed)
    shape = TreeShape(4, 16, nodes)
    trees = [random_tree(rng, shape) for _ in range(requests)]
    chosen = [[rng.randrange(9) for _ in range(nodes)] for _ in trees]
    speculates = [rng.random() < 0.8 for _ in trees]
    columns = [torch.tensor([_signed(tree[column]) for tree in trees]) for column in range(4)]
    tree = DraftTree(
        token_ids=columns[1],
        parents=columns[0],
        depths=columns[2],
        window_mask=columns[3],
        log_probs=torch.zeros(requests, nodes),
        sources=torch.zeros(requests, nodes, dtype=torch.int64),
    )
    accepted = accept(tree, torch.tensor(chosen), shape.reach, torch.tensor(speculates))
    for row, (parents, tokens, _, _) in enumerate(trees):
        path = naive_walk(parents, tokens, chosen[row]) if speculates[row] else [0]
        emits = int(accepted.emits[row])
        assert accepted.path[row, :emits].tolist() == path
        assert accepted.emitted[row, :emits].tolist() == [chosen[row][node] for node in path]


def _signed(values: list[int]) -> list[int]:
    return [value - (1 << 64) if value >> 63 == 1 else value for value in values]
