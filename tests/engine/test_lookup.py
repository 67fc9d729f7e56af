"""Prompt lookup finds what a patient reader would, joins the head's tree in the right place, and changes no token."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.base.errors import EngineError
from fledge.draft.tree import DraftTree
from fledge.engine import PLAIN, Completion, Engine, TreeShape
from fledge.engine.drafters.growth import TreeGrowth
from fledge.engine.drafters.lookup import find
from fledge.engine.drafters.proposal import LONGEST, MatchRates, Proposal, Source
from fledge.engine.planner import FinishedRound, FixedPlanner, RoundPlan, Terms
from fledge.target.target import Target
from tests.engine.conftest import default_type, scripted_head
from tests.engine.test_growth import ROOT_TOKEN, paths_of
from tests.engine.test_lossless import SETTINGS, token_ids

ON_BOTH_BACKENDS = True

CPU = torch.device("cpu")
TREES = [
    TreeShape(0, 1, 6, lookup=5),  # nothing but lookup
    TreeShape(1, 2, 6, lookup=4),
    TreeShape(3, 1, 6, lookup=5),
    TreeShape(3, 3, 12, lookup=3),
    TreeShape(5, 4, 32, lookup=15),
]


def naive(tokens: list[int], count: int) -> tuple[int, list[int]]:
    """Length of the longest repetition of the end (up to LONGEST), and what followed its latest occurrence."""
    for length in range(min(LONGEST, len(tokens) - 1), 0, -1):
        for end in range(len(tokens) - 1, length - 1, -1):
            if tokens[end - length : end] == tokens[-length:]:
                repeated = list(tokens)
                while len(repeated) < end + count:
                    repeated.append(repeated[len(repeated) - (len(tokens) - end)])
                return length, repeated[end : end + count]
    return 0, [-1] * count


@settings(max_examples=200, deadline=None)
@given(
    contexts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=1, max_size=4),
    count=st.integers(1, 15),
)
def test_it_finds_the_latest_of_the_longest_repetitions(contexts: list[list[int]], count: int) -> None:
    history = torch.full(
        (len(contexts), 44), 3, dtype=torch.int32
    )  # what lies beyond the context must not matter
    for row, tokens in enumerate(contexts):
        history[row, : len(tokens)] = torch.tensor(tokens)
    length = torch.tensor([len(tokens) - 1 for tokens in contexts], dtype=torch.int32)
    log_rates = MatchRates().log_rates(CPU)
    found = find(history, length, count, log_rates)
    for row, tokens in enumerate(contexts):
        matched, following = naive(tokens, count)
        assert (int(found.matched[row]), found.token_ids[row].tolist()) == (matched, following)
        for step in range(count):
            expected = log_rates[min(matched + step, LONGEST)] if matched else torch.tensor(-torch.inf)
            assert found.log_probs[row, step] == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_torchs_default_type_changes_no_proposal(dtype: torch.dtype) -> None:
    history, length = torch.tensor([[5, 6, 7, 5, 6]], dtype=torch.int32), torch.tensor([4], dtype=torch.int32)
    expected = find(history, length, 3, MatchRates().log_rates(CPU))
    with default_type(dtype):
        found = find(history, length, 3, MatchRates().log_rates(CPU))
    assert torch.equal(found.log_probs, expected.log_probs)


def test_rates_follow_what_came_true() -> None:
    rates = MatchRates()
    before = list(rates.rates)
    tokens = torch.tensor([[5, 6, 7], [-1, -1, -1]])
    proposal = Proposal(tokens, torch.zeros(2, 3), torch.tensor([2, 0]), torch.full((2, 3), Source.LOOKUP))
    for _ in range(400):
        rates.observe(proposal, [[3, 5, 6, 9], [1, 4, 0, 0]])  # two right, then one wrong; nothing proposed
    assert rates.rates[1] > 0.95
    assert rates.rates[2] > 0.95
    assert rates.rates[3] < 0.05
    assert rates.rates[4:] == before[4:]
    assert rates.rates[0] == before[0]
    rates.observe(proposal, [[1, 5, 0, 0], [1, 4, 0, 0]])  # only the first token was decided
    assert rates.rates[3] < 0.05
    assert rates.log_rates(CPU)[3].exp() == pytest.approx(rates.rates[2])
    learnt, forced = list(rates.rates), torch.full((2, 3), Source.GRAMMAR)
    rates.observe(proposal._replace(sources=forced), [[3, 5, 6, 9], [1, 4, 0, 0]])  # none of them is a copy
    assert rates.rates == learnt


def grow(
    shape: TreeShape, proposed: list[int], rate: float, head: dict[tuple[int, ...], list[int]]
) -> DraftTree:
    """One tree: the head's children of a path with 0.5, 0.25, ... (others 100 ..), and a proposal of rate `rate`."""
    topk = shape.topk
    scores = [math.log(0.5) * n for n in range(1, topk + 1)]

    def children(path: tuple[int, ...]) -> list[int]:
        return (head.get(path, []) + [100 * (len(path) + 1) + n for n in range(topk)])[:topk]

    steps = shape.lookup
    tokens = torch.tensor([proposed[:steps] + [-1] * (steps - len(proposed))])
    log_probs = torch.where(tokens >= 0, math.log(rate), -torch.inf)
    sources = torch.full_like(tokens, Source.LOOKUP)
    proposal = Proposal(tokens, log_probs, torch.tensor([3]), sources) if steps else None
    growth = TreeGrowth(torch.tensor([[ROOT_TOKEN]]), proposal)
    frontier = growth.begin(torch.tensor([children(())]), torch.tensor([scores]))
    paths = [(token,) for token in children(())]
    for _ in range(shape.depth - 1):
        below = torch.tensor([children(path) for path in paths])
        frontier = growth.expand(frontier, below, torch.tensor([scores] * topk))
        old, new = paths, frontier.token_ids[0].tolist()
        paths = [(*old[row], token) for row, token in zip(frontier.above.tolist(), new, strict=True)]
    return growth.candidates().select(shape.nodes, shape.reach)


