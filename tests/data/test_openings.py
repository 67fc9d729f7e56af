"""The shipped openings are usable as they are."""

from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from fledge.data.openings import DEFAULT_MIX, DEFAULT_OPENINGS, PLACEHOLDERS
from fledge.data.seeds import derive_seed, pick, text_id, unit_interval
from fledge.data.synthesis import fill


def test_every_category_has_openings_and_a_share() -> None:
    assert {opening.category for opening in DEFAULT_OPENINGS} == set(DEFAULT_MIX)
    assert all(weight > 0 for weight in DEFAULT_MIX.values())


def test_every_placeholder_has_words() -> None:
    rng = random.Random(0)
    for opening in DEFAULT_OPENINGS:
        for name in re.findall(r"\{(\w+)\}", opening.text):
            assert all(PLACEHOLDERS[name])
        assert not re.search(r"\{[a-z_]+\}", fill(opening.text, rng))


def test_other_braces_are_left_alone() -> None:
    assert fill("f{x} {} {unknown}", random.Random(0)) == "f{x} {} {unknown}"


@given(
    st.floats(0, 1, exclude_max=True), st.lists(st.floats(0, 10), min_size=1).filter(lambda w: sum(w) > 1e-6)
)
def test_pick_never_returns_a_key_without_weight(coin: float, weights: list[float]) -> None:
    assert weights[pick(dict(enumerate(weights)), coin)] > 0


def test_pick_follows_the_weights() -> None:
    counts = {"a": 0, "b": 0, "c": 0}
    for index in range(4000):
        counts[pick({"a": 1.0, "b": 2.0, "c": 1.0}, unit_interval("test", index))] += 1
    assert abs(counts["b"] / 4000 - 0.5) < 0.03


def test_seeds_differ_by_every_part() -> None:
    seeds = {derive_seed(seed, purpose, index) for seed in (0, 1) for purpose in "ab" for index in range(50)}
    assert len(seeds) == 200


def test_a_coin_on_the_edge_belongs_to_the_next_key_and_a_key_without_weight_to_nobody() -> None:
    assert [pick({"a": 1.0, "b": 2.0, "c": 1.0}, coin) for coin in (0.0, 0.25, 0.75)] == ["a", "b", "c"]
    assert pick({"none": 0.0, "a": 1.0}, 0.0) == "a"


def test_ids_tell_where_turns_end() -> None:
    assert text_id(["ab", "c"]) == text_id(("ab", "c"))
    assert len({text_id(turns) for turns in (["abc"], ["ab", "c"], ["a", "bc"], ["a", "b", "c"])}) == 4
