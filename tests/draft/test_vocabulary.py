from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fledge.base.errors import DataError, HeadError
from fledge.draft import DraftVocabulary, count_generated


@given(counts=st.lists(st.integers(0, 5), min_size=4, max_size=60), data=st.data())
def test_maps_agree_with_each_other(counts: list[int], data: st.DataObject):
    size = data.draw(st.integers(2, len(counts) + 3))
    always = data.draw(st.sets(st.integers(0, len(counts) - 1), max_size=2))
    vocabulary = DraftVocabulary.from_counts(torch.tensor(counts), size, always)
    ids = vocabulary.token_ids
    assert len(vocabulary) == min(size, len(counts)) == int(vocabulary.t2d.sum())
    assert always <= set(ids.tolist())
    assert torch.equal(torch.arange(len(ids)) + vocabulary.d2t, ids)
    assert torch.equal(vocabulary.draft_ids[ids], torch.arange(len(ids)))
    assert torch.equal(vocabulary.draft_ids >= 0, vocabulary.t2d)
    left_out = [c for i, c in enumerate(counts) if i not in set(ids.tolist())]
    taken = [counts[i] for i in ids.tolist() if i not in always]
    assert not left_out or not taken or max(left_out) <= min(taken)


def test_coverage_is_the_share_of_counted_tokens():
    vocabulary = DraftVocabulary.from_counts(torch.tensor([5, 0, 3, 2]), 2)
    assert vocabulary.token_ids.tolist() == [0, 2]
    assert vocabulary.coverage == pytest.approx(0.8)


def test_only_generated_positions_are_counted():
    samples = [(torch.tensor([1, 2, 2, 3]), torch.tensor([0, 1, 1, 0], dtype=torch.uint8))]
    assert count_generated(samples, 5).tolist() == [0, 0, 2, 0, 0]
    with pytest.raises(DataError, match="token 2 was generated, but the target's vocabulary is 2"):
        count_generated(samples, 2)


def test_a_vocabulary_too_small_for_its_fixed_tokens_is_refused():
    with pytest.raises(HeadError, match="at least 3"):
        DraftVocabulary.from_counts(torch.ones(10), 2, always=(1, 2, 3))
