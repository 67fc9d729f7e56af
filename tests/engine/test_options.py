"""Penalties, bias, min_tokens and log probabilities: the same with and without speculation, in any batch."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from fledge.engine import Completion, Engine, SamplingParams, TokenLogprob, TreeShape
from fledge.engine.planner import FixedPlanner
from fledge.target.target import Target
from tests.engine.conftest import Uneven, scripted_head, serve
from tests.engine.exact import raw_logits

ON_BOTH_BACKENDS = True

OPTIONS: list[dict[str, object]] = [
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.9, "temperature": 0.7},
    {"presence_penalty": 1.2, "frequency_penalty": 0.8, "temperature": 1.0},
    {"frequency_penalty": -1.5},
    {"logit_bias": {40: 7.0, 41: 6.0, 42: 6.5}, "frequency_penalty": 0.6, "temperature": 0.9},
    {"logit_bias": {40: 9.0, 41: 9.0}, "temperature": 0.8, "top_p": 0.9, "logprobs": 0},
    {"logprobs": 5},
    {"logprobs": 2, "repetition_penalty": 1.3, "temperature": 1.0, "top_k": 30, "min_p": 0.02},
    {},
]
SHAPES = [TreeShape(3, 1, 4), TreeShape(5, 4, 16)]


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        pytest.param(options, shape, marks=() if (number + place) % 2 else pytest.mark.slow)
        for number, options in enumerate(OPTIONS)
        for place, shape in enumerate(SHAPES)
    ],
    ids=str,
)
def test_output_equals_plain_output_for_the_same_seed(
    target: Target, plain: Engine, prompts: list[list[int]], shape: TreeShape, options: dict[str, object]
) -> None:
    wanted = {"max_tokens": 24, "seed": 7, "ignore_eos": True, **options}
    expected = plain.generate(prompts[:8], **wanted)  # type: ignore[arg-type]
    engine = Engine(target, scripted_head(target, expected, 0.8), max_batch=5, tree=shape)
    answers = engine.generate(prompts[:8], **wanted)  # type: ignore[arg-type]
    for answer, plainly in zip(answers, expected, strict=True):
        assert answer.token_ids == plainly.token_ids
        assert answer.text == plainly.text
        same_logprobs(answer.logprobs, plainly.logprobs)
    assert sum(answer.stats.tau for answer in answers) / len(answers) > 1.4


@pytest.mark.parametrize(
    ("sampling", "shape"),
    [
        pytest.param(sampling, shape, marks=() if (number + place) % 2 else pytest.mark.slow)
        for number, sampling in enumerate(
            [{}, {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2}]
        )
        for place, shape in enumerate([*SHAPES, TreeShape(2, 2, 10, lookup=7)])
    ],
    ids=str,
)
def test_nothing_ends_an_answer_before_min_tokens(
    target: Target,
    plain: Engine,
    prompts: list[list[int]],
    shape: TreeShape,
    sampling: dict[str, object],
) -> None:
    early = {"max_tokens": 24, "seed": 7, "logprobs": 2, **sampling}
    free = plain.generate(prompts[:8], **early)  # type: ignore[arg-type]
    ends = sorted({token for answer in free for token in answer.token_ids[1:12:3]})
    turn_ends = target.chat.turn_end_ids
    wanted = {**early, "stop_token_ids": ends, "min_tokens": 6}
    expected = plain.generate(prompts[:8], **wanted)  # type: ignore[arg-type]
    for answer in expected:
        first = answer.token_ids[:6]
        assert len(first) == 6
        assert not {*first} & {*ends, *turn_ends}
        if not sampling:
            for place, token in enumerate(first):
                logits = raw_logits(target, [*answer.prompt_token_ids, *first[:place]])
                allowed = {*range(len(logits))} - {*ends} - turn_ends
                assert token == max(allowed, key=lambda one: logits[one])
        stopped = answer.token_ids[-1] in {*ends, *turn_ends}
        assert answer.finish_reason == ("stop" if stopped else "length")
    assert any(answer.finish_reason == "stop" for answer in expected)
    engine = Engine(target, scripted_head(target, [*free, *expected], 0.8), max_batch=5, tree=shape)
    for answer, plainly in zip(engine.generate(prompts[:8], **wanted), expected, strict=True):  # type: ignore[arg-type]
        assert answer.token_ids == plainly.token_ids
        assert (answer.finish_reason, answer.stop_reason) == (plainly.finish_reason, plainly.stop_reason)
        same_logprobs(answer.logprobs, plainly.logprobs)
    assert engine.stats().tau > 1.1


def test_penalties_do_what_they_are_for(plain: Engine, prompts: list[list[int]]) -> None:
    biased = {"max_tokens": 20, "ignore_eos": True, "logit_bias": {40: 12.0, 41: 11.5}}
    stuck = plain.generate(prompts[:3], **biased)  # type: ignore[arg-type]
    assert all(set(answer.token_ids) <= {40, 41} for answer in stuck)
    for penalty in ({"repetition_penalty": 3.0}, {"presence_penalty": 2.0, "frequency_penalty": 2.0}):
        freed = plain.generate(prompts[:3], **biased, **penalty)  # type: ignore[arg-type]
        assert all(len(set(answer.token_ids)) > 3 for answer in freed)


@pytest.fixture(scope="module")
def mixed(plain: Engine, prompts: list[list[int]]) -> tuple[list[SamplingParams], list[Completion]]:
    """Options of all kinds, and plain decode's answers to the prompts one by one."""
    rng = random.Random(4)
    wanted = [
        SamplingParams(max_tokens=rng.randrange(5, 40), seed=n, ignore_eos=True, **OPTIONS[n % len(OPTIONS)])  # type: ignore[arg-type]
        for n in range(len(prompts))
    ]
    return wanted, [
        serve(plain, [prompt], [params])[0] for prompt, params in zip(prompts, wanted, strict=True)
    ]