@pytest.mark.parametrize("agreed", [0, 1, 2, 3])
def test_a_proposal_goes_on_where_the_head_stops_agreeing(agreed: int) -> None:
    proposed = [11, 12, 13, 14, 15]
    head = {tuple(proposed[:n]): [proposed[n]] for n in range(agreed)}
    tree = grow(TreeShape(3, 2, 9, lookup=5), proposed, 0.9, head)
    paths = paths_of(tree, 0)
    for n in range(1, 6):
        assert tuple(proposed[:n]) in paths
        assert tree.log_probs[0, paths.index(tuple(proposed[:n]))].exp() == pytest.approx(0.9**n, rel=1e-5)
    copied = [paths[node] for node in tree.sources[0].nonzero()[:, 0]]
    assert copied == [tuple(proposed[:n]) for n in range(agreed + 1, 6)]  # what both propose is the head's
    assert set(tree.sources.flatten().tolist()) == {Source.HEAD, Source.LOOKUP}


def test_the_heads_other_candidates_share_what_the_proposal_leaves() -> None:
    tree = grow(TreeShape(1, 2, 4, lookup=1), [11], 0.9, {})
    paths = paths_of(tree, 0)
    worth = {path: float(tree.log_probs[0, n].exp()) for n, path in enumerate(paths)}
    assert worth[(11,)] == pytest.approx(0.9)
    assert worth[(100,)] == pytest.approx(0.5 * 0.1)
    sure = grow(TreeShape(1, 2, 3, lookup=1), [11], 0.2, {(): [11]})  # the head is surer than the lookup
    assert sure.log_probs[0, 1].exp() == pytest.approx(0.5)
    assert sure.log_probs[0, 2].exp() == pytest.approx(0.25)


def test_without_a_proposal_the_tree_is_the_heads_own() -> None:
    alone = grow(TreeShape(3, 2, 8), [], 0.9, {})
    beside = grow(TreeShape(3, 2, 8, lookup=4), [], 0.9, {})
    for ours, theirs in zip(beside, alone, strict=True):
        assert torch.equal(ours, theirs)


@pytest.fixture(scope="module")
def repeated(plain: Engine, prompts: list[list[int]]) -> list[Completion]:
    """Plain decode's answers to prompts that hold something to repeat."""
    return plain.generate([prompt * 2 for prompt in prompts], max_tokens=40, ignore_eos=True)


@pytest.mark.parametrize(
    ("shape", "rate"),
    [
        pytest.param(shape, rate, marks=() if rate or shape == TREES[3] else pytest.mark.slow)
        for shape in TREES
        for rate in (0.0, 0.6)
    ],
    ids=str,
)
def test_greedy_output_equals_plain_decode(
    target: Target, repeated: list[Completion], prompts: list[list[int]], shape: TreeShape, rate: float
) -> None:
    engine = Engine(target, scripted_head(target, repeated, rate), max_batch=7, tree=shape)
    answers = engine.generate([prompt * 2 for prompt in prompts], max_tokens=40, ignore_eos=True)
    assert token_ids(answers) == token_ids(repeated)


