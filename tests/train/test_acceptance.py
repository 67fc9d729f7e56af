from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fledge.train.acceptance import Acceptance, DraftRound, replay
from fledge.train.batches import make_batch
from fledge.train.evaluation import by_number
from tests.train.samples import make_sample


def test_an_answer_is_replayed_as_it_is_served():
    batch = make_batch([make_sample([(4, 6)], seed=0)], torch.float32)
    hits = torch.zeros(2, 6, dtype=torch.bool)
    hits[0, [0, 1, 3]] = True
    hits[1, [1, 3, 4]] = True
    # Row 1: both accepted and a bonus token, so rows 2 and 3 are passed. Row 4: nothing. Row 5: the last token.
    assert replay(hits, batch) == [DraftRound(0, 4, 2, 3), DraftRound(0, 7, 0, 1), DraftRound(0, 8, 0, 1)]


@given(
    turns=st.lists(st.tuples(st.integers(2, 4), st.integers(1, 9)), min_size=1, max_size=3),
    depth=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_rounds_emit_every_drafted_token_once(turns: list[tuple[int, int]], depth: int, seed: int):
    batch = make_batch([make_sample(turns, seed=seed), make_sample(turns, seed=seed + 1)], torch.float32)
    hits = torch.rand(depth, len(batch.rows), generator=torch.Generator().manual_seed(seed)) < 0.6
    for step in range(depth):
        valid = batch.valid(step)
        hits[step, : len(valid)] &= valid
        hits[step, len(valid) :] = False
    rounds = replay(hits, batch)
    # The first token of an answer comes from the prompt's forward; all others are emitted by some round.
    assert sum(r.emitted for r in rounds) == 2 * sum(answer - 1 for _, answer in turns)
    assert all(r.accepted <= r.emitted <= r.accepted + 1 <= depth + 1 for r in rounds)
    for number in (0, 1):
        positions = [r.position for r in rounds if r.sample == number]
        assert positions == sorted(set(positions))


def test_tau_and_joint_acceptance_by_depth():
    rounds = [DraftRound(0, 5, 2, 3), DraftRound(0, 8, 0, 1), DraftRound(0, 9, 1, 2), DraftRound(0, 11, 0, 1)]
    found = Acceptance.of(rounds, 3)
    assert found.tau == pytest.approx(7 / 4)
    assert found.by_depth == [0.5, 0.25, 0.0]
    assert Acceptance.of([], 2).tau == 0.0


def test_groups_stand_in_the_order_of_their_numbers():
    assert sorted(["1.5", "chat", "0", "1", "0.8"], key=by_number) == ["0", "0.8", "1", "1.5", "chat"]
