"""What the head carries stays with its request, and positions that it left out are read before it drafts again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fledge.draft.race import Draws
from fledge.draft.runner import DraftOutput
from fledge.engine import SamplingParams
from fledge.engine.batch import BatchSizes, RunningBatch
from fledge.engine.drafters.drafter import Prompts
from fledge.engine.drafters.eagle import Eagle, HeadSizes
from fledge.engine.prefill import PrefillChunk, chunk_rows, following_tokens
from fledge.engine.request import Request
from fledge.engine.selection import SelectionRows
from fledge.target.batch import PADDING_PAGE, ForwardBatch
from tests.engine.conftest import come_and_go

PAGE, KEPT, ROWS, PAGES = 4, 8, 6, 10  # KEPT: positions kept for a head that is behind
TOPK, HIDDEN, FEATURES = 3, 5, 6
CPU = torch.device("cpu")


class Call(NamedTuple):
    """A forward of the head."""

    rows: ForwardBatch
    features: Tensor | None


class RecordingHead:
    """A `HeadRunner` that computes nothing: it notes what it is called with, and puts out its calls' numbers."""

    def __init__(self) -> None:
        self.page_size = PAGE
        self.config = SimpleNamespace(hidden_size=HIDDEN, draft_vocab_size=50)
        self.calls: list[Call] = []

    def allocate_kv(self, pages: int) -> Tensor:
        return torch.zeros(pages)

    def kv_bytes_per_token(self) -> int:
        return 1

    def forward(
        self,
        batch: ForwardBatch,
        kv: Tensor,
        *,
        features: Tensor | None,
        hidden: Tensor | None,
        k: int,
        draws: Draws | None = None,
    ) -> DraftOutput:
        self.calls.append(Call(batch, features))
        rows = len(batch.token_ids) if batch.logit_rows is None else len(batch.logit_rows)
        return output(len(self.calls), rows, k)


def output(number: int, rows: int = 1, k: int = TOPK) -> DraftOutput:
    """What the head puts out, told apart by a number."""
    value = float(number)
    return DraftOutput(
        torch.full((rows, k), number), torch.full((rows, k), -value), torch.full((rows, HIDDEN), value)
    )


class Running(NamedTuple):
    """A batch with a head."""

    batch: RunningBatch
    eagle: Eagle
    head: RecordingHead


def nobody() -> Running:
    sizes = HeadSizes(
        rows=ROWS, pages=PAGES, pool=100, topk=TOPK, features=FEATURES, pending=KEPT, last_position=999
    )
    head, selection = RecordingHead(), SelectionRows(ROWS, 50, CPU)
    eagle = Eagle(head, sizes, selection, torch.float32, CPU)  # type: ignore[arg-type]
    return Running(RunningBatch(BatchSizes(ROWS, PAGES), CPU, [selection, eagle]), eagle, head)


def join(running: Running, length: int, *, head_start: int = 0, left_out: int = 0, read: int = 0) -> Request:
    """A request whose prompt of so many tokens is done: token p + 1 is p, and so are the features of position p.

    The head has put out `read`, or it has left out the last positions.
    """
    request = Request([0, *range(length - 1)], SamplingParams(), length, frozenset(), True, None)
    request.draft.start = head_start
    rng = random.Random(length)
    pages = tuple(rng.randrange(1, 99) for _ in range(PAGES))
    bonus = torch.tensor(length - 1)
    running.batch.append(request, pages, bonus)
    chunk = PrefillChunk(request, length - (left_out or length), length, pages)
    features = torch.arange(chunk.start, length)[:, None].expand(-1, FEATURES).float()
    following = following_tokens([chunk], bonus[None], CPU)
    prompts = Prompts(
        chunk_rows([chunk], CPU), following, features, [head_start], [length], [length - chunk.start]
    )
    running.eagle.join(prompts, [0], running.batch.size - 1, None if left_out else output(read))
    return request


def state(running: Running, row: int) -> list[object]:
    """All that the head carries for a request."""
    pending, restarted = running.eagle.behind(running.batch.size)
    carried = running.eagle.view(running.batch.size)[: None if pending[row] else -2]
    return [*(tensor[row].tolist() for tensor in carried), pending[row], restarted[row]]