def test_mixed_options_share_batches_and_survive_preemption(
    target: Target, mixed: tuple[list[SamplingParams], list[Completion]], prompts: list[list[int]]
) -> None:
    wanted, alone = mixed
    head = scripted_head(target, alone, 0.7)
    head.strict = False
    engine = Engine(target, head, max_batch=6, tree=TreeShape(4, 3, 12), kv_tokens=160, max_context=100)
    answers = serve(engine, prompts, wanted)
    assert engine.stats().preemptions > 0
    for answer, expected, params in zip(answers, alone, wanted, strict=True):
        assert answer.token_ids == expected.token_ids
        assert (answer.logprobs is None) == (params.logprobs is None)
        same_logprobs(answer.logprobs, expected.logprobs)


@pytest.mark.parametrize("shape", [*SHAPES, TreeShape(2, 2, 10, lookup=7)], ids=str)
def test_requests_with_options_may_have_trees_of_different_sizes(
    target: Target,
    mixed: tuple[list[SamplingParams], list[Completion]],
    prompts: list[list[int]],
    shape: TreeShape,
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if backend == "torch":
        pytest.skip("trees have a fixed shape in torch")
    wanted, alone = mixed
    planner, sizes = Uneven(shape), Counter[int]()
    monkeypatch.setattr(FixedPlanner, "choose", planner.choose)
    monkeypatch.setattr(FixedPlanner, "learn", lambda self, done: sizes.update(done.drafted.sizes))
    engine = Engine(target, scripted_head(target, alone, 0.8), max_batch=7, tree=shape)
    for answer, expected in zip(serve(engine, prompts, wanted), alone, strict=True):
        assert answer.token_ids == expected.token_ids
        same_logprobs(answer.logprobs, expected.logprobs)
    stats = engine.stats()
    assert stats.draft_tokens == sum(size * times for size, times in sizes.items())
    assert stats.drafts == sum(times for size, times in sizes.items() if size)
    assert stats.tau > 1.2


def test_a_stop_token_can_be_chosen_right_behind_min_tokens_and_not_before(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    whole = plain.generate(prompts[4:8], max_tokens=12, ignore_eos=True)
    engine = Engine(target, scripted_head(target, whole, 0.9), tree=TreeShape(4, 3, 12))
    tried = 0
    for one in whole:
        for place in (1, 2, 7):  # so many tokens stand before the one that may end the answer
            stop = one.token_ids[place]
            if stop in one.token_ids[:place]:
                continue
            tried += 1
            for some in (plain, engine):
                for least, ends in ((0, True), (place, True), (place + 1, False)):
                    (got,) = some.generate(
                        [one.prompt_token_ids], max_tokens=12, min_tokens=least, stop_token_ids=[stop]
                    )
                    assert (got.token_ids == one.token_ids[: place + 1]) == ends
                    assert len(got.token_ids) > least
    assert tried > 5


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}], ids=str)
def test_filters_that_leave_one_token_make_sampling_greedy(
    target: Target, plain: Engine, prompts: list[list[int]], narrow: dict[str, float]
) -> None:
    expected = plain.generate(prompts[:4], max_tokens=12, ignore_eos=True)
    engine = Engine(target, scripted_head(target, expected, 0.9), tree=TreeShape(3, 3, 8))
    for some in (plain, engine):
        answers = some.generate(
            prompts[:4], max_tokens=12, ignore_eos=True, temperature=1.5, seed=2, **narrow
        )  # type: ignore[arg-type]
        assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]


