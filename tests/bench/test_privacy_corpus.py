"""The fourth corpus: its labels fit its texts, and both halves hold every entity."""

from __future__ import annotations

import pytest

from fledge.bench.privacy.corpus import LOCALES, Half, make_fourth_corpus
from fledge.bench.privacy.fourth_values import FOURTH_VALUES
from fledge.data.privacy import entities as e


@pytest.mark.parametrize("half", ["develop", "report"])
def test_the_fourth_corpus_plants_every_entity_in_each_half(half: Half) -> None:
    records = list(make_fourth_corpus(300, half, seed=2))
    assert {span.entity for record in records for span in record.spans} == set(e.DEFAULT)
    assert {record.language for record in records} == set(LOCALES)
    plain = sum(not record.spans for record in records)
    assert 0.2 < plain / len(records) < 0.3


def test_labels_of_the_fourth_corpus_fit_the_text() -> None:
    for record in make_fourth_corpus(600, seed=2):
        end = 0
        for span in record.spans:
            assert end <= span.start < span.end <= len(record.text)
            value = record.text[span.start : span.end]
            assert value == value.strip()
            assert value
            end = span.end
        left = [slot for slot in FOURTH_VALUES if "{" + slot + "}" in record.text]
        assert not left, (record.language, left)


def test_the_same_seed_gives_the_same_fourth_corpus() -> None:
    assert list(make_fourth_corpus(60, seed=4)) == list(make_fourth_corpus(60, seed=4))
