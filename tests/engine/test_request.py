"""What a request takes of the tokens it is offered, and what its statistics say of them."""

from __future__ import annotations

import pytest

from fledge.engine import Completion, PhaseSeconds, SamplingParams
from fledge.engine.logprobs import TokenLogprob
from fledge.engine.request import Request
from fledge.engine.stops import StopWatch
from tests.tiny import make_tokenizer

TOKENIZER = make_tokenizer()
TURN_END = 9


def request(stop: str | None = None, **params: object) -> Request:
    """Five tokens of prompt; token 9 ends a turn, and so do those of stop_token_ids."""
    given = SamplingParams(**params)  # type: ignore[arg-type]
    watch = None if stop is None else StopWatch(TOKENIZER, [stop])
    return Request([1, 2, 3, 4, 5], given, 0, frozenset({TURN_END, *given.stop_token_ids}), True, None, watch)


def completed(one: Request) -> Completion:
    return one.complete("", PhaseSeconds())


def test_an_answer_takes_max_tokens_and_not_one_more() -> None:
    one = request(max_tokens=4)
    assert one.emit([11, 12], [0, 1]).token_ids == [11, 12]
    assert one.finish_reason is None
    assert one.emit([13, 14, 15], [0, 1, 2]).token_ids == [13, 14]
    assert (one.finish_reason, one.stop_reason, one.output_ids) == ("length", None, [11, 12, 13, 14])
    assert one.text_ids == [11, 12, 13, 14]
    assert completed(one).stats.token_origins == [0, 1, 0, 1]


@pytest.mark.parametrize(("token", "reason"), [(TURN_END, None), (7, 7)])
def test_a_stop_token_ends_it_and_is_no_part_of_its_text(token: int, reason: int | None) -> None:
    one = request(max_tokens=3, stop_token_ids=[7])
    assert one.emit([11, 12, token, 13], [0, 1, 2, 3]).token_ids == [11, 12, token]
    assert (one.finish_reason, one.stop_reason) == ("stop", reason)  # not "length", which it has just come to
    assert one.text_ids == [11, 12]


def test_the_tokens_of_a_stop_string_are_the_answers() -> None:
    ids = TOKENIZER.encode("one two three", add_special_tokens=False)
    one = request(stop="two", max_tokens=100)
    taken = one.emit([*ids, *ids], [0] * 2 * len(ids)).token_ids
    assert (one.finish_reason, one.stop_reason) == ("stop", "two")
    assert one.text_ids == one.output_ids == taken
    assert TOKENIZER.decode(taken).startswith("one two")
    assert len(taken) < len(ids)


def test_as_many_likely_tokens_are_reported_as_the_request_wants() -> None:
    likely = [(20, -0.5), (21, -1.0), (22, -1.5)]  # a neighbour in the batch wants three
    entries = [TokenLogprob(token, -1.0, likely) for token in (11, 12, 13)]
    one = request(max_tokens=2, logprobs=2)
    told = one.emit([11, 12, 13], [0, 0, 0], entries).logprobs
    assert told == one.logprobs == [TokenLogprob(token, -1.0, likely[:2]) for token in (11, 12)]
    assert request(max_tokens=2).emit([11], [0], entries[:1]).logprobs is None


def test_times_are_counted_from_where_they_begin() -> None:
    one = request()
    one.emit([11, 12, 13, 14, 15], [0] * 5)
    one.submitted, one.first_token_at, one.last_token_at = 10.0, 10.5, 12.5
    stats = completed(one).stats
    assert (stats.ttft_ms, stats.e2e_ms, stats.tpot_ms) == (500.0, 2500.0, 500.0)
    single = request()
    single.emit([11], [0])
    assert completed(single).stats.tpot_ms == 0.0


def test_tau_counts_what_rounds_emitted_and_depths_the_rounds_that_drafted() -> None:
    one = request()
    one.emit([11], [0])  # the prompt's own forward is no round
    for origins, drafted in (([1, 2, 0], True), ([0], False), ([1, 0], True), ([0], True)):
        one.emit([11] * len(origins), origins)
        one.count_round(origins, drafted)
    stats = completed(one).stats
    assert (stats.tokens, stats.rounds, stats.tau) == (8, 4, 7 / 4)
    assert (stats.drafted_rounds, stats.accepted_by_depth) == (3, [2, 1])
    assert completed(request()).stats.tau == 1.0


def test_a_context_is_prompt_and_answer_wherever_it_begins_and_ends() -> None:
    one = request()
    one.emit([11, 12, 13], [0] * 3)
    whole = [1, 2, 3, 4, 5, 11, 12, 13]
    assert one.length == 8
    for start in range(8):
        for stop in range(start, 9):
            assert one.context(start, stop) == whole[start:stop]


def test_what_will_end_in_flight_for_certain_is_known() -> None:
    one = request(max_tokens=4)
    one.emit([11], [0])
    one.take_off(1, 3)
    one.take_off(1, 3)
    assert not one.ends_in_flight  # three of four for certain
    one.take_off(1, 3)
    assert one.ends_in_flight
    one.land(1, 3)
    assert (one.ends_in_flight, one.flying_least, one.flying_most) == (False, 2, 6)