def test_logprobs_are_the_targets_own_whatever_is_done_to_the_logits(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    options = {"temperature": 1.0, "repetition_penalty": 1.5, "top_k": 5, "logit_bias": {9: 5.0}, "seed": 1}
    plainly = plain.generate(prompts[:2], max_tokens=12, ignore_eos=True, **options)  # type: ignore[arg-type]
    engine = Engine(target, scripted_head(target, plainly, 0.9), tree=TreeShape(3, 3, 8))
    answers = engine.generate(prompts[:2], max_tokens=12, ignore_eos=True, logprobs=3, **options)  # type: ignore[arg-type]
    for answer in answers:
        assert answer.logprobs is not None
        assert len(answer.logprobs) == len(answer.token_ids)
        for position, entry in enumerate(answer.logprobs):
            logits = raw_logits(target, [*answer.prompt_token_ids, *answer.token_ids[:position]])
            total = math.log(sum(math.exp(value) for value in logits))
            best = sorted(range(len(logits)), key=lambda token: -logits[token])[:3]
            assert entry.token_id == answer.token_ids[position]
            assert entry.logprob == pytest.approx(logits[entry.token_id] - total, abs=1e-4)
            assert [token for token, _ in entry.top] == best
            assert [value for _, value in entry.top] == pytest.approx(
                [logits[token] - total for token in best], abs=1e-4
            )


def test_pieces_hold_their_own_logprobs(target: Target, plain: Engine, prompts: list[list[int]]) -> None:
    expected = plain.generate(prompts[:1], max_tokens=15, ignore_eos=True, logprobs=1)
    engine = Engine(target, scripted_head(target, expected, 0.9), tree=TreeShape(3, 2, 6))
    stop = engine.target.tokenizer.decode(expected[0].token_ids[6:8])
    for stops in ((), (stop,)):
        pieces = list(engine.stream_sync(prompts[0], max_tokens=15, ignore_eos=True, logprobs=1, stop=stops))
        entries = [entry for piece in pieces for entry in piece.logprobs or []]
        last = pieces[-1].completion
        assert last is not None
        assert entries == last.logprobs
        assert [entry.token_id for entry in entries] == last.token_ids
        assert all(len(piece.logprobs or []) == len(piece.token_ids) for piece in pieces)


def test_special_tokens_are_in_the_text_where_that_is_wanted(target: Target, plain: Engine) -> None:
    special = target.tokenizer.convert_tokens_to_ids("<|start_header_id|>")
    wanted = {
        "max_tokens": 12,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": 3,
        "logit_bias": {special: 8.0},
    }
    for stop in ((), ("no such text",)):  # the engine makes the text of the latter token by token
        for skip in (True, False):
            more = {**wanted, "stop": stop, "skip_special_tokens": skip}
            answer = plain.generate([[40, 50, 60]], **more)[0]  # type: ignore[arg-type]
            assert special in answer.token_ids
            assert answer.text == target.tokenizer.decode(answer.token_ids, skip_special_tokens=skip)
            assert ("<|start_header_id|>" in answer.text) is not skip
            pieces = plain.stream_sync([40, 50, 60], **more)  # type: ignore[arg-type]
            assert "".join(piece.text for piece in pieces) == answer.text


def same_logprobs(some: list[TokenLogprob] | None, other: list[TokenLogprob] | None) -> None:
    assert (some is None) == (other is None)
    for one, two in zip(some or [], other or [], strict=True):
        assert one.token_id == two.token_id
        assert one.logprob == pytest.approx(two.logprob, abs=1e-4)
        assert [value for _, value in one.top] == pytest.approx([value for _, value in two.top], abs=1e-4)
