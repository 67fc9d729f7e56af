"""The load of a level: the same wherever it is measured, and what its figures are."""

from __future__ import annotations

import time
from typing import cast

import pytest

from benchmarks.ratios.parts import Bench, RatioOptions, run_level
from fledge.bench import BenchOptions, concurrency, run_bench
from fledge.bench.concurrency import (
    ClosedLoop,
    Load,
    answer_length,
    longest_answer,
    run_side_by_side,
    sweep,
)
from fledge.bench.results import LevelRow
from fledge.bench.workloads import own_workload
from fledge.engine import Completion, Engine, PhaseSeconds, SamplingParams, StepResult
from fledge.engine.request import CompletionStats
from fledge.heads import Head
from fledge.target import Target


def prompts_of(target: Target, count: int) -> list[list[int]]:
    return own_workload().limited(count).token_ids(target)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[Engine, list[int]]:
    """By engine, in the order of their first requests: the lengths of the answers it was asked for."""
    lengths: dict[Engine, list[int]] = {}  # not by id, which a later engine may have again
    submit = Engine.submit

    def recording(self: Engine, prompt: list[int], params: SamplingParams, **rest: object) -> int:
        lengths.setdefault(self, []).append(params.max_tokens)
        return submit(self, prompt, params, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "submit", recording)
    return lengths


def test_the_sweep_and_the_ratios_ask_every_engine_for_the_same_answers_of_different_lengths(
    target: Target, head: Head, asked: dict[Engine, list[int]]
) -> None:
    options = BenchOptions(
        own_prompts=3, max_tokens=2, repeats=1, warmup=0, samples=0, bandwidth=False,
        concurrency=(3,), sweep_tokens=8, sweep_requests=2, sweep_repeats=1,
    )  # fmt: skip
    run_bench(target, {"trained": head}, options)
    of_sweep = [lengths for lengths in asked.values() if max(lengths) > 2]
    lengths = [answer_length(n, 8) for n in range(12)]
    # One wave that isn't counted, then two requests per slot.
    assert of_sweep == [[*lengths[:3], *lengths[:6]]] * 3
    asked.clear()
    list(Bench(target, head, RatioOptions(concurrency=(3,), repeats=1, max_tokens=8, prompts=3)).levels())
    warm_up = [8, 8]
    assert list(asked.values()) == [[*warm_up, *lengths[:5], *lengths]] * 3


def test_answers_of_a_level_differ_in_length() -> None:
    lengths = [answer_length(number, 128) for number in range(128)]
    assert all(len(set(lengths[begin : begin + 32])) > 30 for begin in range(97))
    assert 64 <= min(lengths) <= 66
    assert 190 <= max(lengths) <= longest_answer(128) == 192
    assert sum(lengths) / 128 == pytest.approx(128, rel=0.01)
    assert answer_length(0, 1) == 1


