"""With overlap, rounds are composed before the ones before them are known; nothing but that changes."""

from __future__ import annotations

import random

import pytest

from fledge.base.errors import EngineError
from fledge.engine import PLAIN, Completion, Engine, SamplingParams, StepResult, TreeShape, build
from fledge.engine.planner import RoundPlan
from fledge.target.target import Target
from tests.engine.conftest import SHAPES, Greedy, scripted_head
from tests.engine.late_flight import LateFlight

SHAPE = TreeShape(4, 2, 9)
pytestmark = pytest.mark.usefixtures("spoiled_first_levels", "late_flights")


def overlapping(target: Target, head: object = None, **options: object) -> Engine:
    return Engine(target, head, overlap=True, **options)  # type: ignore[arg-type]


def answers(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[Completion]:
    """One after the other comes in while others run; a third doesn't speculate."""
    done: dict[int, Completion] = {}
    numbers: dict[int, int] = {}
    left = list(enumerate(zip(prompts, params, strict=True)))[::-1]
    while left or engine.busy:
        for _ in range(2):
            if left:
                number, (prompt, one) = left.pop()
                numbers[engine.submit(prompt, one, speculate=number % 3 > 0)] = number
        for result in engine.step():
            if result.completion is not None:
                assert result.request_id in numbers
                done[numbers.pop(result.request_id)] = result.completion
    return [done[number] for number in range(len(prompts))]


def steps(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.step()


def essence(answer: Completion) -> tuple[object, ...]:
    logprobs = answer.logprobs and [
        (one.token_id, round(one.logprob, 3), [token for token, _ in one.top]) for one in answer.logprobs
    ]
    return answer.token_ids, answer.text, answer.finish_reason, answer.stop_reason, logprobs


@pytest.fixture(scope="module")
def every_option(
    plain: Engine, greedy: Greedy, prompts: list[list[int]]
) -> tuple[list[SamplingParams], list[tuple[object, ...]]]:
    """Options, and the essence of plain decode's answers with them."""
    options: list[dict[str, object]] = [
        {},
        {"temperature": 0.9, "top_p": 0.9},
        {"repetition_penalty": 1.5, "frequency_penalty": 0.5},
        {"temperature": 1.0, "presence_penalty": 1.0, "min_p": 0.02},
        {"logprobs": 3},
        {"logit_bias": {9: 4.0}, "temperature": 0.7, "top_k": 20, "logprobs": 0},
        {"max_tokens": 1},
        {"max_tokens": 2},
    ]
    made = []
    for number, answer in enumerate(greedy(24)):
        chosen = {"max_tokens": 24, "ignore_eos": True, "seed": number, **options[number % len(options)]}
        if number % 5 == 0:
            chosen["stop"] = answer.text[6:9]
        if number % 5 == 1:
            chosen["stop_token_ids"] = [answer.token_ids[7]]
        made.append(SamplingParams(**chosen))  # type: ignore[arg-type]
    return made, [essence(one) for one in answers(plain, prompts, made)]


@pytest.mark.parametrize("shape", [None, SHAPES[1], SHAPES[3]], ids=str)
def test_every_option_gives_what_it_gives_without_overlap(
    target: Target,
    greedy: Greedy,
    every_option: tuple[list[SamplingParams], list[tuple[object, ...]]],
    prompts: list[list[int]],
    shape: TreeShape | None,
) -> None:
    """In a small pool; shape None: trees and plain rounds in turn."""
    params, expected = every_option
    head = scripted_head(target, greedy(24), 0.8)
    head.strict = False  # requests that don't speculate
    engine = overlapping(
        target, head, tree=shape, max_batch=6, max_context=100, kv_tokens=260, prefill_rows=48,
        busy_prefill_rows=32,
    )  # fmt: skip
    if shape is None:
        rng, plans = (
            random.Random(3),
            [RoundPlan(PLAIN), RoundPlan(TreeShape(3, 2, 7)), RoundPlan(TreeShape(2, 4, 8))],
        )
        engine._core._planner.choose = lambda requests, behind: rng.choice(plans)  # type: ignore[method-assign]
    assert [essence(one) for one in answers(engine, prompts, params)] == expected
    stats = engine.stats()
    assert stats.pages_in_use == 0
    assert stats.tau > 1.05


def test_requests_are_preempted_once_all_is_known_of_them(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    """Twelve pages are enough to begin four answers of up to six pages each, but not to end them together."""
    asked = [prompt[:17] for prompt in prompts[:8]]
    params = [
        SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.8, seed=20 + n)
        for n in range(len(asked))
    ]
    expected = answers(plain, asked, params)
    head = scripted_head(target, expected, 0.7)
    head.strict = False
    engine = overlapping(target, head, tree=TreeShape(2, 1, 3), max_batch=8, max_context=100, kv_tokens=200)
    assert [one.token_ids for one in answers(engine, asked, params)] == [one.token_ids for one in expected]
    assert engine.stats().preemptions > 0
    assert engine.stats().pages_in_use == 0


@pytest.mark.parametrize("speculative", [True, False])
def test_cancelling_at_any_moment_frees_everything(
    target: Target, greedy: Greedy, prompts: list[list[int]], speculative: bool
) -> None:
    """While they wait, in the middle of their prompts, with a round in flight, in their last one."""
    expected = greedy(12)[:6]
    head = scripted_head(target, expected, 0.7) if speculative else None
    engine = overlapping(
        target, head, tree=SHAPE if speculative else None, max_batch=4, prefill_rows=13, busy_prefill_rows=7
    )
    params, seen = SamplingParams(max_tokens=12, ignore_eos=True), set()
    for count in range(24):
        requests = [engine.submit(prompt, params) for prompt in prompts[:6]]
        steps(engine, count)
        scheduler = engine._core._scheduler
        seen.add(
            (
                len(scheduler.waiting),
                len(scheduler.prefilling),
                len(scheduler.running),
                len(scheduler.leaving),
            )
        )
        for request in requests[::-1] if count % 2 else requests:
            engine.cancel(request)
            engine.check()
        assert not engine.busy
        assert engine.stats().pages_in_use == 0
        assert not engine._core._flight  # it would keep the engine alive, and make idle time the host's
    for state in zip(*seen, strict=True):
        if speculative or any(state):
            assert min(state) == 0
    got = engine.generate(prompts[:6], max_tokens=12, ignore_eos=True)
    assert [answer.token_ids for answer in got] == [answer.token_ids for answer in expected]


def test_the_extra_round_of_a_finished_request_is_discarded(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    """All end in the same round, by a stop token in the middle of an accepted run; one more round is in flight then."""
    whole = plain.generate(prompts[:1], max_tokens=20, ignore_eos=True)[0]
    stop = whole.token_ids[7]
    end = whole.token_ids.index(stop) + 1
    engine = overlapping(target, scripted_head(target, [whole], 1.0, best_first=True), tree=SHAPE)
    params = SamplingParams(max_tokens=20, ignore_eos=True, stop_token_ids=[stop])
    requests = [engine.submit(prompts[0], params) for _ in range(4)]
    results: list[StepResult] = []
    while engine.busy:
        results += engine.step()
    for request in requests:
        own = [result for result in results if result.request_id == request]
        assert [token for result in own for token in result.token_ids] == whole.token_ids[:end]
        assert [result.completion is not None for result in own] == [False] * (len(own) - 1) + [True]
    stats = engine.stats()
    assert stats.request_rounds == 4 * own[-1].completion.stats.rounds  # type: ignore[union-attr]
    assert stats.pages_in_use == 0


def test_what_ends_for_certain_in_flight_takes_no_extra_round(
    target: Target, prompts: list[list[int]]
) -> None:
    engine = overlapping(target)
    for count in (1, 2, 7):
        before = engine.stats().rounds
        engine.generate(prompts[:3], max_tokens=count, ignore_eos=True)
        assert engine.stats().rounds - before == count - 1


def test_a_round_is_composed_before_the_one_before_it_is_known(
    target: Target, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = LateFlight(ahead=1)
    monkeypatch.setattr(build, "make_flight", lambda device, ahead: made)
    engine = overlapping(target)
    engine.generate(prompts[:2], max_tokens=6, ignore_eos=True)
    assert made.most == 3  # a round, and in the beginning the prefill's two launches


def test_without_overlap_results_come_with_their_step(target: Target, prompts: list[list[int]]) -> None:
    params = SamplingParams(max_tokens=6, ignore_eos=True)
    counts = {}
    for overlap in (False, True):
        engine = Engine(target, overlap=overlap)
        engine.submit(prompts[0], params)
        counts[overlap] = [len(engine.step()) for _ in range(3)]
    assert counts == {False: [2, 1, 1], True: [1, 1, 1]}


def test_overlap_is_off_on_a_cpu(target: Target) -> None:
    assert not Engine(target).overlap


@pytest.mark.parametrize("overlap", [False, True])
def test_after_a_failed_step_nothing_goes_on_until_a_reset(
    target: Target, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    engine = Engine(target, max_batch=2, overlap=overlap)
    expected = engine.generate(prompts[:3], max_tokens=12, ignore_eos=True)
    requests = [engine.submit(prompt, SamplingParams(max_tokens=12)) for prompt in prompts[:4]]
    engine.step()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(target.decoder, "forward", broken)
        with pytest.raises(RuntimeError, match="device lost"):
            steps(engine, 3)
    with pytest.raises(EngineError, match="reset"):
        engine.step()
    for request in requests:  # nobody is left who could be served wrongly
        engine.cancel(request)
    again = engine.generate(prompts[:3], max_tokens=12, ignore_eos=True)
    assert [answer.token_ids for answer in again] == [answer.token_ids for answer in expected]
    assert engine.stats().pages_in_use == 0


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("good", [0, 2, 5])
def test_a_sink_that_raises_fails_its_request_alone(
    target: Target, prompts: list[list[int]], overlap: bool, good: int
) -> None:
    """Someone else's `generate` may be what serves it."""
    engine = Engine(target, overlap=overlap)
    expected = engine.generate(prompts[:2], max_tokens=6, ignore_eos=True)
    results: list[StepResult] = []

    def sink(result: StepResult) -> None:
        if len(results) == good:
            raise ValueError("no")
        results.append(result)

    params = SamplingParams(max_tokens=6, ignore_eos=True)
    bad = engine.submit(prompts[0], params, sink=sink)
    assert engine.generate(prompts[1:2], max_tokens=6, ignore_eos=True)[0].token_ids == expected[1].token_ids
    assert len(results) == good
    assert engine.busy
    with pytest.raises(EngineError, match=f"request {bad} was dropped") as told:
        engine.step()
    assert isinstance(told.value.__cause__, ValueError)
    assert not engine.busy
    assert engine.step() == []
    assert engine.stats().pages_in_use == 0
    assert engine.generate(prompts[:1], max_tokens=6, ignore_eos=True)[0].token_ids == expected[0].token_ids


@pytest.mark.parametrize("overlap", [False, True])
def test_host_time_is_exposed_or_hidden(target: Target, prompts: list[list[int]], overlap: bool) -> None:
    engine = Engine(target, overlap=overlap)
    engine.generate(prompts[:4], max_tokens=20, ignore_eos=True)
    phases = engine.stats().phases
    assert phases.host > 0
    assert (phases.hidden > 0) == overlap
