"""Token rates, and jobs that run several generations one after another."""

from __future__ import annotations

import pytest

from fledge.data.generation import Generation, Job, TokenRate, run_in_order
from fledge.engine import Engine, SamplingParams


def test_the_rate_is_that_of_the_last_half_minute() -> None:
    now = 0.0
    rate = TokenRate(clock=lambda: now)
    for second in range(1, 121):
        now = float(second)
        rate.add(100 if second <= 60 else 10)
    assert rate.tokens == 6600
    assert rate.per_second() == pytest.approx(10)


def chain(length: int, start: int) -> Job[list[int]]:
    """Generates `length` times, each time from what came before."""
    ids = [start]
    for _ in range(length):
        done = yield Generation(list(ids), SamplingParams(max_tokens=3, ignore_eos=True))
        ids += done.token_ids
    return ids


def test_results_come_in_order_though_jobs_take_unequal_time(engine: Engine) -> None:
    rate = TokenRate()
    lengths = [5, 0, 1, 3, 0, 0, 2, 1, 4, 0]
    results = list(run_in_order(engine, (chain(n, 10 + i) for i, n in enumerate(lengths)), rate))
    assert [ids[0] for ids in results] == [10 + i for i in range(len(lengths))]
    assert [len(ids) for ids in results] == [1 + 3 * n for n in lengths]
    assert rate.tokens == 3 * sum(lengths)


def test_closing_early_leaves_nothing_in_the_engine(engine: Engine) -> None:
    results = run_in_order(engine, (chain(4, 10) for _ in range(100)), TokenRate())
    next(results)
    assert engine.busy
    results.close()
    assert not engine.busy
