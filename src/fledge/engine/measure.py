"""Times both models' forwards by their rows, on an idle pool, when an engine starts: the planner's first costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from weakref import WeakKeyDictionary

import torch

from fledge.engine.forwards import Models
from fledge.engine.lane import seconds_of
from fledge.engine.planner.cost import CostCurve, CostModel
from fledge.engine.shapes import MAX_DEPTH, MAX_NODES
from fledge.target.batch import Decoder, ForwardBatch

_ROWS = (1, 2, 4, 8, 12, 16, 24, 32)  # and on in powers of two
_CONTEXT = 128  # tokens of prefix a measured row sees
_TARGET_WIDTH, _HEAD_WIDTH = 16, 4  # most rows per request while measuring: a tree's nodes, a level's
_REPEATS = 3
_BUDGET_SECONDS = 0.25  # of a curve's first timings: once they took so long, larger sizes are extrapolated

# By most rows, and whether forwards are replayed.
_measured_targets: WeakKeyDictionary[Decoder, dict[tuple[int, bool], CostCurve]] = WeakKeyDictionary()


def measure_cost(models: Models, requests: int) -> CostModel:
    """Time both models on an idle pool, at all sizes that rounds of up to so many requests can have.

    A decoder's own curve is remembered as long as the decoder lives.
    """
    most = requests * MAX_NODES
    known, key = _measured_targets.setdefault(models.decoder, {}), (most, models.rounds is not None)
    if key not in known:

        def run_target(batch: ForwardBatch) -> object:
            return models.decoder.forward(batch, models.kv, logits="argmax", features=True)

        known[key] = _measure(sizes_up_to(most), _TARGET_WIDTH, run_target, models)
    head = models.head
    if head is None:
        return CostModel(known[key], CostCurve((1,), (0.0,)))
    sizes = sizes_up_to(requests * max(MAX_DEPTH + 1, models.topk))
    size, dtype, device = head.config.hidden_size, models.decoder.dtype, models.decoder.device
    hidden = torch.zeros(sizes[-1], size, dtype=dtype, device=device)

    def run_head(batch: ForwardBatch) -> object:
        return models.head_forward(batch, None, hidden[: len(batch.token_ids)], models.topk, None)

    return CostModel(known[key], _measure(sizes, _HEAD_WIDTH, run_head, models))


def sizes_up_to(most: int) -> list[int]:
    """Numbers of rows to time: geometric, up to the multiple of 16 that holds `most`."""
    most = -(-most // _TARGET_WIDTH) * _TARGET_WIDTH  # so that requests of equal width make it up
    sizes = [rows for rows in _ROWS if rows < most]
    while sizes and sizes[-1] >= _ROWS[-1] and 2 * sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return [*sizes, most]


def _measure(
    sizes: list[int], width: int, run: Callable[[ForwardBatch], object], models: Models
) -> CostCurve:
    """The fastest of some repeats, all sizes in turn: a slow moment of the machine meets none of them every time.

    Each size runs once before it is timed: first calls compile, allocate and page in.
    """
    device, spent = models.decoder.device, 0.0
    works: dict[int, Callable[[], object]] = {}
    seconds: dict[int, float] = {}
    for rows in sizes:
        requests = -(-rows // width)
        work: Callable[[], object] = partial(run, _batch(requests, rows // requests, models))
        work()
        works[rows] = work if models.rounds is None else models.rounds.alone(work)
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
