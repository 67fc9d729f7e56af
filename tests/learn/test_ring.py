"""The ring: bounded, fair to its groups, and nothing that is held out has been trained on."""

from __future__ import annotations

import torch

from fledge.features import FeatureSample
from fledge.learn.options import LearnOptions
from fledge.learn.ring import Ring

TOKENS, WIDTH = 10, 2700  # five of them are more than a MiB, the smallest ring
BYTES = TOKENS * (4 + 1 + 4 + 2 * 4 * WIDTH)


def ring_of(memory: int, heldout: float, heldout_tokens: int, passes: float = 8.0) -> Ring:
    return Ring(
        LearnOptions(
            folder="none",
            memory_mb=memory / 2**20,
            heldout=heldout,
            heldout_tokens=heldout_tokens,
            passes=passes,
        )
    )


def sample(ring: Ring, group: str = "a", tokens: int = TOKENS) -> FeatureSample:
    mask = torch.zeros(tokens, dtype=torch.uint8)
    mask[3:] = 1
    return FeatureSample(
        str(ring.next_number()),
        group,
        "train",
        0.0,
        torch.arange(tokens, dtype=torch.int32),
        mask,
        torch.zeros(tokens, dtype=torch.int32),
        torch.zeros(tokens, 3 * WIDTH, dtype=torch.bfloat16),
        torch.zeros(tokens, WIDTH, dtype=torch.bfloat16),
    )


def groups(ring: Ring) -> dict[str, int]:
    held = [info.category for name in ("train", "heldout") for info in ring.split(name)]
    return {name: held.count(name) for name in sorted(set(held))}


def test_it_holds_no_more_than_its_bytes_and_forgets_the_oldest_first() -> None:
    ring = ring_of(5 * BYTES, 0.5, 1000)
    for _ in range(12):
        ring.add(sample(ring))
    assert ring.size == 5 * BYTES
    assert sorted(i.index for name in ("train", "heldout") for i in ring.split(name)) == [8, 9, 10, 11, 12]
    assert ring.tokens_in == 12 * TOKENS


def test_one_group_cannot_fill_it_while_another_sends() -> None:
    ring = ring_of(10 * BYTES, 0.5, 1000)
    for _ in range(5):
        ring.add(sample(ring, "quiet"))
    for _ in range(100):
        ring.add(sample(ring, "loud"))
    assert groups(ring) == {"loud": 5, "quiet": 5}


def test_a_conversation_larger_than_the_ring_is_left_out() -> None:
    ring = ring_of(5 * BYTES, 0.5, 1000)
    ring.add(sample(ring))
    ring.add(sample(ring, tokens=6 * TOKENS))
    assert groups(ring) == {"a": 1}


def test_the_newest_of_each_group_are_held_out_and_only_move_to_training() -> None:
    ring = ring_of(1000 * BYTES, 0.25, 3 * TOKENS)
    trained: set[int] = set()
    for number in range(40):
        ring.add(sample(ring, "ab"[number % 2]))
        held = {info.index for info in ring.split("heldout")}
        assert not held & trained
        trained |= {info.index for info in ring.split("train")}
    assert {info.category for info in ring.split("heldout")} == {"a", "b"}
    assert sum(info.tokens for info in ring.split("heldout")) <= 3 * TOKENS
    assert max(held) > 30
    assert len(trained) + len(held) == 40


def test_a_batch_is_drawn_from_what_is_trained_on() -> None:
    ring = ring_of(1000 * BYTES, 0.25, 1000)
    for _ in range(20):
        ring.add(sample(ring))
    batch = ring.draw(5 * TOKENS, torch.Generator().manual_seed(0))
    assert len({info.index for info in batch}) == 5
    assert {info.split for info in batch} == {"train"}


def test_a_client_that_sends_most_has_no_more_of_a_batch_than_others() -> None:
    ring = ring_of(1000 * BYTES, 0.25, 10 * TOKENS)
    for number in range(100):
        ring.add(sample(ring, "quiet" if number % 10 == 0 else "loud"))
    batch = ring.draw(8 * TOKENS, torch.Generator().manual_seed(0))
    assert [info.category for info in batch].count("loud") == 4


def test_each_conversation_is_drawn_a_bounded_number_of_times() -> None:
    ring, generator = ring_of(1000 * BYTES, 0.25, 10 * TOKENS, passes=3), torch.Generator().manual_seed(0)
    for number in range(20):
        ring.add(sample(ring, "ab"[number < 3]))
    drawn: list[int] = []
    while ring.left():
        drawn += [info.index for info in ring.draw(4 * TOKENS, generator)]
    assert {drawn.count(info.index) for info in ring.split("train")} == {3}
    ring.add(sample(ring))
    assert [info.index for info in ring.left()] == [21]
