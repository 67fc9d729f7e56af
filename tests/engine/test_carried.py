"""A running request keeps all that is its own, whichever requests join and leave the batch around it."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from fledge.engine import SamplingParams
from fledge.engine.carried import CarriedSizes, RunningBatch
from fledge.engine.pool import PADDING_PAGE
from fledge.engine.request import Request

pytestmark = pytest.mark.usefixtures("both_ways")
PAGE, KEPT, ROWS = 4, 8, 6  # tokens of a page, positions kept for a head that is behind, requests
SIZES = CarriedSizes(ROWS, 10, 3, 5, 6, 50, torch.float32, pending=KEPT, history=40)


def empty_batch() -> RunningBatch:
    return RunningBatch(SIZES, PAGE, torch.device("cpu"))


def join(batch: RunningBatch, length: int, *, speculate: bool = True, head_start: int = 0) -> Request:
    """A request whose prompt of so many tokens is done; nothing of it is like another's."""
    rng = random.Random(length)
    params = SamplingParams(temperature=length / 10, frequency_penalty=0.5)
    prompt = [rng.randrange(50) for _ in range(length)]
    request = Request(prompt, params, length, frozenset(), speculate, None)
    request.head_start = head_start
    batch.append(request, [rng.randrange(1, 99) for _ in range(10)], torch.tensor(rng.randrange(50)))
    return request


def proposed(batch: RunningBatch, row: int, number: int) -> None:
    """The head has run for a row."""
    values = torch.tensor([float(number)])
    batch.set_first([row], torch.full((1, 3), number), -values.expand(1, 3), values.expand(1, 5))


def left_out(batch: RunningBatch, row: int, count: int) -> None:
    """The head didn't run over a row's last positions p: each one's token is p, and so are its features."""
    length = int(batch.view().length[row])
    positions = torch.arange(length - count, length)
    batch.start_behind(row, positions, positions[:, None].expand(-1, 6).float())


def state(batch: RunningBatch, row: int) -> list[object]:
    """All that a request carries, and how its next token is chosen."""
    speculating, selection = batch.speculating(), batch.selection.selection(1)
    assert selection is not None
    assert selection.sampling is not None
    assert selection.edits is not None
    assert selection.edits.counts is not None
    tensors: list[Tensor] = [tensor[row] for tensor in batch.view()[:-3]]
    if batch.pending[row]:
        tensors += [batch.view().recent_tokens[row], batch.view().recent_features[row]]
    known = int(batch.view().length[row]) + 1
    return [
        *(tensor.tolist() for tensor in (*tensors, batch.view().history[row, :known])),
        batch.pending[row],
        batch.restarted[row],
        speculating.some if speculating.mask is None else bool(speculating.mask[row]),
        selection.sampling.temperature[row].item(),
        selection.sampling.seed_key[row].item(),
        *(table[row].tolist() for table in selection.edits.counts),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_whoever_leaves_the_others_keep_what_is_theirs(seed: int) -> None:
    rng, batch, running = random.Random(seed), empty_batch(), list[Request]()
    lengths = iter(rng.sample(range(9, 39), 20))
    for _ in range(20):
        if len(running) == ROWS or (running and rng.random() < 0.45):
            before = {request.id: state(batch, row) for row, request in enumerate(running)}
            row = rng.randrange(len(running))
            batch.remove(row)
            running[row] = running[-1]
            running.pop()
            assert [state(batch, row) for row in range(batch.size)] == [before[one.id] for one in running]
        else:
            start = rng.choice([0, 0, PAGE])
            request = join(batch, next(lengths), speculate=rng.random() < 0.7, head_start=start)
            request.id = request.prefill_length
            running.append(request)
            proposed(batch, batch.size - 1, request.id)
            if rng.random() < 0.5:
                left_out(batch, batch.size - 1, rng.randrange(1, 9))
    speculating = batch.speculating()
    assert speculating.some == any(request.speculate for request in running)
    if speculating.rows is not None:
        assert speculating.rows.tolist() == [n for n, request in enumerate(running) if request.speculate]


def test_a_request_inherits_nothing_from_who_had_its_row_before() -> None:
    fresh, used = empty_batch(), empty_batch()
    join(used, 30, speculate=False, head_start=2 * PAGE)
    left_out(used, 0, KEPT + 1)
    assert used.restarted[0]
    used.remove(0)
    for batch in (fresh, used):
        join(batch, 12)
        assert (batch.pending[0], batch.restarted[0]) == (0, False)
        proposed(batch, 0, 7)
    assert state(used, 0) == state(fresh, 0)
    assert used.behind() is None


@pytest.mark.parametrize("count", [1, KEPT - 1, KEPT])
def test_a_head_catches_up_on_all_positions_that_were_kept(count: int) -> None:
    batch = empty_batch()
    join(batch, 9)
    join(batch, 21)
    left_out(batch, 1, count)
    behind = batch.behind()
    assert behind is not None
    assert behind.numbers == [1]
    assert behind.positions.tolist() == list(range(21 - count, 21))
    assert behind.tokens.tolist() == behind.features[:, 0].tolist() == behind.positions.tolist()
    assert behind.start.tolist() == [21 - count]
    assert not batch.restarted[1]


@pytest.mark.parametrize("length", range(20, 28))
def test_a_head_too_far_behind_begins_again_at_the_first_page_border_that_was_kept(length: int) -> None:
    batch = empty_batch()
    join(batch, 10)
    join(batch, length)
    left_out(batch, 1, KEPT + 1)
    behind = batch.behind()
    first = next(p for p in range(length - KEPT, length) if p % PAGE == 0)
    assert behind is not None
    assert behind.positions.tolist() == behind.tokens.tolist() == list(range(first, length))
    assert behind.row_start.tolist() == [0, length - first]
    assert batch.restarted[:2] == [False, True]
    now = batch.view()
    assert now.head_start.tolist() == [0, first]
    page = first // PAGE
    assert now.head_pages[1].tolist() == [*now.page_table[1, page:].tolist(), *[PADDING_PAGE] * page]


def test_positions_left_out_add_up_until_the_head_has_run() -> None:
    batch = empty_batch()
    for length in (9, 12, 15):
        join(batch, length)
    batch.one_behind()
    batch.some_behind([2, 3, 1])
    assert batch.pending[:3] == [3, 4, 2]
    proposed(batch, 1, 5)
    assert batch.pending[:3] == [3, 0, 2]
    batch.set_first(None, torch.zeros(3, 3), torch.zeros(3, 3), torch.zeros(3, 5))
    assert batch.pending[:3] == [0, 0, 0]


@pytest.mark.parametrize("head_start", [0, 2 * PAGE])
def test_a_request_gets_more_pages_wherever_its_heads_history_begins(head_start: int) -> None:
    batch = empty_batch()
    for _ in range(2):
        request = Request(list(range(14)), SamplingParams(), 0, frozenset(), True, None)
        request.head_start = head_start
        batch.append(request, [11, 12, 13, 14], torch.tensor(3))
    batch.page_entry(1, 4, [11, 12, 13, 14, 15, 16])()
    now, missing = batch.view(), PADDING_PAGE
    assert now.page_table.tolist() == [
        [11, 12, 13, 14, *[missing] * 6],
        [11, 12, 13, 14, 15, 16, *[missing] * 4],
    ]
    first = head_start // PAGE
    for pages, known in zip(
        now.head_pages.tolist(), ([11, 12, 13, 14], [11, 12, 13, 14, 15, 16]), strict=True
    ):
        assert pages[: len(known) - first] == known[first:]
