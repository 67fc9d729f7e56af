"""An answer ends before its stop string, wherever token, piece and run borders fall, and nothing behind it leaks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.engine import Completion, Engine, StopMatcher, TreeShape
from fledge.engine.stops import StopWatch
from fledge.target.target import Target
from tests.engine.conftest import scripted_head
from tests.tiny import make_tokenizer

ON_BOTH_BACKENDS = True

SHAPE = TreeShape(4, 2, 9)
TOKENIZER = make_tokenizer()


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    data=st.data(),
)
def test_pieces_of_any_size_give_the_text_before_the_stop(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    matcher, shown, rest = StopMatcher(stops), "", text
    while rest and matcher.matched is None:
        size = data.draw(st.integers(1, len(rest)))
        fed = text[: len(text) - len(rest) + size]
        shown += matcher.add(rest[:size])
        rest = rest[size:]
        found = [fed.find(stop) for stop in stops if stop in fed]
        assert bool(found) == (matcher.matched is not None)
        if found:
            assert shown == fed[: min(found)]
        else:
            assert fed.startswith(shown)
            held = fed[len(shown) :]
            assert not held or any(stop.startswith(held) for stop in stops)
    if matcher.matched is None:
        assert shown + matcher.add("", last=True) == text
    else:
        assert matcher.add("more", last=True) == ""


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 4), min_size=30, max_size=30),
    early=st.integers(0, 8),
)
def test_a_stop_may_begin_but_not_end_in_early_pieces(
    text: str, stops: list[str], sizes: list[int], early: int
) -> None:
    matcher, shown, fed = StopMatcher(stops), "", 0
    for number, size in enumerate(sizes):
        shown += matcher.add(text[fed : fed + size], early=number < early)
        fed = min(fed + size, len(text))
        if matcher.matched is not None:
            break
    else:
        shown += matcher.add("", last=True)
    free = min(sum(sizes[:early]), len(text))
    found = [
        at
        for at in range(fed)
        for stop in stops
        if text.startswith(stop, at) and free < at + len(stop) <= fed
    ]
    assert bool(found) == (matcher.matched is not None)
    assert shown == text[: min(found, default=None)]


def test_stop_strings_are_not_looked_for_before_min_tokens(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    whole = plain.generate(prompts[:6], max_tokens=24, ignore_eos=True)
    engine = Engine(target, scripted_head(target, whole, 1.0, best_first=True), tree=SHAPE)
    for one in whole:
        stop, least = _text(target, one.token_ids[4:6]), 9
        for some in (plain, engine):
            got = answers_with_stops(some, one, stop, min_tokens=least)
            count = len(got.token_ids)
            assert got.token_ids == one.token_ids[:count]
            assert count > least
            assert (count < 24) == (got.stop_reason == stop)
            if one.text.count(stop) == 1:
                assert (got.text, got.finish_reason) == (one.text, "length")
            assert answers_with_stops(some, one, stop, min_tokens=24).text == one.text


LETTERS = {letter: TOKENIZER.encode(letter, add_special_tokens=False) for letter in "abcd"}
LEAD = TOKENIZER.encode("é", add_special_tokens=False)[:1]  # half a character


def read_to_the_end(text: str, stop: str, least: int, *, cut: bool = False) -> tuple[int | None, str]:
    """The token of a text's letters at which it came to a stop, counted from 1 (0: at its end), and what is shown."""
    watch = StopWatch(TOKENIZER, [stop], least)
    tokens = [token for letter in text for token in LETTERS[letter]] + (LEAD if cut else [])
    assert len(tokens) == len(text) + cut
    for number, token in enumerate(tokens, start=1):
        if watch.add(token):
            return number, watch.text
    return (0 if watch.finish() else None), watch.text


@pytest.mark.parametrize(
    ("stop", "least", "at", "shown"),
    [
        ("c", 0, 3, "ab"),
        ("c", 2, 3, "ab"),  # two tokens came before it
        ("c", 3, 7, "abcdab"),  # the first c is the third token
        ("c", 6, 7, "abcdab"),
        ("c", 7, None, "abcdabcd"),
        ("bcd", 3, 4, "a"),  # it begins before, but ends behind the least
        ("bcd", 4, 8, "abcda"),
        ("bcd", 8, None, "abcdabcd"),
    ],
)
def test_a_stop_string_ends_right_behind_min_tokens_and_not_before(
    stop: str, least: int, at: int | None, shown: str
) -> None:
    assert read_to_the_end("abcdabcd", stop, least) == (at, shown)


@pytest.mark.parametrize(("least", "at"), [(2, 0), (3, None)])
def test_what_is_given_out_at_the_end_belongs_to_the_last_token(least: int, at: int | None) -> None:
    found, shown = read_to_the_end("ab", "�", least, cut=True)
    assert (found, shown) == (at, "ab" if at == 0 else "ab�")


