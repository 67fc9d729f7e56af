"""What a round does with its trees natively is what torch alone does, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.draft.tree import DraftTree
from fledge.engine import native_tree
from fledge.engine.carried import CarriedSizes, RunningBatch
from fledge.engine.forwards import Models
from fledge.engine.growth import TreeGrowth
from fledge.engine.layout import Layouts
from fledge.engine.lookup import MatchRates, Proposal
from fledge.engine.native_tree import Passed
from fledge.engine.planner.acceptance import AcceptanceModel
from fledge.engine.planner.cost import CostCurve, CostModel
from fledge.engine.planner.plan import ConfidentPlan
from fledge.engine.request import Request
from fledge.engine.round import Round, accept, path_rows, some_rows, verify_rows
from fledge.engine.shapes import TreeShape
from tests.engine.conftest import default_type, plainly

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

pytestmark = pytest.mark.kernels


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


def same(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
    same_values(ours, theirs)


def same_values(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    assert [a.tolist() for a in ours] == [b.tolist() for b in theirs]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=60, deadline=None)
@given(seed=seeds, requests=st.integers(1, 5), ties=st.booleans())
def test_grown_trees_are_the_same(shape: TreeShape, seed: int, requests: int, ties: bool) -> None:
    ours = grown(random.Random(seed), shape, requests, ties=ties)
    scores, depths = ours.candidates()
    tree, mass = ours.select(min(shape.nodes, len(depths) + 1)), ours.open_mass
    with plainly():
        theirs = grown(random.Random(seed), shape, requests, ties=ties)
        same(ours.levels, theirs.levels)
        same((scores, depths), theirs.candidates())
        for of in ("tokens", "scores", "mask"):
            assert torch.equal(getattr(ours, f"frontier_{of}"), getattr(theirs, f"frontier_{of}"))
        same(tree, theirs.select(tree.token_ids.shape[1]))
        torch.testing.assert_close(mass, theirs.open_mass, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@settings(max_examples=60, deadline=None)
@given(seed=seeds, requests=st.integers(1, 5), apart=st.booleans(), some=st.booleans())
def test_accepted_paths_are_the_same(
    shape: TreeShape, seed: int, requests: int, apart: bool, some: bool
) -> None:
    rng = random.Random(seed)
    growth = grown(rng, shape, requests, ties=False)
    most = min(shape.nodes, 1 + growth.candidates()[0].shape[1])
    counts = [rng.randrange(most) for _ in range(requests)]
    nodes = 1 + max(counts) if apart else rng.randrange(1, most + 1)
    wanted = torch.tensor(counts) if apart else None
    tree = growth.select(nodes, wanted)
    with plainly():
        same(tree, growth.select(nodes, wanted))
    layout = LAYOUTS.verify(requests, nodes, shape.cut(len(growth.levels), nodes).reach)
    length = torch.tensor([rng.randrange(99) for _ in range(requests)], dtype=torch.int32)
    picked = torch.tensor(sorted(rng.sample(range(requests * nodes), rng.randrange(1, requests * nodes + 1))))
    for which in (None, picked):
        ours = verify_rows(tree, length, which)
        with plainly():
            same_values(ours, verify_rows(tree, length, which))
    chosen = likely(rng, tree)
    speculates = torch.tensor([rng.random() < 0.8 for _ in range(requests)]) if some else None
    accepted = accept(tree, chosen, layout, speculates)
    with plainly():
        same(accepted, accept(tree, chosen, layout, speculates))
    assert int(accepted.path.max()) < nodes

    batch = running(rng, requests)
    this = Round(MODELS, batch, batch.view(), shape, layout, layout.node_rows, None)
    rows = path_rows(this, accepted)
    with plainly():
        same(rows, path_rows(this, accepted))
    before = [tensor.clone() for tensor in batch.view()]
    batch.advance(accepted.emits, accepted.emitted)
    after = [tensor.clone() for tensor in batch.view()]
    with plainly():
        for tensor, old in zip(batch.view(), before, strict=True):
            tensor.copy_(old)
        batch.advance(accepted.emits, accepted.emitted)
    same(after, batch.view())


@settings(max_examples=200, deadline=None)
@given(seed=seeds, requests=st.integers(1, 5), calibrated=st.booleans(), ties=st.booleans())
def test_rows_are_shared_out_the_same(seed: int, requests: int, calibrated: bool, ties: bool) -> None:
    rng = random.Random(seed)
    candidates, points = rng.randrange(1, 40), rng.randrange(1, 5)
    scores = torch.tensor([[-rng.expovariate(1) for _ in range(candidates)] for _ in range(requests)])
    scores = scores.round() if ties else scores
    scores[[rng.random() < 0.2 for _ in range(requests)]] = -torch.inf  # those that don't speculate
    depths = torch.randint(1, 6, (candidates,), generator=torch.Generator().manual_seed(seed))
    curve = CostCurve(
        tuple(accumulate([1] + [rng.randrange(1, 30) for _ in range(points - 1)])),
        tuple(accumulate((rng.uniform(-0.03, 0.1) for _ in range(points - 1)), initial=0.1)),
    )
    acceptance = SimpleNamespace(calibration=[0.5, 0.9, 1.1, 0.7, 1.2, 0.8], next_levels=[0.65] * 5)
    bound = TreeShape(4, 8, rng.randrange(5, 33), lookup=rng.choice([0, 15]))
    cost = CostModel(curve, CostCurve((1,), (0.01,)))
    plan = ConfidentPlan(bound, MatchRates(), requests, 11.0, cost, cast(AcceptanceModel, acceptance))
    found = plan.nodes(scores, depths if calibrated else None)
    with default_type(torch.float64):
        assert plan.nodes(scores, depths if calibrated else None)[0] == found[0]
    with plainly():
        nodes, counts = plan.nodes(scores, depths if calibrated else None)
    assert found[0] == nodes <= bound.nodes
    assert (found[1] is None) == (counts is None) == (requests == 1)
    if counts is not None and found[1] is not None:
        same([found[1]], [counts])
        assert (counts <= scores.isfinite().sum(1)).all()


@settings(deadline=None)
@given(seed=seeds, requests=st.integers(1, 6), plain=st.booleans())
def test_a_round_keeps_the_same(seed: int, requests: int, plain: bool) -> None:
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    batch = running(rng, requests)
    width = 1 if plain else 4
    counts = torch.tensor([rng.randrange(1, width + 1) for _ in range(requests)])
    layout, index = some_rows(LAYOUTS.rows(requests, width), counts)
    place = layout.row_start[:-1].repeat_interleave(counts)
    passed = Passed(
        tokens=torch.randint(99, (len(index),), generator=generator),
        features=torch.randn(requests * width, 4, generator=generator),
        source=None if plain else index,
        positions=batch.view().length.repeat_interleave(counts) + torch.arange(len(index)) - place,
        row_start=layout.row_start,
    )
    passed = passed._replace(positions=passed.positions.to(torch.int32))
    before = [tensor.clone() for tensor in batch.view()]
    batch.fall_behind(passed)
    after = [tensor.clone() for tensor in batch.view()]
    assert not all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert batch.pending[:requests] == counts.tolist()
    with plainly():
        for tensor, old in zip(batch.view(), before, strict=True):
            tensor.copy_(old)
        batch.fall_behind(passed)
    same(after, batch.view())


@settings(deadline=None)
@given(seed=seeds, requests=st.integers(1, 6), start=st.integers(0, 5), behind=st.booleans())
def test_rows_and_pages_are_kept_the_same(seed: int, requests: int, start: int, behind: bool) -> None:
    def done() -> list[torch.Tensor]:
        rng = random.Random(seed)
        batch = running(rng, requests)
        row = rng.randrange(requests)
        for one in range(requests):
            batch.view().head_start[one] = rng.randrange(start + 1) * _Decoder.page_size
        batch.view().recent_features.copy_(torch.arange(requests)[:, None, None].expand(-1, 4, 4))
        batch.page_entry(row, start, list(range(start + rng.randrange(5))))()
        batch.pending[requests - 1] = int(behind)
        batch.selection._requests = [cast(Request, None)] * requests
        batch.remove(row)
        if row < batch.size:  # what is pending moves, too
            assert (batch.view().recent_features[row] == (requests - 1 if behind else row)).all()
        return [tensor.clone() for tensor in batch.view()]

    ours = done()
    with plainly():
        same(ours, done())


@settings(deadline=None)
@given(seed=seeds, requests=st.integers(1, 6), width=st.integers(1, 9))
def test_some_of_the_rows_are_the_same(seed: int, requests: int, width: int) -> None:
    rng = random.Random(seed)
    counts = torch.tensor([rng.randrange(width + 1) for _ in range(requests)])
    layout = LAYOUTS.rows(requests, width)
    ours, index = some_rows(layout, counts)
    with plainly():
        theirs, expected = some_rows(layout, counts)
    same((*ours, index), (*theirs, expected))


class _Decoder:
    page_size = 16


MODELS = cast(Models, SimpleNamespace(decoder=_Decoder()))


def running(rng: random.Random, requests: int) -> RunningBatch:
    """Requests somewhere in their answers, some of them near the end of what lookup can see."""
    sizes = CarriedSizes(6, 10, 1, 4, 4, 20, torch.float32, pending=4, history=rng.choice([0, 100]))
    batch = RunningBatch(sizes, _Decoder.page_size, torch.device("cpu"))
    batch.size = requests
    now = batch.view()
    for row in range(requests):
        now.length[row] = rng.randrange(95)
        now.page_table[row] = torch.tensor(rng.sample(range(99), 10))
    now.history.random_(20, generator=torch.Generator().manual_seed(rng.randrange(99)))
    return batch


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
