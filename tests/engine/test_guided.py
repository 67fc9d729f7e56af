"""Drafts for answers of a wanted form keep within it, and say what it leaves no choice of."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fledge.draft import DraftVocabulary
from fledge.engine import Engine, TreeShape
from fledge.engine.drafters.guided import GuidedDrafts
from fledge.engine.drafters.proposal import Proposal, Source
from fledge.engine.structured import Follower, Grammars
from fledge.heads import Head
from fledge.target import Target
from tests.tiny import VOCAB_SIZE

pytest.importorskip("llguidance", reason="llguidance isn't installed: pip install 'fledge[structured]'")


@pytest.fixture(scope="module")
def target(tiny_target_folder: Path) -> Target:
    return Target.load(str(tiny_target_folder))


@pytest.fixture(scope="module")
def ids(target: Target) -> dict[str, int]:
    return {letter: target.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "abcdexyz"}


@pytest.fixture
def follower(target: Target) -> Follower:
    return Grammars(target.tokenizer, VOCAB_SIZE, [3]).follower({"regex": "a(b|cd)(x|y)*z"})


def probabilities(*rows: list[float]) -> Tensor:
    return torch.tensor(rows).log()


def test_candidates_that_the_form_forbids_are_out_and_the_others_share_their_probability(
    follower: Follower, ids: dict[str, int]
) -> None:
    """Row 1 has a form, row 0 none; the tree's second level is that of its own paths."""
    a, b, c, d, x = (ids[letter] for letter in "abcdx")
    follower.take([a])
    drafts = GuidedDrafts({1: follower})
    tokens, scores = drafts.first(
        torch.tensor([[d, b, x], [d, b, c]]), probabilities([0.5, 0.3, 0.1], [0.5, 0.3, 0.1]), 2
    )
    assert tokens.tolist() == [[d, b], [b, c]]
    torch.testing.assert_close(scores.exp(), torch.tensor([[0.5, 0.3], [0.6, 0.2]]))
    children = torch.tensor([[a, b], [a, b], [x, d], [x, d]])
    kept = drafts.kept(children, probabilities(*[[0.8, 0.1]] * 4)).exp()
    torch.testing.assert_close(kept, torch.tensor([[0.8, 0.1], [0.8, 0.1], [0.8 / 0.9, 0.0], [0.0, 0.5]]))
    drafts.descend(torch.tensor([0, 1, 3, 2]), torch.tensor([[a, b], [d, x]]))
    kept = drafts.kept(torch.tensor([[a, b], [a, b], [x, a], [x, a]]), probabilities(*[[0.8, 0.1]] * 4))
    assert (kept > -math.inf).tolist() == [[True, True], [True, True], [True, False], [True, False]]
    assert follower.fitting([b, x]) == 2  # it is where it was


def test_behind_what_may_not_come_nothing_may(follower: Follower, ids: dict[str, int]) -> None:
    a, b, c, d, x, z = (ids[letter] for letter in "abcdxz")
    assert follower.may_follow([a, c], [b, d]) == [False, True]
    assert follower.may_follow([a, d], [b, d]) == [False, False]
    assert follower.may_follow([a, b, z], [x, 3]) == [False, True]  # complete: it ends
    assert follower.forced([d]) == follower.forced([a, b]) == []
    assert follower.forced([a, c])[0] == d
    follower.take([a, b, z])
    assert follower.may_follow([], [x, 3]) == [False, True]
    assert follower.fitting([x]) == 0
    assert follower.forced([]) == []


def test_proposals_end_where_the_form_does_and_go_on_with_what_is_forced(
    follower: Follower, ids: dict[str, int]
) -> None:
    a, c, d, x = (ids[letter] for letter in "acdx")
    tokens = torch.tensor([[c, x, x, x]] * 2)
    copied = torch.full_like(tokens, Source.LOOKUP)
    found = Proposal(tokens, torch.full((2, 4), -0.5), torch.tensor([2, 2]), copied)
    follower.take([a])
    said = GuidedDrafts({1: follower}).proposal(found)
    assert said.token_ids.tolist() == [[c, x, x, x], [c, d, -1, -1]]
    assert said.matched.tolist() == [2, 2]
    assert said.sources[:, :2].tolist() == [[Source.LOOKUP] * 2, [Source.LOOKUP, Source.GRAMMAR]]
    torch.testing.assert_close(said.log_probs[1], torch.tensor([-0.5, math.log(0.9), -math.inf, -math.inf]))
    follower.take([c])  # now d is forced, whatever repeats
    said = GuidedDrafts({1: follower}).proposal(found)
    assert said.token_ids[1].tolist() == [d, -1, -1, -1]
    assert said.matched.tolist() == [2, 0]
    assert said.sources[1, 0] == Source.GRAMMAR
    assert found.token_ids[1].tolist() == [c, x, x, x]


@pytest.mark.parametrize("tree", [None, TreeShape(3, 2, 12, 8)])
@pytest.mark.parametrize("depth", [True, False])
def test_what_is_forced_takes_hardly_any_rounds(target: Target, tree: TreeShape | None, depth: bool) -> None:
    """A head that has learnt nothing, and no repetitions; `depth` False: lookup's drafts alone."""
    text = "abcdefghijklmnopqrstuvwxyz0123456789"
    if not depth and tree is not None:
        tree = TreeShape(0, 1, 9, 8)
    head = Head.from_target(target, DraftVocabulary.from_counts(torch.ones(VOCAB_SIZE), 256))
    engine = Engine(target, head, tree=tree)
    (answer,) = engine.generate([[5, 6, 7]], max_tokens=60, structured_outputs={"choice": [text]})
    assert answer.text == text
    rounds = engine.stats().rounds
    assert rounds <= len(answer.token_ids) / 2
