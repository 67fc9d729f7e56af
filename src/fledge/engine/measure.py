"""Times both models' forwards by their rows, on an idle pool, when an engine starts: the planner's first costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from weakref import WeakKeyDictionary

import torch

from fledge.engine.drafters.eagle import Eagle
from fledge.engine.flight import seconds_of
from fledge.engine.forwards import TargetForward
from fledge.engine.planner.cost import CostCurve, CostModel
from fledge.engine.rounds.graphs import Recorder, record
from fledge.engine.shapes import MAX_DEPTH, MAX_NODES
from fledge.target.batch import Decoder, ForwardBatch

_ROWS = (1, 2, 4, 8, 12, 16, 24, 32)  # and on in powers of two
_CONTEXT = 128  # tokens of prefix a measured row sees
_TARGET_WIDTH, _HEAD_WIDTH = 16, 4  # most rows per request while measuring: a tree's nodes, a level's
_REPEATS = 3  # timings of each size, of which the fastest counts
_BUDGET_SECONDS = 0.25  # limit for a curve's first timings; larger sizes are extrapolated beyond it

# By most rows, and whether forwards are replayed.
_measured_targets: WeakKeyDictionary[Decoder, dict[tuple[int, bool], CostCurve]] = WeakKeyDictionary()


def measure_cost(
    target: TargetForward, eagle: Eagle | None, requests: int, recorder: Recorder | None = None
) -> CostModel:
    """Time both models on an idle pool, at all sizes that rounds of up to so many requests can have.

    A decoder's own curve is remembered as long as the decoder lives. Of other drafters than the head nothing is known
    beforehand: the planner learns from rounds what they take.
    """
    max_rows = requests * MAX_NODES
    curves, key = _measured_targets.setdefault(target.decoder, {}), (max_rows, recorder is not None)
    if key not in curves:

        def run_target(batch: ForwardBatch) -> object:
            return target.decoder.forward(batch, target.kv, logits="argmax", features=True)

        curves[key] = _measure(sizes_up_to(max_rows), _TARGET_WIDTH, run_target, target, recorder)
    if eagle is None:
        return CostModel(curves[key], CostCurve((1,), (0.0,)))
    topk = eagle.sizes.topk
    sizes = sizes_up_to(requests * max(MAX_DEPTH + 1, topk))
    size, dtype, device = eagle.runner.config.hidden_size, target.decoder.dtype, target.decoder.device
    hidden = torch.zeros(sizes[-1], size, dtype=dtype, device=device)

    def run_head(batch: ForwardBatch) -> object:
        rows = hidden[: len(batch.token_ids)]
        return eagle.runner.forward(batch, eagle.kv, features=None, hidden=rows, k=topk)

    return CostModel(curves[key], _measure(sizes, _HEAD_WIDTH, run_head, target, recorder))


def sizes_up_to(max_rows: int) -> list[int]:
    """Numbers of rows to time: geometric, up to the multiple of 16 that holds `max_rows`."""
    max_rows = -(-max_rows // _TARGET_WIDTH) * _TARGET_WIDTH  # so that requests of equal width make it up
    sizes = [rows for rows in _ROWS if rows < max_rows]
    while sizes and sizes[-1] >= _ROWS[-1] and 2 * sizes[-1] < max_rows:
        sizes.append(2 * sizes[-1])
    return [*sizes, max_rows]


def _measure(
    sizes: list[int],
    width: int,
    run: Callable[[ForwardBatch], object],
    target: TargetForward,
    recorder: Recorder | None,
) -> CostCurve:
    """The fastest of some repeats, all sizes in turn: a slow moment of the machine meets none of them every time.

    Each size runs once before it is timed: first calls compile, allocate and page in.
    """
    device, spent = target.decoder.device, 0.0
    works: dict[int, Callable[[], object]] = {}
    seconds: dict[int, float] = {}
    for rows in sizes:
        requests = -(-rows // width)
        work: Callable[[], object] = partial(run, _batch(requests, rows // requests, target))
        work()
        works[rows] = work if recorder is None else record(recorder, work).replay
        seconds[rows] = seconds_of(works[rows], device)
        spent += seconds[rows]
        if spent > _BUDGET_SECONDS and len(seconds) > 1:
            break
    for _ in range(_REPEATS - 1):
        for rows, work in works.items():
            seconds[rows] = min(seconds[rows], seconds_of(work, device))
    # Fewer rows never cost more: what says so was measured in a slow moment.
    least = list(accumulate(reversed(seconds.values()), min))
    timed = CostCurve(tuple(seconds), tuple(reversed(least)))
    return CostCurve(tuple(sizes), tuple(timed.at(rows) for rows in sizes))


def _batch(requests: int, width: int, target: TargetForward) -> ForwardBatch:
    """`width` rows each of some requests that read and write pages of an idle pool."""
    device, size = target.decoder.device, target.decoder.page_size
    context = min(_CONTEXT, target.last_position)
    pages = -(-(context + width) // size)
    table = 1 + torch.arange(requests * pages, dtype=torch.int32, device=device) % (target.pages - 1)
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
