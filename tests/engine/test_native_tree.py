"""What a round does with its trees natively is what torch alone does, bit for bit."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.draft.tree import DraftTree
from fledge.engine import native_tree
from fledge.engine.growth import TreeGrowth
from fledge.engine.layout import Layouts, TreeShape
from fledge.engine.lookup import Proposal
from fledge.engine.round import accept, accept_plainly
from fledge.native import unavailable_reason

LAYOUTS = Layouts(torch.device("cpu"))
SHAPES = [
    TreeShape(1, 1, 2),
    TreeShape(1, 8, 20, lookup=15),
    TreeShape(3, 3, 12, lookup=3),
    TreeShape(4, 1, 5),
    TreeShape(4, 16, 64),
    TreeShape(8, 8, 64, lookup=15),
]
seeds = st.integers(0, 10**9)

pytestmark = pytest.mark.skipif(bool(unavailable_reason()), reason="the kernels can't run here")


def proposal(rng: random.Random, requests: int, count: int) -> Proposal:
    """Of tokens 0 .. 9; some requests have none."""
    tokens = torch.tensor([[rng.randrange(10) for _ in range(count)] for _ in range(requests)])
    none = torch.tensor([rng.random() < 0.3 for _ in range(requests)])[:, None]
    log_probs = torch.tensor([[rng.random() for _ in range(count)] for _ in range(requests)]).log()
    return Proposal(
        tokens.masked_fill(none, -1), log_probs.masked_fill(none, -torch.inf), 3 * (~none[:, 0]).long()
    )


def grown(rng: random.Random, shape: TreeShape, requests: int, *, ties: bool) -> TreeGrowth:
    """Trees of a head that proposes at random."""

    def level(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.tensor([rng.sample(range(20), shape.topk) for _ in range(rows)])
        scores = torch.tensor([[rng.expovariate(1) for _ in range(shape.topk)] for _ in range(rows)])
        return tokens, -(scores.round() if ties else scores).sort(1).values

    copied = proposal(rng, requests, shape.lookup) if shape.lookup else None
    root = torch.tensor([[rng.randrange(20)] for _ in range(requests)])
    growth = TreeGrowth(shape, LAYOUTS.tree(requests, shape), root, *level(requests), copied)
    for _ in range(rng.randrange(shape.depth)):
        growth.expand(*level(requests * shape.topk))
    return growth


def same(ours: tuple[torch.Tensor | None, ...], theirs: tuple[torch.Tensor | None, ...]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            assert a.dtype == b.dtype
            assert a.tolist() == b.expand_as(a).tolist()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=60, deadline=None)
@given(seed=seeds, requests=st.integers(1, 5), ties=st.booleans(), apart=st.booleans())
def test_selected_and_accepted_are_the_same(
    shape: TreeShape, seed: int, requests: int, ties: bool, apart: bool
) -> None:
    rng = random.Random(seed)
    growth = grown(rng, shape, requests, ties=ties)
    most = min(shape.nodes, 1 + growth.candidates()[0].shape[1])
    counts = [rng.randrange(most) for _ in range(requests)]
    nodes = 1 + max(counts) if apart else rng.randrange(1, most + 1)
    wanted = torch.tensor(counts) if apart else None
    tree = growth.select(nodes, wanted)
    same(tree, growth.select_plainly(nodes, wanted))
    layout = LAYOUTS.verify(requests, nodes, shape.cut(len(growth.levels), nodes).reach)
    for _ in range(3):
        chosen = likely(rng, tree)
        speculates = rng.choice([None, torch.tensor([rng.random() < 0.8 for _ in range(requests)])])
        same(accept(tree, chosen, layout, speculates), accept_plainly(tree, chosen, layout, speculates))


def likely(rng: random.Random, tree: DraftTree) -> torch.Tensor:
    """What the nodes choose: mostly the token of one of their children."""
    chosen = torch.randint(
        20, tree.token_ids.shape, generator=torch.Generator().manual_seed(rng.randrange(99))
    )
    for row, (tokens, parents) in enumerate(zip(tree.token_ids.tolist(), tree.parents.tolist(), strict=True)):
        for node, parent in list(enumerate(parents))[1:]:
            if tokens[node] >= 0 and rng.random() < 0.6:
                chosen[row, parent] = tokens[node]
    return chosen


def test_it_is_used_here() -> None:
    assert native_tree.runs_here(torch.zeros(1))
