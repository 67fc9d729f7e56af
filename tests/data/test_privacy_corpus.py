"""The fourth and the fifth corpus: their labels fit their texts, and both halves hold every entity."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from fledge.data.privacy import entities as e
from tests.data.privacy_corpus.corpus import LOCALES, Half, Labelled, make_fifth_corpus, make_fourth_corpus
from tests.data.privacy_corpus.fourth_values import FOURTH_VALUES
from tests.data.privacy_corpus.shapes import lists

Make = Callable[..., Iterator[Labelled]]
both = pytest.mark.parametrize("make", [make_fourth_corpus, make_fifth_corpus])


@both
@pytest.mark.parametrize("half", ["develop", "report"])
def test_every_entity_is_planted_in_each_half(make: Make, half: Half) -> None:
    records = list(make(285, half, seed=2))
    later = {e.VEHICLE_ID, e.USERNAME}  # added after the corpora were written
    assert {span.entity for record in records for span in record.spans} == set(e.DEFAULT) - later
    assert {record.language for record in records} == set(LOCALES)
    plain = sum(not record.spans for record in records)
    assert 0.2 < plain / len(records) < 0.3


@both
def test_labels_fit_the_text(make: Make) -> None:
    for record in make(600, seed=2):
        end = 0
        for span in record.spans:
            assert end <= span.start < span.end <= len(record.text)
            value = record.text[span.start : span.end]
            assert value == value.strip()
            assert value
            end = span.end
        left = [slot for slot in FOURTH_VALUES if "{" + slot + "}" in record.text]
        assert not left, (record.language, left)


@both
def test_the_same_seed_gives_the_same_corpus(make: Make) -> None:
    assert list(make(60, seed=4)) == list(make(60, seed=4))


def test_the_fifth_corpus_fills_every_slot_of_its_templates() -> None:
    templates = {record.template for record in make_fifth_corpus(190)}
    assert len(templates) == 190
    slots = {slot for template in templates for slot in re.findall(r"\{(\w+)\}", template)}
    assert slots <= set(FOURTH_VALUES)


def test_the_fifth_corpus_is_not_the_fourth_again() -> None:
    fourth, fifth = ({r.template for r in make(600)} for make in (make_fourth_corpus, make_fifth_corpus))
    assert not fourth & fifth
    for kind in ("given", "family", "towns", "streets"):
        for language in LOCALES:
            old, new = (set(lists(folder)[f"{language} {kind}"]) for folder in ("fourth", "fifth"))
            assert not old & new, (language, kind)
