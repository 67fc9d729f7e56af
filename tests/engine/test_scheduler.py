"""Who is admitted, who prefills, and who waits in which order."""

from __future__ import annotations

from itertools import pairwise

import torch

from fledge.engine import SamplingParams
from fledge.engine.batch import BatchSizes, RunningBatch
from fledge.engine.options import EngineOptions
from fledge.engine.pool import PagePool
from fledge.engine.prefix import PrefixCache
from fledge.engine.request import Request
from fledge.engine.scheduler import Scheduler

PAGE = 16


def scheduler(
    pages: int, *, prefill_rows: int = 1000, busy_rows: int = 1000, shares: bool = False, fair: bool = True
) -> Scheduler:
    """Of a pool of so many usable pages; a round may write one page's length beyond what is committed."""
    pool = PagePool(pages + 1, PAGE)
    batch = RunningBatch(BatchSizes(8, 20), torch.device("cpu"))
    options = EngineOptions(
        max_batch=8, prefill_rows=prefill_rows, busy_prefill_rows=busy_rows, fair_prefill=fair
    )
    return Scheduler(
        pool, batch, options, window=PAGE, ahead=0, prefix=PrefixCache(pool, heads=False) if shares else None,
        rereads=lambda unseen, left, requests: False, forget=lambda pages: None,
    )  # fmt: skip


def ask(made: Scheduler, *prompts: list[int]) -> list[Request]:
    """Queue requests with these prompts; none of them speculates."""
    requests = [Request(prompt, SamplingParams(), 0, frozenset(), False, None) for prompt in prompts]
    for number, request in enumerate(requests):
        request.id = number
    made.waiting.extend(requests)
    return requests


def tokens(count: int, first: int = 0) -> list[int]:
    return list(range(first, first + count))


def prefill(made: Scheduler) -> list[tuple[int, int, int]]:
    """The next forward: of which request which tokens."""
    chunks = made.schedule_prefill()
    for chunk in chunks:
        chunk.request.prefilled = chunk.stop
    return [(chunk.request.id, chunk.start, chunk.stop) for chunk in chunks]


def start(made: Scheduler, request: Request) -> None:
    """A request's prompt is done."""
    made.start_running(request)
    made.batch.append(request, request.pages, torch.tensor(0))


def test_a_newcomer_is_admitted_if_those_before_it_keep_room_for_a_round() -> None:
    for pages, admitted in (
        (5, 1),
        (6, 1),
        (7, 2),
    ):  # 3 for each prompt and its round, and 1 for the first's next
        made = scheduler(pages)
        ask(made, tokens(2 * PAGE), tokens(2 * PAGE, 9))
        assert len(made.schedule_prefill()) == admitted
        assert (len(made.prefilling), len(made.waiting)) == (admitted, 2 - admitted)
        made.check()


def test_a_running_request_keeps_its_room_too() -> None:
    for pages, admitted in ((6, 0), (7, 1)):
        made = scheduler(pages)
        (first,) = ask(made, tokens(2 * PAGE))
        prefill(made)
        start(made, first)
        ask(made, tokens(2 * PAGE, 9))
        assert len(made.schedule_prefill()) == admitted


def test_one_forward_holds_the_oldest_prompts_up_to_its_rows() -> None:
    made = scheduler(20, prefill_rows=50)
    ask(made, tokens(30), tokens(30, 40), tokens(30, 80))
    assert prefill(made) == [(0, 0, 30), (1, 0, 20)]
    assert prefill(made) == [(1, 20, 30), (2, 0, 30)]
    assert prefill(made) == []


def test_a_short_prompt_waits_for_one_piece_of_a_long_one_however_many_there_are() -> None:
    made = scheduler(200, prefill_rows=50)
    ask(made, *(tokens(250, 1000 * n) for n in range(6)))
    assert prefill(made) == [(0, 0, 50)]
    for number in (6, 7):
        (short,) = ask(made, tokens(20, 1000 * number))
        short.id = number
        assert prefill(made) == [(number, 0, 20)]  # no long prompt's rows beside it
        made.prefilling.remove(short)
        assert prefill(made)[0][0] == 0  # whose turn it was


def test_a_short_prompt_does_not_share_a_forward_with_others() -> None:
    made = scheduler(200, prefill_rows=50)
    ask(made, tokens(30), tokens(30, 100), tokens(5, 200))
    assert prefill(made) == [(2, 0, 5)]
    assert prefill(made) == [(0, 0, 30), (1, 0, 20)]


def test_short_prompts_never_keep_the_oldest_waiting_for_more_than_one_forward() -> None:
    made = scheduler(400, prefill_rows=50)
    ask(made, tokens(200), tokens(120, 1000))
    forwards = []
    for number in range(2, 20):
        (short,) = ask(made, tokens(45, 1000 * number))
        short.id = number
        forwards.append(prefill(made))
        for request in [one for one in made.prefilling if one.prefilled == one.prefill_length]:
            made.prefilling.remove(request)
            made.pool.release(request.pages)
    oldest = [any(request == 0 for request, _, _ in chunks) for chunks in forwards[:9]]
    assert all(one or other for one, other in pairwise(oldest[:7]))
    done = {request for chunks in forwards for request, _, stop in chunks if stop == (200, 120)[request == 1]}
    assert {0, 1} <= done


def test_prompts_run_in_the_order_in_which_they_came_if_that_is_wanted() -> None:
    made = scheduler(200, prefill_rows=50, fair=False)
    ask(made, tokens(120), tokens(20, 1000))
    assert [prefill(made) for _ in range(3)] == [[(0, 0, 50)], [(0, 50, 100)], [(0, 100, 120), (1, 0, 20)]]


def test_while_others_decode_a_forward_holds_fewer() -> None:
    made = scheduler(20, prefill_rows=50, busy_rows=10)
    first, _ = ask(made, tokens(50), tokens(25, 60))
    assert prefill(made) == [(0, 0, 50)]
    start(made, first)
    assert [prefill(made) for _ in range(3)] == [[(1, 0, 10)], [(1, 10, 20)], [(1, 20, 25)]]


def test_those_who_wait_for_what_another_is_writing_keep_their_places() -> None:
    made, common = scheduler(60, shares=True), tokens(5 * PAGE)
    ask(made, [*common, 1, 2], [*common, 3], [*common, 4], [*common, 5])
    assert prefill(made) == [(0, 0, 5 * PAGE + 2)]
    assert [request.id for request in made.waiting] == [1, 2, 3]


def test_a_full_pool_preempts_the_youngest_who_is_the_next_to_come_back() -> None:
    made = scheduler(7)
    first, second = ask(made, tokens(2 * PAGE), tokens(2 * PAGE, 9))
    prefill(made)
    for request in (first, second):
        start(made, request)
    (late,) = ask(made, tokens(5, 90))
    late.id = 2
    first.emit(tokens(PAGE + 2), [0] * (PAGE + 2))  # it needs two pages more, and one is free
    assert not made.schedule_decode(preempt=False)
    assert made.schedule_decode(preempt=True)
    assert made.running == [first]
    assert [request.id for request in made.waiting] == [1, 2]
    assert (made.preemptions, second.preemptions, second.pages) == (1, 1, [])
    made.check()
