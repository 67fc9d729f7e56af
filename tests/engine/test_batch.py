"""A running request keeps all that is its own, whichever requests join and leave the batch around it."""

from __future__ import annotations

import random
from functools import partial
from typing import NamedTuple

import pytest
import torch

from fledge.engine import SamplingParams
from fledge.engine.batch import BatchSizes, RunningBatch
from fledge.engine.request import Request
from fledge.engine.selection import SelectionRows
from fledge.target.batch import PADDING_PAGE
from tests.engine.conftest import come_and_go

ROWS, PAGES = 6, 10


class Running(NamedTuple):
    """A batch, and how its requests choose tokens."""

    batch: RunningBatch
    selection: SelectionRows


def nobody() -> Running:
    device = torch.device("cpu")
    selection = SelectionRows(ROWS, 50, device)
    return Running(RunningBatch(BatchSizes(ROWS, PAGES, history=40), device, [selection]), selection)


def join(batch: RunningBatch, length: int, *, speculate: bool = True) -> Request:
    """A request whose prompt of so many tokens is done; nothing of it is like another's."""
    rng = random.Random(length)
    params = SamplingParams(temperature=length / 10, frequency_penalty=0.5)
    request = Request(
        [rng.randrange(50) for _ in range(length)], params, length, frozenset(), speculate, None
    )
    pages = [rng.randrange(1, 99) for _ in range(rng.randrange(1, PAGES + 1))]
    batch.append(request, pages, torch.tensor(rng.randrange(50)))
    return request


def state(running: Running, row: int) -> list[object]:
    """All that a request carries, and how its next token is chosen."""
    speculating, now = running.batch.speculating(), running.batch.view()
    selection = running.selection.selection(1)
    assert selection is not None
    assert selection.sampling is not None
    assert selection.edits is not None
    assert selection.edits.counts is not None
    known = int(now.length[row]) + 1
    return [
        now.length[row].item(),
        now.bonus[row].item(),
        now.page_table[row].tolist(),
        now.history[row, :known].tolist(),
        speculating.some if speculating.mask is None else bool(speculating.mask[row]),
        selection.sampling.temperature[row].item(),
        selection.sampling.seed_key[row].item(),
        *(table[row].tolist() for table in selection.edits.counts),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_whoever_leaves_the_others_keep_what_is_theirs(seed: int) -> None:
    rng, running = random.Random(seed), nobody()
    batch, lengths = running.batch, iter(rng.sample(range(9, 39), 20))

    def joins() -> Request:
        return join(batch, next(lengths), speculate=rng.random() < 0.7)

    for requests in come_and_go(rng, batch, joins, partial(state, running)):
        speculating = batch.speculating()
        assert speculating.some == any(request.speculate for request in requests)
        if speculating.rows is not None:
            assert speculating.rows == [n for n, request in enumerate(requests) if request.speculate]


def test_a_request_inherits_nothing_from_who_had_its_row_before() -> None:
    fresh, used = nobody(), nobody()
    join(used.batch, 30, speculate=False)
    used.batch.remove(0)
    for running in (fresh, used):
        join(running.batch, 12)
    assert state(used, 0) == state(fresh, 0)


def test_a_request_gets_more_pages() -> None:
    batch = nobody().batch
    for _ in range(2):
        request = Request(list(range(14)), SamplingParams(), 0, frozenset(), True, None)
        batch.append(request, [11, 12, 13, 14], torch.tensor(3))
    batch.enter_pages(1, 4, [15, 16])
    assert batch.view().page_table.tolist() == [
        [11, 12, 13, 14, *[PADDING_PAGE] * 6],
        [11, 12, 13, 14, 15, 16, *[PADDING_PAGE] * 4],
    ]


@pytest.mark.parametrize("seed", range(6))
def test_a_batch_goes_on_behind_the_tokens_that_a_round_emitted(seed: int) -> None:
    """A history that is full takes no more; what lies behind its last token means nothing."""
    rng, batch = random.Random(seed), nobody().batch
    requests = [join(batch, length) for length in rng.sample(range(9, 30), 4)]
    contexts = [[*one.prompt_ids, int(batch.view().bonus[row])] for row, one in enumerate(requests)]
    for _ in range(4):
        tokens = torch.tensor([[rng.randrange(50) for _ in range(3)] for _ in requests])
        emits = torch.tensor([rng.randrange(1, 4) for _ in requests])
        batch.advance(emits, tokens)
        now = batch.view()
        for row, context in enumerate(contexts):
            context += tokens[row, : emits[row]].tolist()
            assert now.length[row] == len(context) - 1
            assert now.bonus[row] == context[-1]
            last = batch.sizes.history - 1
            assert now.history[row, : len(context)][:last].tolist() == context[:last]
