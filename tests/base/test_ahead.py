"""Reading ahead keeps the order, is bounded, and leaves no thread behind."""

from __future__ import annotations

import threading
import time

import pytest

from fledge.base.ahead import read_ahead


@pytest.mark.parametrize(("ahead", "threads"), [(0, 1), (1, 1), (3, 1), (3, 3), (2, 8)])
def test_reading_ahead_keeps_the_order_and_is_bounded(ahead: int, threads: int):
    read: list[int] = []

    def slow_step(item: int) -> int:
        read.append(item)
        return item * item

    got = []
    for number, value in enumerate(read_ahead(range(20), slow_step, ahead, threads)):
        got.append(value)
        time.sleep(0.002)
        assert len(read) <= number + 1 + ahead + 1
    assert got == [n * n for n in range(20)]


def test_an_error_while_reading_ahead_arrives_where_the_batch_is_used_and_no_thread_is_left():
    def fails_at_three(item: int) -> int:
        if item == 3:
            raise ValueError("damaged")
        return item

    before = threading.active_count()
    got = []
    batches = read_ahead(range(9), fails_at_three, 2)
    with pytest.raises(ValueError, match="damaged"):
        got.extend(batches)
    assert threading.active_count() == before