def test_the_stop_that_begins_first_counts_and_then_the_one_given_first() -> None:
    matcher = StopMatcher(["cd", "bcd", "bc"])
    assert matcher.add("abcd") == "a"
    assert matcher.matched == "bcd"


def answers_with_stops(engine: Engine, whole: Completion, stop: str, **options: object) -> Completion:
    return engine.generate(
        [whole.prompt_token_ids],
        max_tokens=24,
        ignore_eos=True,
        stop=stop,
        **options,  # type: ignore[arg-type]
    )[0]


def test_a_stop_string_inside_an_accepted_run_ends_the_answer_at_its_last_token(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    full = plain.generate(prompts, max_tokens=24, ignore_eos=True)
    engine = Engine(target, scripted_head(target, full, 1.0, best_first=True), tree=SHAPE)
    rng, drafted, across = random.Random(0), 0, 0
    for whole in full:
        stop = "�"
        while "�" in stop:  # it stands for bytes that may yet become a character
            start = rng.randrange(3, len(whole.text) - 6)
            stop = whole.text[start : start + rng.randrange(1, 6)]
        got = answers_with_stops(engine, whole, stop)
        assert got == _without_stats(answers_with_stops(plain, whole, stop), got)
        assert got.text == whole.text[: whole.text.find(stop)]
        assert (got.finish_reason, got.stop_reason) == ("stop", stop)
        count = len(got.token_ids)
        assert got.token_ids == whole.token_ids[:count]
        assert stop in _text(target, got.token_ids)
        assert stop not in _text(target, got.token_ids[:-1])
        assert got.stats.tokens == len(got.stats.token_origins) == count
        drafted += got.stats.token_origins[-1] > 0
        across += len(_text(target, got.token_ids[-1:])) < len(stop)
    assert drafted > len(full) // 2  # the stop came with an accepted draft, with more accepted behind it
    assert across  # some stops began in an earlier token


def test_streams_hold_back_what_may_become_a_stop(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    full = plain.generate(prompts[:8], max_tokens=24, ignore_eos=True)
    engine = Engine(target, scripted_head(target, full, 0.7), tree=SHAPE)
    for whole in full:
        stop = whole.text[8:12]
        for stops in ([stop, "never there"], [whole.text[2:9] + "never"]):
            pieces = list(
                engine.stream_sync(whole.prompt_token_ids, max_tokens=24, ignore_eos=True, stop=stops)
            )
            last = pieces[-1].completion
            assert last is not None
            assert "".join(piece.text for piece in pieces) == last.text
            assert [token for piece in pieces for token in piece.token_ids] == last.token_ids
            if stops[0] == stop:
                assert last.text == whole.text[: whole.text.find(stop)]
            else:
                assert (last.text, last.finish_reason, last.stop_reason) == (whole.text, "length", None)


def test_a_stop_token_comes_first_if_it_comes_earlier_and_its_text_is_left_out(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    whole = plain.generate(prompts[:1], max_tokens=24, ignore_eos=True)[0]
    token = next(t for n, t in enumerate(whole.token_ids) if n > 4 and t not in whole.token_ids[:n])
    end = whole.token_ids.index(token) + 1
    got = plain.generate(
        prompts[:1], max_tokens=24, ignore_eos=True, stop_token_ids=[token], stop=["never there"]
    )[0]
    assert got.token_ids == whole.token_ids[:end]
    assert got.text == _text(target, whole.token_ids[: end - 1])
    assert (got.finish_reason, got.stop_reason) == ("stop", token)
    plainly = plain.generate(prompts[:1], max_tokens=24, ignore_eos=True, stop_token_ids=[token])[0]
    assert plainly.text == got.text
    pieces = plain.stream_sync(prompts[0], max_tokens=24, ignore_eos=True, stop_token_ids=[token])
    assert "".join(piece.text for piece in pieces) == got.text


@pytest.mark.parametrize("count", range(1, 8))
def test_the_length_cap_gives_out_what_was_held_back(
    target: Target, plain: Engine, prompts: list[list[int]], count: int
) -> None:
    whole = plain.generate(prompts[3:4], max_tokens=count, ignore_eos=True)[0]
    got = plain.generate(prompts[3:4], max_tokens=count, ignore_eos=True, stop=whole.text + "!")[0]
    assert (got.text, got.finish_reason) == (whole.text, "length")


def test_a_watch_reads_characters_split_over_tokens(target: Target) -> None:
    ids = target.tokenizer.encode("the bird é flew", add_special_tokens=False)
    watch = StopWatch(target.tokenizer, ["é f"])
    read = [watch.add(token) for token in ids]
    assert read.index(True) < len(ids)
    assert watch.text == "the bird "


def _text(target: Target, ids: list[int]) -> str:
    return target.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _without_stats(answer: Completion, other: Completion) -> Completion:
    return Completion(**{**answer.__dict__, "stats": other.stats})