def catch_up(running: Running) -> Call | None:
    """The forward in which the head catches up."""
    calls = running.head.calls
    before = len(calls)
    running.eagle.catch_up(running.batch)
    assert len(calls) <= before + 1
    return calls[-1] if len(calls) > before else None


@pytest.mark.parametrize("seed", range(12))
def test_whoever_leaves_the_others_keep_what_is_theirs(seed: int) -> None:
    rng, running = random.Random(seed), nobody()
    batch, lengths = running.batch, iter(rng.sample(range(9, 39), 20))

    def joins() -> Request:
        length, start = next(lengths), rng.choice([0, 0, PAGE])
        behind = rng.choice([0, rng.randrange(1, 10)])
        return join(running, length, head_start=start, left_out=behind, read=length)

    for requests in come_and_go(rng, batch, joins, partial(state, running)):
        now, all_pages = running.eagle.view(batch.size), batch.view().page_table.tolist()
        for request, pages, own in zip(requests, now.head_pages.tolist(), all_pages, strict=True):
            skipped = request.draft.start // PAGE
            assert pages == [*own[skipped:], *[PADDING_PAGE] * skipped]


def test_a_request_inherits_nothing_from_who_had_its_row_before() -> None:
    fresh, used = nobody(), nobody()
    join(used, 30, head_start=2 * PAGE, left_out=KEPT + 1)
    assert used.eagle.restarted[0]
    used.batch.remove(0)
    for running in (fresh, used):
        join(running, 12, read=7)
        assert running.eagle.behind(1) == ([0], [False])
    assert state(used, 0) == state(fresh, 0)
    assert catch_up(used) is None


def test_one_that_does_not_speculate_has_nothing_to_catch_up_on_in_a_used_row() -> None:
    running = nobody()
    join(running, 30, left_out=KEPT + 1)
    running.batch.remove(0)
    alone = Request([3] * 9, SamplingParams(), 0, frozenset(), False, None)
    running.batch.append(alone, [1, 2, 3], torch.tensor(5))
    assert running.eagle.behind(1) == ([0], [False])
    assert catch_up(running) is None


def test_a_batch_that_was_cleared_leaves_nothing_to_catch_up_on() -> None:
    running = nobody()
    join(running, 30, left_out=KEPT + 1)
    running.batch.clear()
    assert running.eagle.behind(ROWS)[0] == [0] * ROWS


def carried_on(running: Running, row: int, rows: ForwardBatch, number: int = 0) -> None:
    """The forward's request `number` continues the head's KV of a row: behind what is there, on its pages."""
    state = running.eagle.view(running.batch.size)
    first = int(rows.positions[rows.row_start[number]])
    assert int(rows.prefix_length[number]) == first - int(state.head_start[row])
    assert rows.page_table[number].tolist() == state.head_pages[row].tolist()


@pytest.mark.parametrize("count", [1, KEPT - 1, KEPT])
@pytest.mark.parametrize("head_start", [0, PAGE])
def test_a_head_catches_up_on_all_positions_that_were_kept(count: int, head_start: int) -> None:
    running = nobody()
    join(running, 9, read=8)
    join(running, 21, left_out=count, head_start=head_start)
    other = state(running, 0)
    call = catch_up(running)
    assert call is not None
    assert call.features is not None
    assert call.rows.positions.tolist() == list(range(21 - count, 21))
    assert call.rows.token_ids.tolist() == call.features[:, 0].tolist() == call.rows.positions.tolist()
    assert call.rows.row_start.tolist() == [0, count]
    assert call.rows.logit_rows is not None
    assert call.rows.logit_rows.tolist() == [count - 1]
    carried_on(running, 1, call.rows)
    assert running.eagle.behind(2) == ([0, 0], [False, head_start > 0])
    now = running.eagle.view(2)
    assert (now.first_token_ids[1].tolist(), now.hidden[1].tolist()) == ([1] * TOPK, [1.0] * HIDDEN)
    assert state(running, 0) == other
    assert catch_up(running) is None


