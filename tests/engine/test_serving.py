"""Requests come, stop, are cancelled and preempted; nothing leaks, neither tokens nor pages."""

from __future__ import annotations

import random

import pytest

from fledge.base.errors import EngineError
from fledge.engine import Engine, SamplingParams, StepResult, TreeShape
from fledge.engine.request import Completion
from fledge.target.target import Target
from tests.engine.conftest import scripted_head

ON_BOTH_BACKENDS = True

SHAPE = TreeShape(4, 2, 9)


def free_pages(engine: Engine) -> int:
    return engine._core._pool.free_pages


def test_a_stop_token_inside_an_accepted_run_ends_the_answer_there(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    full = plain.generate(prompts, max_tokens=20, ignore_eos=True)
    engine = Engine(target, scripted_head(target, full, 1.0, best_first=True), tree=SHAPE)
    cut = 0
    for answer in full:
        stop = answer.token_ids[7]
        end = answer.token_ids.index(stop) + 1
        got = engine.generate(
            [answer.prompt_token_ids], max_tokens=20, ignore_eos=True, stop_token_ids=[stop]
        )[0]
        assert got.token_ids == answer.token_ids[:end]
        assert got.finish_reason == "stop"
        assert len(got.stats.token_origins) == got.stats.tokens == end
        cut += got.stats.token_origins[-1] > 0
    assert cut > len(full) // 2  # most of them stopped at an accepted draft, with more accepted behind it


def test_max_tokens_is_exact(target: Target, plain: Engine, prompts: list[list[int]]) -> None:
    full = plain.generate(prompts[:3], max_tokens=20, ignore_eos=True)
    engine = Engine(target, scripted_head(target, full, 1.0), tree=SHAPE)
    for count in range(1, 13):
        for answer, whole in zip(
            engine.generate(prompts[:3], max_tokens=count, ignore_eos=True), full, strict=True
        ):
            assert answer.token_ids == whole.token_ids[:count]
            assert answer.finish_reason == "length"


def test_the_turn_end_stops_unless_ignored(target: Target, plain: Engine) -> None:
    end = next(iter(target.chat.turn_end_ids))

    def answer(seed: int, *, ignore_eos: bool) -> Completion:
        return plain.generate([[9]], max_tokens=60, temperature=5.0, seed=seed, ignore_eos=ignore_eos)[0]

    seed, whole = next((n, full) for n in range(100) if end in (full := answer(n, ignore_eos=True)).token_ids)
    stopped = answer(seed, ignore_eos=False)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
    assert "<|im_end|>" not in stopped.text


@pytest.mark.parametrize("shape", [None, SHAPE], ids=str)
def test_staggered_arrivals_and_cancels_leave_no_page_behind(
    target: Target, plain: Engine, prompts: list[list[int]], shape: TreeShape | None
) -> None:
    expected = plain.generate(prompts, max_tokens=25, ignore_eos=True)
    head = scripted_head(target, expected, 0.7)
    head.strict = False
    engine = Engine(target, head, max_batch=4, tree=shape, prefill_rows=20)
    head.strict = True
    free = free_pages(engine)
    rng = random.Random(2)
    params = SamplingParams(max_tokens=25, ignore_eos=True)
    live: dict[int, int] = {}
    got: dict[int, list[int]] = {}
    finished = cancelled = submitted = 0
    while submitted < 60 or engine.busy:
        for _ in range(min(rng.randrange(4), 60 - submitted)):
            number = rng.randrange(len(prompts))
            live[engine.submit(prompts[number], params)] = number
            submitted += 1
        if live and rng.random() < 0.15:
            victim = rng.choice(list(live))
            engine.cancel(victim)
            del live[victim]
            cancelled += 1
        for result in engine.step():
            assert result.request_id in live
            got.setdefault(result.request_id, []).extend(result.token_ids)
            if result.completion is not None:
                assert got[result.request_id] == expected[live.pop(result.request_id)].token_ids
                finished += 1
    assert finished + cancelled == 60
    assert cancelled > 5
    assert free_pages(engine) == free
    engine._core._scheduler.check()


def test_a_full_pool_preempts_the_youngest_and_changes_no_token(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    sampling = {"max_tokens": 60, "ignore_eos": True, "temperature": 0.8, "seed": 3}
    expected = plain.generate(prompts[:8], **sampling)  # type: ignore[arg-type]
    head = scripted_head(target, expected, 0.8)
    engine = Engine(target, head, max_batch=8, max_context=110, kv_tokens=320, tree=SHAPE)
    free = free_pages(engine)
    answers = engine.generate(prompts[:8], **sampling)  # type: ignore[arg-type]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert engine.stats().preemptions > 0
    assert sum(answer.stats.preemptions for answer in answers) == engine.stats().preemptions
    assert free_pages(engine) == free


def test_answers_may_use_the_whole_context(target: Target, plain: Engine, prompts: list[list[int]]) -> None:
    """The last rounds' trees reach past the target's last position; what they write is never emitted."""
    expected = plain.generate(prompts[:3], max_tokens=256 - 40, ignore_eos=True)
    head = scripted_head(target, expected, 1.0)
    head.strict = False  # positions are clamped there
    answers = Engine(target, head, tree=SHAPE).generate(prompts[:3], max_tokens=256 - 40, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    longest = prompts[0]
    whole = plain.generate([longest], max_tokens=256 - len(longest), ignore_eos=True)[0]
    assert len(whole.prompt_token_ids) + len(whole.token_ids) == plain.max_context == 256


def test_requests_that_can_never_fit_are_refused_with_what_to_do(target: Target, plain: Engine) -> None:
    params = SamplingParams(max_tokens=10)
    with pytest.raises(EngineError, match="shorten the prompt"):
        plain.submit([9] * 250, params)
    with pytest.raises(EngineError, match="at least one token"):
        plain.submit([], params)
    with pytest.raises(EngineError, match="the target's own tokenizer"):
        plain.submit([5, 99999], params)
    with pytest.raises(EngineError, match="choose one"):
        Engine(target, max_context=9999)
    with pytest.raises(EngineError, match="kv_tokens"):
        Engine(target, kv_tokens=64, max_context=200)
    with pytest.raises(EngineError, match="prefill_rows"):
        Engine(target, prefill_rows=0)
    with pytest.raises(EngineError, match="list of prompts"):
        plain.generate("Why?")
    with pytest.raises(EngineError, match="draft head"):
        Engine(target, tree=SHAPE)
    assert not plain.busy


def test_each_prompt_may_have_params_of_its_own(plain: Engine, prompts: list[list[int]]) -> None:
    each = [SamplingParams(max_tokens=6), SamplingParams(max_tokens=9, temperature=1.0, seed=3)]
    together = plain.generate(prompts[:2], each)
    alone = [plain.generate([prompt], params)[0] for prompt, params in zip(prompts, each, strict=False)]
    assert [answer.token_ids for answer in together] == [answer.token_ids for answer in alone]
    with pytest.raises(EngineError, match="2 prompts and params for 1"):
        plain.generate(prompts[:2], each[:1])
    with pytest.raises(EngineError, match="params is 'creative'"):
        plain.generate(prompts[:2], "creative")  # type: ignore[arg-type]
    with pytest.raises(EngineError, match="params is 5"):
        plain.generate(prompts[:2], [each[0], 5])  # type: ignore[list-item]
    assert not plain.busy


def test_a_failing_generate_cancels_what_it_started(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    with pytest.raises(EngineError, match="shorten the prompt"):
        plain.generate([prompts[0], [9] * 256], max_tokens=5)
    assert not plain.busy


def test_prompts_longer_than_a_prefill_forward_are_chunked(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts, max_tokens=6, ignore_eos=True)
    head = scripted_head(target, expected, 1.0)
    chunked = Engine(target, head, tree=SHAPE, prefill_rows=7).generate(
        prompts, max_tokens=6, ignore_eos=True
    )
    assert [answer.token_ids for answer in chunked] == [answer.token_ids for answer in expected]


def test_a_sink_may_cancel_any_request(target: Target, plain: Engine, prompts: list[list[int]]) -> None:
    expected = plain.generate(prompts[:6], max_tokens=9, ignore_eos=True)
    engine = Engine(target, scripted_head(target, expected, 0.5), tree=SHAPE, max_batch=4)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    tokens: dict[int, list[int]] = {}

    def sink(result: StepResult) -> None:
        tokens.setdefault(result.request_id, []).extend(result.token_ids)
        if result.request_id == 0:
            engine.cancel(0)  # itself, while its prompt is being served
        if result.request_id == 1 and len(tokens[1]) > 4:
            engine.cancel(2)  # a neighbour whose turn in this round is still to come
            engine.cancel(4)  # one that may still be waiting

    for prompt in prompts[:6]:
        engine.submit(prompt, params, sink=sink)
    while engine.busy:
        engine.step()
    assert len(tokens[0]) == 1
    assert len(tokens[2]) < 9
    for number in (1, 3, 5):
        assert tokens[number] == expected[number].token_ids


def test_a_sink_may_submit_but_not_serve(target: Target, plain: Engine, prompts: list[list[int]]) -> None:
    """Its neighbours would get the next round's tokens before those of this one."""
    expected = plain.generate(prompts[:3], max_tokens=9, ignore_eos=True)
    engine = Engine(target, scripted_head(target, expected, 0.5), tree=SHAPE)
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    tokens: dict[int, list[int]] = {}
    refused: list[str] = []

    def note(result: StepResult) -> None:
        tokens.setdefault(result.request_id, []).extend(result.token_ids)

    def sink(result: StepResult) -> None:
        note(result)
        for serve in (engine.step, lambda: engine.generate(prompts[:1], max_tokens=2)):
            with pytest.raises(EngineError, match="can't serve") as refusal:
                serve()
            refused.append(str(refusal.value))
        if result.completion is not None:
            engine.submit(prompts[2], params, sink=note)

    for prompt, told in zip(prompts[:2], (sink, note), strict=True):
        engine.submit(prompt, params, sink=told)
    while engine.busy:
        engine.step()
    assert refused
    assert list(tokens.values()) == [answer.token_ids for answer in expected]


@pytest.mark.usefixtures("late_flights")
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("tokens", [1, 4, 9])
def test_a_sink_may_reset_the_engine(
    target: Target, plain: Engine, prompts: list[list[int]], tokens: int, overlap: bool
) -> None:
    """At its request's first token, between, or at its last."""
    expected = plain.generate(prompts[:4], max_tokens=9, ignore_eos=True)
    head = scripted_head(target, expected, 0.5)
    head.strict = False
    engine = Engine(target, head, tree=SHAPE, max_batch=3, overlap=overlap)
    seen: list[int] = []

    def sink(result: StepResult) -> None:
        seen.extend(result.token_ids)
        if len(seen) >= tokens:
            engine.reset()

    for prompt in prompts[:4]:
        engine.submit(
            prompt, SamplingParams(max_tokens=9, ignore_eos=True), sink=None if engine.busy else sink
        )
    while engine.busy:
        engine.step()
    assert seen == expected[0].token_ids[: len(seen)]
    assert engine.stats().pages_in_use == 0
    answers = engine.generate(prompts[:4], max_tokens=9, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]


@pytest.mark.parametrize(("max_batch", "waits"), [(16, False), (48, True)])
def test_newcomers_of_a_large_full_batch_wait_for_company_but_not_long(
    target: Target, prompts: list[list[int]], max_batch: int, waits: bool
) -> None:
    engine = Engine(target, max_batch=max_batch, max_context=100)
    for _ in range(max_batch - 1):
        engine.submit(prompts[0], SamplingParams(max_tokens=30, ignore_eos=True))
    engine.step()
    late = engine.submit(prompts[1], SamplingParams(max_tokens=5, ignore_eos=True))
    rounds = next(n for n in range(20) if late in [result.request_id for result in engine.step()])
    assert rounds == (6 if waits else 0)


def test_sinks_get_each_result_as_it_comes(target: Target, plain: Engine, prompts: list[list[int]]) -> None:
    seen: list[StepResult] = []
    request = plain.submit(prompts[0], SamplingParams(max_tokens=4, ignore_eos=True), sink=seen.append)
    steps = 0
    while plain.busy:
        plain.step()
        steps += 1
    assert [result.request_id for result in seen] == [request] * 4
    assert steps == 3  # prefill and the first round share a step
    assert [result.completion is None for result in seen] == [True, True, True, False]
    assert plain.step() == []


def test_timings_and_phases_add_up(target: Target, plain: Engine, prompts: list[list[int]]) -> None:
    expected = plain.generate(prompts[:1], max_tokens=20, ignore_eos=True)
    engine = Engine(target, scripted_head(target, expected, 1.0), tree=SHAPE)
    stats = engine.generate(prompts[:1], max_tokens=20, ignore_eos=True)[0].stats
    phases = stats.phases
    parts = (phases.prefill, phases.draft, phases.verify, phases.accept, phases.extend, phases.host)
    assert all(part > 0 for part in parts)
    assert sum(parts) * 1e3 <= stats.e2e_ms * 1.05
    assert 0 < stats.ttft_ms < stats.e2e_ms
    assert stats.tpot_ms == pytest.approx((stats.e2e_ms - stats.ttft_ms) / 19)
    assert engine.stats().tau == stats.tau


def test_phases_begin_with_a_request_that_is_preempted_before_its_first_forward(target: Target) -> None:
    page = target.decoder.page_size
    limits = {"max_context": 7 * page, "kv_tokens": 10 * page, "busy_prefill_rows": 1}
    engine = Engine(target, max_batch=3, prefix_cache=False, **limits)  # type: ignore[arg-type]
    engine.generate([[20, 30]] * 3, max_tokens=100, ignore_eos=True)  # none of its phases are theirs
    before = engine.stats().phases
    first = engine.submit([7] * (page - 1), SamplingParams(max_tokens=5 * page, ignore_eos=True))
    engine.step()
    engine.submit([8] * (5 * page), SamplingParams(max_tokens=1, ignore_eos=True))
    last = engine.submit([9] * 10, SamplingParams(max_tokens=1, ignore_eos=True))
    done: dict[int, Completion] = {}
    while engine.busy:
        done.update({r.request_id: r.completion for r in engine.step() if r.completion})
    assert done[last].stats.preemptions
    assert not done[first].stats.preemptions
    spent = engine.stats().phases.since(before)
    phases = done[last].stats.phases
    assert phases.prefill <= spent.prefill
    assert phases.verify <= spent.verify


def test_cancelling_at_any_moment_frees_everything(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    """All at once after 0, 1, 2, ... steps: while they wait, in the middle of their prompts, between rounds."""
    expected = plain.generate(prompts[:6], max_tokens=12, ignore_eos=True)
    engine = Engine(
        target,
        scripted_head(target, expected, 0.7),
        tree=SHAPE,
        max_batch=4,
        prefill_rows=13,
        busy_prefill_rows=7,
    )
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    seen = set()
    for steps in range(16):
        requests = [engine.submit(prompt, params) for prompt in prompts[:6]]
        for _ in range(steps):
            engine.step()
        scheduler = engine._core._scheduler
        seen.add((len(scheduler.waiting), len(scheduler.prefilling), len(scheduler.running)))
        for request in requests[::-1] if steps % 2 else requests:
            engine.cancel(request)
            engine.check()
        assert not engine.busy
        assert engine.stats().pages_in_use == 0
    assert {bool(waiting) for waiting, _, _ in seen} == {bool(n) for _, n, _ in seen} == {True, False}
    answers = engine.generate(prompts[:6], max_tokens=12, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]


def test_a_long_prompt_comes_in_pieces_and_the_others_go_on(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    engine = Engine(target, prefill_rows=64, busy_prefill_rows=16)
    running = [
        engine.submit(prompt, SamplingParams(max_tokens=60, ignore_eos=True)) for prompt in prompts[:3]
    ]
    engine.step()
    engine.step()
    before = engine.stats().prompt_tokens
    late = engine.submit([7] * 100, SamplingParams(max_tokens=2, ignore_eos=True))
    pieces = []
    while True:
        results = {result.request_id for result in engine.step()}
        assert set(running) <= results  # everyone gets a token in every step
        pieces.append(engine.stats().prompt_tokens - before - sum(pieces))
        if late in results:
            break
    assert pieces == [16] * 6 + [4]
    for request in running:
        engine.cancel(request)
