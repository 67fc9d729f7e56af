"""Importance resampling moves a pool towards traffic; quotas add up."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.data.selection import TrafficModel, distance, share_out
from fledge.data.selection.matching import NgramCounts, features, gumbel
from tests.data.test_mixing import CHAT, CODE


def texts(vocabulary: list[str], count: int, seed: int) -> list[tuple[str]]:
    rng = random.Random(seed)
    return [(" ".join(rng.choices(vocabulary, k=20)),) for _ in range(count)]


def test_prompts_like_the_traffic_weigh_more() -> None:
    pool = texts(CODE, 100, 0) + texts(CHAT, 100, 1)
    model = TrafficModel(NgramCounts.of(texts(CODE, 50, 2)), NgramCounts.of(pool))
    weights = [model.log_weight(features(prompt)) for prompt in pool]
    assert min(weights[:100]) > 0 > max(weights[100:])


def test_distances() -> None:
    code, chat = NgramCounts.of(texts(CODE, 200, 0)), NgramCounts.of(texts(CHAT, 200, 1))
    assert distance(code, code) == 0
    assert distance(code, chat) == pytest.approx(1.0, abs=0.05)  # a few buckets are shared
    assert distance(code, chat) == distance(chat, code)
    assert distance(code, NgramCounts.of(texts(CODE, 200, 5))) < 0.5


def test_noise_is_gumbel_and_belongs_to_the_prompt() -> None:
    noise = np.array([gumbel(0, str(number)) for number in range(20_000)])
    assert noise.mean() == pytest.approx(0.5772, abs=0.03)
    assert noise.std() == pytest.approx(np.pi / np.sqrt(6), abs=0.03)
    assert gumbel(0, "7") == noise[7]
    assert gumbel(1, "7") != noise[7]


@given(
    st.integers(0, 1000),
    st.dictionaries(
        st.text("abcdef", min_size=1), st.tuples(st.floats(0.01, 100), st.integers(0, 300)), min_size=1
    ),
)
def test_quotas_add_up_and_fit(count: int, sources: dict[str, tuple[float, int]]) -> None:
    weights = {name: weight for name, (weight, _) in sources.items()}
    available = {name: there for name, (_, there) in sources.items()}
    shares = share_out(count, weights, available)
    assert sum(shares.values()) == min(count, sum(available.values()))
    assert all(0 <= shares[name] <= available[name] for name in sources)


def test_quotas_follow_weights_and_pass_on_what_is_missing() -> None:
    assert share_out(100, {"a": 1, "b": 3}, {"a": 1000, "b": 1000}) == {"a": 25, "b": 75}
    assert share_out(100, {"a": 1, "b": 3}, {"a": 1000, "b": 10}) == {"a": 90, "b": 10}
    assert share_out(10, {"a": 1, "b": 1, "c": 1}, {"a": 9, "b": 9, "c": 9}) == {"a": 4, "b": 3, "c": 3}


def test_the_largest_remainders_are_rounded_up() -> None:
    everything = dict.fromkeys("abc", 1000)
    assert share_out(10, {"a": 1.9, "b": 3.3, "c": 4.8}, everything) == {"a": 2, "b": 3, "c": 5}
    assert share_out(10, {"a": 1.3, "b": 3.9, "c": 4.8}, everything) == {"a": 1, "b": 4, "c": 5}


def test_what_a_source_lacks_is_shared_by_weight_among_the_others() -> None:
    assert share_out(100, {"a": 2, "b": 1, "c": 1}, {"a": 20, "b": 500, "c": 500}) == {
        "a": 20,
        "b": 40,
        "c": 40,
    }
    assert share_out(100, {"a": 2, "b": 1, "c": 1}, {"a": 20, "b": 10, "c": 500}) == {
        "a": 20,
        "b": 10,
        "c": 70,
    }
    assert share_out(100, {"a": 0, "b": 1}, {"a": 500, "b": 30}) == {"a": 0, "b": 30}