@pytest.mark.parametrize("rounds", [1, KEPT - 1, KEPT, KEPT + 3])
def test_a_head_catches_up_on_what_plain_rounds_passed(rounds: int) -> None:
    """As far as it was kept."""
    running, lengths = nobody(), (9, 18)
    batch, eagle, _ = running
    for length in lengths:
        join(running, length)
    for _ in range(rounds):
        tokens = batch.view().length.long()
        eagle.rest(batch, tokens, tokens[:, None].expand(-1, FEATURES).float())
        batch.advance(torch.ones_like(tokens), tokens[:, None])
        eagle.fell_behind([1, 1])
    call = catch_up(running)
    assert call is not None
    assert call.features is not None
    expected = [list(range(length, length + rounds)) for length in lengths]
    if rounds > KEPT:
        expected = [[p for p in some if p >= -(-(some[-1] + 1 - KEPT) // PAGE) * PAGE] for some in expected]
    both = [*expected[0], *expected[1]]
    assert call.rows.positions.tolist() == call.rows.token_ids.tolist() == both
    assert call.features[:, 0].tolist() == both
    assert call.rows.row_start.tolist() == [0, len(expected[0]), len(both)]
    for row in range(2):
        carried_on(running, row, call.rows, row)
    assert eagle.behind(2) == ([0, 0], [rounds > KEPT] * 2)


@pytest.mark.parametrize("length", range(20, 28))
@pytest.mark.parametrize("head_start", [0, 2 * PAGE])
def test_a_head_too_far_behind_begins_again_at_the_first_page_border_that_was_kept(
    length: int, head_start: int
) -> None:
    running = nobody()
    join(running, 10)
    join(running, length, left_out=KEPT + 1, head_start=head_start)
    call = catch_up(running)
    first = next(p for p in range(length - KEPT, length) if p % PAGE == 0)
    assert call is not None
    assert call.rows.positions.tolist() == call.rows.token_ids.tolist() == list(range(first, length))
    assert call.rows.row_start.tolist() == [0, length - first]
    assert call.rows.prefix_length.tolist() == [0]
    eagle = running.eagle
    assert eagle.restarted[:2] == [False, True]
    now = eagle.view(2)
    assert now.head_start.tolist() == [0, first]
    page = first // PAGE
    expected = [*running.batch.view().page_table[1, page:].tolist(), *[PADDING_PAGE] * page]
    assert now.head_pages[1].tolist() == call.rows.page_table[0].tolist() == expected


def test_positions_left_out_add_up_until_the_head_has_run() -> None:
    running = nobody()
    eagle = running.eagle
    for length in (9, 12, 15):
        join(running, length)
    eagle.fell_behind([1, 1, 1])
    eagle.fell_behind([2, 3, 1])
    assert eagle.behind(3) == ([3, 4, 2], [False] * 3)
    join(running, 18, read=5)
    assert eagle.behind(4)[0] == [3, 4, 2, 0]
    call = catch_up(running)
    assert call is not None
    assert call.rows.row_start.diff().tolist() == [3, 4, 2]
    assert eagle.behind(4)[0] == [0, 0, 0, 0]


@pytest.mark.parametrize("head_start", [0, 2 * PAGE])
def test_a_request_gets_more_pages_wherever_its_heads_history_begins(head_start: int) -> None:
    batch, eagle, _ = nobody()
    for _ in range(2):
        request = Request(list(range(14)), SamplingParams(), 0, frozenset(), True, None)
        request.draft.start = head_start
        batch.append(request, [11, 12, 13, 14], torch.tensor(3))
    batch.enter_pages(1, 4, [15, 16])
    now, first = eagle.view(2), head_start // PAGE
    known: Sequence[list[int]] = ([11, 12, 13, 14], [11, 12, 13, 14, 15, 16])
    for pages, all_pages, own in zip(
        now.head_pages.tolist(), batch.view().page_table.tolist(), known, strict=True
    ):
        missing = [PADDING_PAGE] * (PAGES - len(own))
        assert all_pages == [*own, *missing]
        assert pages == [*own[first:], *missing, *[PADDING_PAGE] * first]
