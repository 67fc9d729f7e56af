"""What an engine says it has done adds up."""

from __future__ import annotations

from fledge.engine import PLAIN, PlannedShape, TreeShape
from fledge.engine.stats import Counts

SHAPE = TreeShape(3, 2, 8)


def test_drafts_are_counted_at_every_depth_their_path_reached() -> None:
    counts = Counts()
    counts.count_drafts(SHAPE, [0, 2, 3], 21)
    counts.count_drafts(TreeShape(2, 2, 5), [1], 4)
    assert (counts.drafts, counts.draft_tokens, counts.accepted_by_depth) == (4, 25, [3, 2, 1])
    counts.count_drafts(TreeShape(2, 2, 9, lookup=5), [5], 8)  # lookup's branch goes deeper
    assert counts.accepted_by_depth == [4, 3, 2, 1, 1]


def test_shapes_stand_in_the_order_of_their_use() -> None:
    counts = Counts()
    for shape, tokens in ((PLAIN, 3), (SHAPE, 7), (SHAPE, 6)):
        counts.count_shape(shape, 3, tokens, 0.5)
    assert counts.shapes_used() == [
        PlannedShape(SHAPE, rounds=2, requests=6, tokens=13, seconds=1.0),
        PlannedShape(PLAIN, rounds=1, requests=3, tokens=3, seconds=0.5),
    ]
    assert counts.shapes_used()[0].tau == 13 / 6
