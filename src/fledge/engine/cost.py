"""What a forward costs as a function of its rows: measured when an engine starts, corrected by what forwards take.

A curve that was measured in a slow moment may say that larger forwards are expensive, and then they would never be
tried. So each of its points has an uncertainty, and a timing moves the points near its rows by as much as they are
uncertain, as in a Kalman filter:

    log seconds  =  pace  +  log curve(rows)  +  noise

The machine's pace changes from one forward to the next and is the same for all sizes; a timing tells of the curve by
its difference from the forwards just before. The points' errors are taken for independent, except that larger sizes of
which little is known move along with smaller ones. Plans are made with the `hoped` curve, one standard deviation below
the most probable one: a size that isn't used gets more uncertain, so that it looks better and better until it is tried.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from weakref import WeakKeyDictionary

import numpy as np
import torch

from fledge.engine.forwards import Models
from fledge.engine.lane import seconds_of
from fledge.engine.shapes import TreeShape
from fledge.target.batch import Decoder, ForwardBatch

_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64, 128)
_CONTEXT = 128  # tokens of prefix a measured row sees
_TARGET_WIDTH, _HEAD_WIDTH = 16, 4  # most rows per request while measuring: a tree's nodes, a level's
_REPEATS = 3
_BUDGET_SECONDS = 0.25  # of the first repeat: no larger forwards are measured once this much has passed

# Variances of logarithms: of a timing's noise, and of the pace's change before it
_NOISE, _CHANGE = 0.05**2, 0.065**2
_FIRST, _MOST = 0.1**2, 0.35**2  # of a point as measured at start, and at most
_SEEN, _UNSEEN = 0.003**2, 0.01**2  # what a timing adds to those of the points it tells of, and of all others
_SURPRISE = 9.0  # times the variance expected: the pace has changed
_LARGEST = math.log(2)  # a single timing further off says no more than this


@dataclass(frozen=True)
class CostCurve:
    """Seconds by number of rows; linear between the measured points and beyond the last two.

    Beyond them it never falls: corrected in a slow moment the last point may lie below the one before, and a line
    through both soon leads below zero.
    """

    rows: tuple[int, ...]
    seconds: tuple[float, ...]

    def at(self, rows: int) -> float:
        """Estimated seconds of a forward with this many rows."""
        if len(self.rows) == 1:
            return self.seconds[0]
        right = min(max(bisect_left(self.rows, rows), 1), len(self.rows) - 1)
        low, high = self.rows[right - 1], self.rows[right]
        share = (rows - low) / (high - low)
        rise = self.seconds[right] - self.seconds[right - 1]
        if rows > high and rise < 0.0:
            return self.seconds[right]
        return self.seconds[right - 1] + share * rise

    def over(self, rows: np.ndarray) -> np.ndarray:
        """`at` for ascending numbers of rows [n]."""
        if len(self.rows) == 1:
            return np.full(len(rows), self.seconds[0])
        known = np.interp(rows, self.rows, self.seconds)
        if rows[-1] <= self.rows[-1]:
            return known
        last = max(self.seconds[-1] - self.seconds[-2], 0.0) / (self.rows[-1] - self.rows[-2])
        return known + last * np.maximum(rows - self.rows[-1], 0)


@dataclass(frozen=True)
class CostModel:
    """Predicted seconds of a round, from the curves of the target and the head."""

    target: CostCurve
    head: CostCurve

    def round_seconds(
        self, requests: int, shape: TreeShape, levels: int | None = None, rows: int | None = None
    ) -> float:
        """A round with the head: draft steps, verify, extend.

        `levels` were drafted, where the tree was cut to `shape` after that; `rows` were verified, where requests got
        different numbers of nodes.
        """
        rows = requests * shape.nodes if rows is None else rows
        return self.target.at(rows) + self.head_seconds(requests, shape.depth, shape.topk, levels)

    def head_seconds(self, requests: int, depth: int, topk: int, levels: int | None = None) -> float:
        """What the head takes of it: draft steps, extend."""
        steps = max((depth if levels is None else levels) - 1, 0)
        return steps * self.head.at(requests * topk) + self.head.at(requests * (depth + 1))

    def plain_seconds(self, rows: int) -> float:
        """A round without the head that verifies so many rows; a plain one has a row per request."""
        return self.target.at(rows)


class LearntCurve:
    """A cost curve that timings correct, and how well its points are known."""

    def __init__(self, curve: CostCurve) -> None:
        self.curve = curve  # as it most probably is
        self._variances = [_FIRST] * len(curve.rows)
        self._hoped: CostCurve | None = curve

    @property
    def hoped(self) -> CostCurve:
        """A standard deviation below."""
        if self._hoped is None:
            known = zip(self.curve.seconds, self._variances, strict=True)
            self._hoped = CostCurve(
                self.curve.rows, tuple(value * math.exp(-math.sqrt(variance)) for value, variance in known)
            )
        return self._hoped

    def learn(self, rows: int, seconds: float, pace: float) -> float:
        """Learn from a forward's seconds. `pace`: a logarithm, as it was at the forward before; returns the new one."""
        curve, values = self.curve, list(self.curve.seconds)
        shares = self._shares(rows)
        known = [
            min(variance + (_SEEN if point in shares else _UNSEEN), _MOST)
            for point, variance in enumerate(self._variances)
        ]
        surprise = math.log(max(seconds, 1e-9) / curve.at(rows)) - pace
        surprise = min(max(surprise, -_LARGEST), _LARGEST)
        variance = _CHANGE + _NOISE + sum(share * share * known[point] for point, share in shares.items())
        jump = max(surprise**2 / _SURPRISE - variance, 0.0)
        variance += jump
        for point, share in shares.items():
            step = share * known[point] / variance * surprise
            values[point] *= math.exp(step)
            known[point] *= 1 - share * share * known[point] / variance
        for larger in range(max(shares) + 1, len(values)):
            values[larger] *= math.exp(step * min(known[larger] / _FIRST, 1.0))
        self.curve, self._variances, self._hoped = CostCurve(curve.rows, tuple(values)), known, None
        return pace + (_CHANGE + jump) / variance * surprise

    def _shares(self, rows: int) -> dict[int, float]:
        """The points next to so many rows, in ascending order, and each one's share of the interpolated seconds."""
        sizes, seconds = self.curve.rows, self.curve.seconds
        right = min(bisect_left(sizes, rows), len(sizes) - 1)
        if right == 0 or rows >= sizes[right]:
            return {right: 1.0}
        part = (rows - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        whole = self.curve.at(rows)
        return {right - 1: (1 - part) * seconds[right - 1] / whole, right: part * seconds[right] / whole}


# By most rows, and whether forwards are replayed.
_measured_targets: WeakKeyDictionary[Decoder, dict[tuple[int, bool], CostCurve]] = WeakKeyDictionary()


def measure_cost(models: Models, max_rows: int) -> CostModel:
    """Time both models on an idle pool. A decoder's own curve is remembered as long as the decoder lives."""
    sizes = [rows for rows in _ROWS if rows <= max_rows] or [1]
    known, key = _measured_targets.setdefault(models.decoder, {}), (sizes[-1], models.rounds is not None)
    if key not in known:

        def run_target(batch: ForwardBatch) -> object:
            return models.decoder.forward(batch, models.kv, logits="argmax", features=True)

        known[key] = _measure(sizes, _TARGET_WIDTH, run_target, models)
    head = models.head
    if head is None:
        return CostModel(known[key], CostCurve((1,), (0.0,)))
    size, dtype, device = head.config.hidden_size, models.decoder.dtype, models.decoder.device
    hidden = torch.zeros(sizes[-1], size, dtype=dtype, device=device)

    def run_head(batch: ForwardBatch) -> object:
        return models.head_forward(batch, None, hidden[: len(batch.token_ids)], models.topk, None)

    return CostModel(known[key], _measure(sizes, _HEAD_WIDTH, run_head, models))


def _measure(
    sizes: list[int], width: int, run: Callable[[ForwardBatch], object], models: Models
) -> CostCurve:
    """The fastest of some repeats, all sizes in turn: a slow moment of the machine meets none of them every time."""
    started, device = time.perf_counter(), models.decoder.device
    run(_batch(1, 1, models))  # first calls allocate and page in
    works: dict[int, Callable[[], object]] = {}
    seconds: dict[int, float] = {}
    for rows in sizes:
        requests = -(-rows // width)
        works[rows] = partial(run, _batch(requests, rows // requests, models))
        seconds[rows] = seconds_of(works[rows], device)
        if models.rounds is not None:
            works[rows] = models.rounds.alone(works[rows])
        if time.perf_counter() - started > _BUDGET_SECONDS and len(seconds) > 1:
            break
    for _ in range(_REPEATS - 1):
        for rows, work in works.items():
            seconds[rows] = min(seconds[rows], seconds_of(work, device))
    # Fewer rows never cost more: what says so was measured in a slow moment.
    least = list(accumulate(reversed(seconds.values()), min))
    return CostCurve(tuple(seconds), tuple(reversed(least)))


def _batch(requests: int, width: int, models: Models) -> ForwardBatch:
    """`width` rows each of some requests that read and write pages of an idle pool."""
    device, size = models.decoder.device, models.decoder.page_size
    context = min(_CONTEXT, models.last_position)
    pages = -(-(context + width) // size)
    table = 1 + torch.arange(requests * pages, dtype=torch.int32, device=device) % (models.pages - 1)
    full = torch.full((requests,), context, dtype=torch.int32, device=device)
    rows = requests * width
    return ForwardBatch(
        token_ids=torch.zeros(rows, dtype=torch.int32, device=device),
        positions=torch.full((rows,), context, dtype=torch.int32, device=device),
        row_start=torch.arange(requests + 1, dtype=torch.int32, device=device) * width,
        prefix_length=full,
        window_offset=torch.zeros_like(full),
        page_table=table.view(requests, pages),
    )