def test_ratios_are_taken_within_a_repeat_and_the_first_is_not_counted(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {"plain": iter([1.0, 30.0, 10.0, 20.0]), "head": iter([9.0, 33.0, 12.0, 26.0])}
    order: list[str] = []

    class Scripted(ClosedLoop):
        done = True  # type: ignore[assignment]

        def figures(self, name: str) -> LevelRow:
            order.append(name)
            times = dict.fromkeys(("seconds", "median_tpot_ms", "p95_tpot_ms", "median_ttft_ms", "tau"), 1.0)
            throughput = next(speeds[name])
            return LevelRow(
                concurrency=2, engine=name, requests=2, output_tokens=8, output_throughput=throughput, **times
            )

    monkeypatch.setattr(concurrency, "ClosedLoop", Scripted)
    engines = dict.fromkeys(speeds, Engine(target, max_batch=1))
    for name in speeds:  # the warm-up's figures aren't asked for
        next(speeds[name])
    shown: list[tuple[int, int]] = []
    (rows,) = sweep(
        engines, [[1]], (2,), Load(4, 3, 1, 1), lambda done, total, _: shown.append((done, total))
    )
    assert [(row.engine, row.output_throughput, row.repeats) for row in rows] == [
        ("plain", 20.0, 3),
        ("head", 26.0, 3),
    ]
    assert (rows[0].ratio, rows[0].ratio_low, rows[0].ratio_high) == (1.0, 1.0, 1.0)
    assert (rows[1].ratio, rows[1].ratio_low, rows[1].ratio_high) == pytest.approx((1.2, 1.1, 1.3))
    assert order == ["head", "plain", "head", "plain", "plain", "head"]
    assert shown == [(n, 4) for n in (1, 2, 3, 4)]


def test_latencies_are_those_of_the_engines_own_clock(target: Target) -> None:
    loop = ClosedLoop(Engine(target, max_batch=2), prompts_of(target, 2), 2, 6)
    while not loop.done:
        loop.step()
        time.sleep(0.05)  # another engine's turn
    row = loop.figures("plain")
    assert row.median_ttft_ms < 50
    assert row.p95_tpot_ms < 50
    assert 5 * row.median_tpot_ms + row.median_ttft_ms == pytest.approx(loop.seconds * 1e3, rel=0.2)


def test_a_level_answers_every_request(target: Target) -> None:
    row = run_level(Engine(target, max_batch=2), "plain", prompts_of(target, 5), 2, 5)
    assert row.requests == 5
    assert row.tau == 1.0
    assert row.ratio is None
    assert row.output_throughput == pytest.approx(row.output_tokens / row.seconds)


def test_side_by_side_a_slow_moment_meets_all_engines_alike() -> None:
    clock = 0.0

    class Loop(ClosedLoop):
        """A token per step of some seconds; between the 100th and the 160th second all takes three times as long."""

        def __init__(self, step_seconds: float) -> None:
            self.seconds, self.answers, self.left, self.step_seconds = 0.0, [], 1000, step_seconds

        @property
        def done(self) -> bool:
            return self.left == 0

        def step(self) -> None:
            nonlocal clock
            spent = self.step_seconds * (3 if 100 < clock < 160 else 1)
            clock, self.seconds, self.left = clock + spent, self.seconds + spent, self.left - 1

    slow, fast = Loop(0.3), Loop(0.2)
    run_side_by_side([slow, fast])
    assert slow.done
    assert fast.done
    assert slow.seconds - 300 == pytest.approx(20, abs=1)
    assert fast.seconds - 200 == pytest.approx(20, abs=1)


def test_side_by_side_engines_answer_as_they_do_alone(target: Target) -> None:
    prompts = prompts_of(target, 5)
    loops = {name: ClosedLoop(Engine(target, max_batch=2), prompts, 2, 5) for name in ("a", "b")}
    run_side_by_side(list(loops.values()))
    alone = Engine(target, max_batch=2).generate(prompts, max_tokens=5)
    for name, loop in loops.items():
        assert sorted(one.token_ids for one in loop.answers) == sorted(one.token_ids for one in alone)
        row = loop.figures(name)
        assert (row.requests, row.tau, row.seconds) == (5, 1.0, loop.seconds)
        assert row.output_tokens == sum(len(one.token_ids) for one in alone)
        assert row.output_throughput == pytest.approx(row.output_tokens / loop.seconds)


def test_figures_are_the_loops_own_times_and_tau_is_over_all_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(concurrency.time, "perf_counter", lambda: float(next(clock)))  # a step takes a second

    def answer(tokens: int, rounds: int, tau: float) -> Completion:
        times = {"ttft_ms": 0.0, "tpot_ms": 0.0, "e2e_ms": 0.0}
        stats = CompletionStats(
            tokens=tokens, rounds=rounds, tau=tau, accepted_by_depth=[], drafted_rounds=0, token_origins=[],
            phases=PhaseSeconds(), **times,
        )  # fmt: skip
        return Completion("", [0] * tokens, [], "length", stats)

    class Scripted:
        """Two requests: 0 begins in step 1 and ends in step 5, 1 is a single token in step 2."""

        def __init__(self) -> None:
            self.steps, self.sent = 0, 0

        def submit(self, prompt: list[int], params: SamplingParams) -> int:
            self.sent += 1
            return self.sent - 1

        def step(self) -> list[StepResult]:
            self.steps += 1
            script = {1: (0, None), 2: (1, answer(1, 1, 4.0)), 4: (0, None), 5: (0, answer(9, 3, 2.0))}
            if self.steps not in script:
                return []
            number, done = script[self.steps]
            return [StepResult(number, [0], [0], done)]

    loop = ClosedLoop(cast(Engine, Scripted()), [[1], [2]], 2, 9)
    while not loop.done:
        loop.step()
    row = loop.figures("scripted")
    assert (row.seconds, row.output_tokens, row.output_throughput) == (5.0, 10, 2.0)
    assert row.median_ttft_ms == 1500.0  # 1 s and 2 s
    assert row.median_tpot_ms == 500.0  # 4 s for the 8 tokens after the first; a single one has none
    assert row.tau == (3 * 2.0 + 1 * 4.0) / 4