@pytest.mark.parametrize(
    ("setting", "shape"),
    [
        pytest.param(setting, shape, marks=() if (number + place) % 2 else pytest.mark.slow)
        for number, setting in enumerate(SETTINGS)
        for place, shape in enumerate([TREES[0], TREES[3]])
    ],
    ids=str,
)
def test_sampled_output_equals_plain_sampled_output(
    target: Target, plain: Engine, prompts: list[list[int]], setting: dict[str, float], shape: TreeShape
) -> None:
    sampling = {"max_tokens": 24, "seed": 77, "ignore_eos": True, **setting}
    expected = plain.generate(prompts[:12], **sampling)  # type: ignore[arg-type]
    engine = Engine(target, scripted_head(target, expected, 0.7), max_batch=5, tree=shape)
    assert token_ids(engine.generate(prompts[:12], **sampling)) == token_ids(expected)  # type: ignore[arg-type]


def test_repetitions_are_accepted_even_with_a_useless_head(target: Target, plain: Engine) -> None:
    """A greedy model held to three tokens soon goes round in circles."""
    held = {"max_tokens": 120, "ignore_eos": True, "logit_bias": {20: 80.0, 21: 80.0, 22: 80.0}}
    expected = plain.generate([[7, 8, 9]], **held)  # type: ignore[arg-type]
    head = scripted_head(target, expected, 0.0)
    alone = Engine(target, head, tree=TreeShape(2, 2, 6)).generate([[7, 8, 9]], **held)  # type: ignore[arg-type]
    found = Engine(target, head, tree=TreeShape(2, 2, 6, lookup=5)).generate([[7, 8, 9]], **held)  # type: ignore[arg-type]
    assert token_ids(found) == token_ids(alone) == token_ids(expected)
    assert alone[0].stats.tau == 1
    assert found[0].stats.tau > 2


def test_no_level_is_drafted_for_a_token_that_lookup_names(
    target: Target, plain: Engine, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a circle lookup is nearly sure, and the head agrees: a draft step would name nothing new."""
    if backend == "torch":
        pytest.skip("trees are grown to a fixed shape in torch")
    held = {"max_tokens": 120, "ignore_eos": True, "logit_bias": {20: 80.0, 21: 80.0, 22: 80.0}}
    expected = plain.generate([[7, 8, 9]], **held)  # type: ignore[arg-type]
    head = scripted_head(target, expected, 1.0, best_first=True)
    terms = Terms([1.0] * 7, [0.65] * 4, (1, 64), [0.001, 0.064], step=0.3)
    levels: dict[bool, list[int]] = {True: [], False: []}

    def choose(self: FixedPlanner, requests: int, behind: object) -> RoundPlan:
        return RoundPlan(TreeShape(4, 2, 8, lookup=6), self.match_rates, terms)

    def learn(self: FixedPlanner, done: FinishedRound) -> None:
        assert done.drafted.proposal is not None
        matched = int(done.drafted.proposal.matched[0])
        if matched in (0, LONGEST):
            levels[matched > 0].append(len(done.drafted.levels))

    monkeypatch.setattr(FixedPlanner, "choose", choose)
    monkeypatch.setattr(FixedPlanner, "learn", learn)
    engine = Engine(target, head, tree=TreeShape(4, 2, 8, lookup=6))
    assert token_ids(engine.generate([[7, 8, 9]], **held)) == token_ids(expected)  # type: ignore[arg-type]
    assert set(levels[True]) == {1}
    assert max(levels[False]) > 1


def test_impossible_lookups_are_refused(target: Target) -> None:
    head = scripted_head(target, [], 0.0)
    for wrong in (-1, 32):
        with pytest.raises(EngineError, match=f"lookup is {wrong}"):
            Engine(target, head, lookup=wrong)
    with pytest.raises(EngineError, match="needs a draft head"):
        Engine(target, lookup=4)
    with pytest.raises(EngineError, match="needs a draft head and a tree"):
        Engine(target, head, tree=PLAIN, lookup=4)


def test_random_contexts_do_not_cross_requests() -> None:
    """Every row only ever proposes from its own tokens."""
    rng = random.Random(3)
    rows = [[10 * row + rng.randrange(4) for _ in range(30)] for row in range(5)]
    found = find(
        torch.tensor(rows, dtype=torch.int32),
        torch.full((5,), 29, dtype=torch.int32),
        6,
        MatchRates().log_rates(CPU),
    )
    for row, proposed in enumerate(found.token_ids.tolist()):
        assert all(token // 10 == row for token in proposed)
