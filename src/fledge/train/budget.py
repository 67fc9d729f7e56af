"""Number of steps within `train.minutes`: a few steps are timed and undone, then the number is fixed for the run.

    calibration          training: n steps, evaluations of tau included
    |-- timed steps --|-- step 1 ... n, the learning rate falling to its last value at n ------------|  minutes

The decision is part of the run's state and saved in every checkpoint, so a resumed run ends where the first attempt
would have ended, whatever the machine's speed by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from fledge.features import SampleInfo

_SHARE = 0.05  # of the budget that calibration may take
_WARM, _FEWEST, _MOST = 1, 3, 24  # steps: not timed, timed at least, timed at most


def seconds_per_token(
    schedule: Sequence[Sequence[SampleInfo]],
    step: Callable[[Sequence[SampleInfo]], object],
    budget: float,
    agreed: Callable[[bool], bool] = bool,
) -> float:
    """Time `step` on batches spread evenly over the schedule, for a small share of `budget` seconds.

    `agreed` is called before stopping, so that processes that step together stop together.
    """
    count = min(len(schedule), _WARM + _MOST)
    picked = [schedule[i * len(schedule) // count] for i in range(count)]
    tokens, timed, seconds = 0, 0, 0.0
    for number, batch in enumerate(picked):
        start = time.perf_counter()
        step(batch)
        if number < _WARM and len(picked) > _WARM:  # the first one allocates and builds kernels
            continue
        seconds += time.perf_counter() - start
        tokens += _tokens(batch)
        timed += 1
        if agreed(timed >= _FEWEST and seconds > _SHARE * budget):
            break
    return seconds / max(1, tokens)


def steps_within(
    schedule: Sequence[Sequence[SampleInfo]],
    seconds_per_token: float,
    measure_seconds: float,
    measure_every: int,
    budget: float,
) -> int:
    """Number of steps of the schedule that fit into `budget` seconds, at least one.

    Measuring tau takes `measure_seconds`; it happens every `measure_every` steps and once at the end.
    """
    spent = measure_seconds  # the one at the end
    for number, batch in enumerate(schedule, 1):
        spent += seconds_per_token * _tokens(batch)
        if spent > budget:
            return max(1, number - 1)
        if number % measure_every == 0:
            spent += measure_seconds
    return len(schedule)


def _tokens(batch: Sequence[SampleInfo]) -> int:
    return sum(info.tokens for info in batch)
