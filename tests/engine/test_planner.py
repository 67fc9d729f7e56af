"""The planner takes the tree that pays, or none; and whatever it takes, the answer is the same."""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from fledge.engine import PLAIN, Engine, TreeShape
from fledge.engine import round as rounds
from fledge.engine.planner.acceptance import AcceptanceModel
from fledge.engine.planner.cost import CostCurve, CostModel
from fledge.engine.feedback import HostSeconds
from fledge.engine.pace import Kind
from fledge.engine.planner import Planner, RoundPlan
from fledge.engine.shapes import MAX_DEPTH
from fledge.target.target import Target
from tests.engine.conftest import Greedy, scripted_head

# A decode step of 10 ms, nearly flat up to 16 rows; a draft step of 0.7 ms.
COST = CostModel(
    CostCurve((1, 16, 32, 64, 128), (0.010, 0.012, 0.014, 0.020, 0.034)),
    CostCurve((1, 16, 64), (0.0007, 0.0008, 0.0012)),
)
SHAPES = [
    TreeShape(1, 1, 2),
    TreeShape(2, 4, 8),
    TreeShape(4, 4, 16),
    TreeShape(6, 4, 16),
    TreeShape(7, 8, 32),
]


def level_scores(claimed: float, level: int, requests: int, topk: int) -> Tensor:
    """A level in which one candidate continues the likely path and the others are hopeless."""
    scores = torch.full((requests, topk if level == 1 else topk * topk), -16.0)
    scores[:, 0] = level * math.log(claimed)
    return scores


class Moods:
    """A machine that is up to twice as slow now and then, for about `length` seconds."""

    def __init__(self, length: float) -> None:
        rng, self.begins, self.slower = random.Random(1), [0.0], [1.0]
        while self.begins[-1] < 1000:
            self.begins.append(self.begins[-1] + rng.expovariate(1 / length))
            self.slower.append(rng.uniform(1.1, 2.0) if len(self.slower) % 2 else 1.0)

    def at(self, seconds: float) -> float:
        return self.slower[bisect.bisect(self.begins, seconds) - 1]


def serve(
    planner: Planner,
    requests: int,
    rounds: int,
    acceptance: float,
    *,
    claimed: float | None = None,
    seed: int = 0,
    moods: Moods | None = None,
) -> tuple[float, float, list[TreeShape]]:
    """Tokens, seconds and shapes of a simulated run: `acceptance` per depth, of which the head claims `claimed`."""
    rng = random.Random(seed)
    claimed = acceptance if claimed is None else claimed
    tokens = seconds = 0.0
    shapes = []
    behind = 0
    for _ in range(rounds):
        plan = planner.choose(requests, behind=partial(int, behind))
        slower = rng.uniform(0.95, 1.1) * (moods.at(seconds) if moods else 1.0)
        if plan is None:
            spent = COST.plain_seconds(requests) * slower
            planner.observe(None, requests, spent, [])
            planner.time(requests, None, 0, requests, 0.0, spent)
            tokens, seconds = tokens + requests, seconds + spent
            behind = min(behind + requests, 128 * requests)
            shapes.append(PLAIN)
            continue
        late = COST.head.at(behind) * slower if behind else 0.0
        behind = 0
        topk = plan.bound.topk
        levels = [level_scores(claimed, 1, requests, topk)]
        while len(levels) < plan.bound.depth and plan.goes_deeper(
            len(levels), levels[-1][:, :topk].exp().sum(1)
        ):
            levels.append(level_scores(claimed, len(levels) + 1, requests, topk))
        depths_of = torch.tensor(
            [d for d, scores in enumerate(levels, start=1) for _ in range(scores.shape[1])]
        )
        nodes, counts = plan.nodes(torch.cat(levels, 1), depths_of)
        own = [nodes - 1] * requests if counts is None else counts.tolist()
        shape = plan.bound.cut(len(levels), nodes)
        accepted = []
        for most in own:
            depth = 0
            while depth < min(shape.depth, most) and rng.random() < acceptance:
                depth += 1
            accepted.append(depth)
        masses = [sum(most >= d for most in own) * claimed**d for d in range(1, shape.depth + 1)]
        rows = requests + sum(own)
        spent = COST.round_seconds(requests, shape, len(levels), rows) * slower
        planner.observe(shape, requests, spent, accepted, masses, levels, rows=rows, catch_up=late)
        drafting = (len(levels) - 1) * COST.head.at(requests * topk) * slower
        planner.time(requests, shape, len(levels), rows, drafting, COST.target.at(rows) * slower)
        tokens += requests + sum(accepted)
        seconds += spent + late
        shapes.append(shape)
    return tokens, seconds, shapes


def speed_of(requests: int, shape: TreeShape, acceptance: float) -> float:
    """Tokens per second of a fixed chain."""
    tau = 1 + sum(acceptance**d for d in range(1, shape.depth + 1))
    return requests * tau / (1.025 * COST.round_seconds(requests, shape))


@pytest.mark.parametrize("confident", [True, False])
@pytest.mark.parametrize("claimed", [1e-4, 0.6, 0.95])
@pytest.mark.parametrize("requests", [1, 4, 16])
def test_a_useless_head_costs_next_to_nothing(requests: int, claimed: float, confident: bool) -> None:
    planner = Planner(COST, topk=8, confident=confident)
    tokens, seconds, _ = serve(planner, requests, 3000, 1e-9, claimed=claimed)
    assert tokens / seconds > 0.97 * requests / (COST.plain_seconds(requests) * 1.025)


@pytest.mark.parametrize("confident", [True, False])
@pytest.mark.parametrize("acceptance", [0.4, 0.7, 0.9])
@pytest.mark.parametrize("requests", [1, 4, 16])
def test_it_comes_near_the_best_fixed_chain(requests: int, acceptance: float, confident: bool) -> None:
    planner = Planner(COST, topk=8, confident=confident)
    tokens, seconds, _ = serve(planner, requests, 1500, acceptance)
    chains = [TreeShape(d, 1, d + 1) for d in range(1, MAX_DEPTH + 1)]
    best = max(speed_of(requests, chain, acceptance) for chain in chains)
    plain = requests / (1.025 * COST.plain_seconds(requests))
    assert tokens / seconds > 0.92 * max(best, plain)


@pytest.mark.parametrize("length", [0.2, 2.0])
@pytest.mark.parametrize(("requests", "acceptance"), [(1, 0.02), (16, 0.02), (64, 0.4), (64, 0.6)])
def test_where_speculation_loses_the_moods_of_a_machine_do_not_make_it_speculate(
    requests: int, acceptance: float, length: float
) -> None:
    moods = Moods(length)
    tokens, seconds, _ = serve(Planner(COST, topk=8, confident=True), requests, 2000, acceptance, moods=moods)
    plainly = plain = 0.0
    while plainly < seconds:
        plainly += COST.plain_seconds(requests) * moods.at(plainly) * 1.025
        plain += requests
    assert tokens > 0.975 * plain


@pytest.mark.parametrize("requests", [8, 16])
def test_tries_in_vain_get_rare_and_still_find_out_when_it_pays(requests: int) -> None:
    planner = Planner(COST, topk=8, confident=True)
    tokens, seconds, _ = serve(planner, requests, 3000, 0.02)
    plain = requests / (1.025 * COST.plain_seconds(requests))
    assert tokens / seconds > 0.996 * plain
    tokens, seconds, _ = serve(planner, requests, 2000, 0.9)
    assert tokens / seconds > 1.5 * plain


@pytest.mark.parametrize("length", [0.2, 2.0])
@pytest.mark.parametrize(("requests", "acceptance"), [(1, 0.6), (16, 0.4)])
def test_where_speculation_pays_the_moods_of_a_machine_do_not_end_it(
    requests: int, acceptance: float, length: float
) -> None:
    planner = Planner(COST, topk=8, confident=True)
    _, _, shapes = serve(planner, requests, 1000, acceptance, moods=Moods(length))
    assert shapes.count(PLAIN) < 50


def test_what_the_head_has_to_catch_up_on_is_part_of_what_a_try_costs() -> None:
    shape = TreeShape(1, 1, 2)

    def tries(behind: int) -> int:
        planner, found = Planner(COST, topk=8, confident=True), 0
        serve(planner, 16, 400, 1e-9)
        for _ in range(4000):
            if planner.choose(16, behind=partial(int, behind)) is None:
                planner.observe(None, 16, COST.plain_seconds(16), [])
                continue
            found += 1
            late = COST.head.at(behind)
            planner.observe(shape, 16, COST.round_seconds(16, shape), [0] * 16, [0.1], catch_up=late)
        return found

    assert tries(16) > 2 * tries(128 * 16) > 0
    assert tries(10**7) == 0


def test_speculation_does_not_begin_where_catching_up_takes_longer_than_it_saves() -> None:
    assert Planner(COST, topk=8, confident=True).choose(16, behind=lambda: 16) is not None
    assert Planner(COST, topk=8, confident=True).choose(16, behind=lambda: 10**6) is None


def test_a_prompt_is_run_again_for_the_head_where_that_saves_more() -> None:
    planner = Planner(COST, topk=8, confident=True)
    serve(planner, 1, 400, 0.9)
    assert planner.rereads(500, 1000, 1)
    assert not planner.rereads(5000, 100, 1)
    assert not planner.rereads(500, 0, 1)
    useless = Planner(COST, topk=8, confident=True)
    serve(useless, 1, 400, 1e-9)
    assert not useless.rereads(1, 100_000, 1)


def test_an_overconfident_head_is_seen_through() -> None:
    planner = Planner(COST, topk=4, confident=True)
    serve(planner, 1, 400, 0.3, claimed=0.95)
    assert planner.speeds.acceptance.calibration[1] < 0.5
    _, _, shapes = serve(planner, 1, 200, 0.3, claimed=0.95)
    assert sum(shape.depth for shape in shapes) / len(shapes) < 2


def test_trees_follow_the_confidence_of_the_round() -> None:
    planner = Planner(COST, topk=4, confident=True)
    serve(planner, 1, 200, 0.7)
    _, _, sure = serve(planner, 1, 1, 0.7, claimed=0.95)
    _, _, unsure = serve(planner, 1, 1, 0.7, claimed=0.1)
    assert sure[0].depth > unsure[0].depth + 2


def test_speculation_comes_back_when_the_head_becomes_useful() -> None:
    planner = Planner(COST, topk=4, confident=False)
    _, _, shapes = serve(planner, 1, 400, 1e-9)
    assert shapes[-100:].count(PLAIN) > 90
    _, _, shapes = serve(planner, 1, 8000, 0.8)
    assert all(shape.depth > 0 for shape in shapes[-10:])


def test_measured_times_overrule_the_cost_curve() -> None:
    planner = Planner(COST, topk=1, confident=False)
    for _ in range(300):
        plan = planner.choose(1)
        shape = None if plan is None else plan.bound
        planner.observe(
            shape, 1, 0.010 if shape is None else 0.040, [1] if shape else [], [0.9] if shape else []
        )
    assert [planner.choose(1) is None for _ in range(4)].count(True) >= 3


def test_a_single_slow_round_does_not_upset_the_plan() -> None:
    planner = Planner(COST, topk=4, confident=True)
    serve(planner, 1, 300, 0.8)
    planner.observe(TreeShape(1, 1, 2), 1, 5.0, [1], [0.8])
    assert any(planner.choose(1) for _ in range(3))


def test_costs_are_interpolated_and_extended() -> None:
    curve = CostCurve((1, 2, 4), (1.0, 2.0, 6.0))
    assert [curve.at(rows) for rows in (1, 2, 3, 4, 6)] == [1.0, 2.0, 4.0, 6.0, 10.0]

    rows = np.arange(1, 8)
    assert curve.over(rows).tolist() == [curve.at(int(n)) for n in rows]


def test_noise_alone_does_not_bend_the_curve() -> None:
    planner, rng = Planner(COST, topk=4, confident=True), random.Random(1)
    honest = COST.target.at(8) / COST.target.at(1)
    for number in range(10_000):
        rows = 1 if number % 100 == 0 else 8  # hardly a plain round among them
        planner.time(1, None, 0, rows, 0.0, COST.target.at(rows) * math.exp(rng.gauss(0.0, 0.25)))
        if number % 500 == 0:
            assert planner.speeds.cost.target.at(8) / planner.speeds.cost.target.at(1) == pytest.approx(
                honest, rel=0.1
            )


def test_a_depth_of_which_little_is_known_does_as_the_one_above() -> None:
    model = AcceptanceModel(8, 2)
    for _ in range(100):  # half of what the head says, and seldom anything below depth 2
        model.observe([0], [0.8])
        model.observe([1], [0.8])
    model.observe([0], [0.8, 0.7, 0.6])
    assert model.calibration[1] == pytest.approx(0.625, rel=0.1)
    assert 0.4 < model.calibration[3] < model.calibration[2] < model.calibration[1]
    assert model.calibration[8] == pytest.approx(model.calibration[3])


def test_what_is_no_number_is_not_remembered() -> None:
    """One request that overflows in float16 would end speculation for all, until the engine is restarted."""
    model, level = AcceptanceModel(8, 2), torch.tensor([[-0.5, -1.5]])
    for _ in range(100):
        model.observe([1, 1], [1.0, 0.8])
        model.observe_levels([level, level - 0.5], 8)
    before = [*model.calibration, *model.next_levels, *model.best_nodes(2, 2)]
    model.observe([0, 1], [math.nan, math.nan])
    model.observe_levels([level * math.nan, level], 8)
    after = [*model.calibration, *model.next_levels, *model.best_nodes(2, 2)]
    assert after == pytest.approx(before, rel=0.1)


def test_a_look_at_many_requests_says_as_much_as_looks_at_each() -> None:
    """Else a head that drafts nonsense is hoped to be a good one for dozens of rounds of every batch size."""
    together, apart = AcceptanceModel(8, 2), AcceptanceModel(8, 2)
    nonsense = torch.tensor([[-7.0, -8.0]])
    together.observe_levels([nonsense.expand(32, 2)], 1)
    for _ in range(32):
        apart.observe_levels([nonsense], 1)
    assert together.best_nodes(1, 2)[0] < 0.06  # the first guess is 0.6
    assert together.best_nodes(1, 2) == pytest.approx(apart.best_nodes(1, 2))


@pytest.mark.parametrize("acceptance", [0.9, 1e-9])
def test_the_usual_plan_stays_until_something_is_learnt(acceptance: float) -> None:
    planner, asked = Planner(COST, topk=8, confident=True), []

    def behind() -> int:
        asked.append(True)
        return 0

    serve(planner, 4, 300, acceptance)
    first = planner.choose(4, behind=behind)
    while (first is None) == (acceptance > 0.5):  # an exception: a try, or a plain round to compare
        planner.observe(None, 4, COST.plain_seconds(4), [])
        first = planner.choose(4, behind=behind)
    asked.clear()
    assert all(planner.choose(4, behind=behind) is first for _ in range(8))
    assert not asked
    planner.pass_over(PLAIN, 4, 4, COST.plain_seconds(4))
    assert planner.choose(4, behind=behind) is first
    assert not asked
    planner.choose(8, behind=behind)
    planner.observe(None, 4, COST.plain_seconds(4), [])
    planner.choose(4, behind=behind)
    assert len(asked) == 2


def test_rounds_that_are_passed_over_pay_for_tries_like_others() -> None:
    planner, other = (Planner(COST, topk=8, confident=True) for _ in range(2))
    for _ in range(50):
        planner.pass_over(None, 4, 4, 1.0, catch_up=0.5)
        other.observe(None, 4, 1.0, [], catch_up=0.5)
    assert planner._credit == pytest.approx(other._credit)
    assert planner.explain() == other.explain()
    assert planner.speeds.slower(4, Kind.PLAIN) == 1.0 < other.speeds.slower(4, Kind.PLAIN)


@pytest.mark.parametrize("start", [TreeShape(4, 4, 16), PLAIN])
def test_it_begins_with_what_was_tuned_and_then_goes_by_what_it_measures(start: TreeShape) -> None:
    planner = Planner(COST, topk=4, confident=False, start={4: start})
    plans = []
    for _ in range(132):
        plan = planner.choose(3)
        plans.append(PLAIN if plan is None else plan.bound)
        slow = plan is not None  # nothing of the tree comes true, and it takes a thousand times as long
        planner.observe(plan.bound if plan else None, 3, 1.0 if slow else 1e-3, [0, 0, 0] if slow else [])
    assert plans[:32] == [start] * 32
    assert sum(plan != PLAIN for plan in plans[32:]) < 20


def test_copies_that_lose_are_left_alone_and_plain_decode_stays_the_measure() -> None:
    hopeless = CostCurve((1,), (2.0,))  # so slow a head isn't even tried
    planner = Planner(CostModel(COST.target, hopeless), topk=4, confident=True, lookup=7)
    plain = COST.plain_seconds(1)

    def asked(rounds: int, slower: float) -> int:
        """Rounds of a head that doesn't pay, whose copies take `slower` times as long and bring nothing."""
        found = 0
        for _ in range(rounds):
            plan = planner.choose(1, behind=lambda: 1)
            found += plan is not None
            planner.observe(
                PLAIN if plan else None, 1, plain * (slower if plan else 1), [0], asked=plan is not None
            )
        return found

    assert asked(400, 1.05) < 120
    assert planner.speeds.without_head(1) == pytest.approx(1 / plain, rel=0.01)
    assert 0 < asked(3000, 1.05) < 450  # another chance now and then
    assert asked(1500, 0.8) > 500  # and when they pay they are asked for
    assert planner.speeds.without_head(1) == pytest.approx(1.25 / plain, rel=0.1)


def test_copies_that_lose_little_are_given_up_where_many_requests_tell_so() -> None:
    """Two percent of a round of one request is less than what one round more or less decides; of 32 it isn't."""
    hopeless = CostCurve((1,), (2.0,))
    planner = Planner(CostModel(COST.target, hopeless), topk=4, confident=True, lookup=7)
    plain, rng, asked = COST.plain_seconds(32), random.Random(3), 0
    for _ in range(4000):
        plan = planner.choose(32, behind=lambda: 32)
        asked += plan is not None
        slower = (1.02 if plan else 1.0) * rng.lognormvariate(0, 0.03)
        planner.observe(PLAIN if plan else None, 32, plain * slower, [0] * 32, asked=plan is not None)
    assert 0 < asked < 1000


def test_the_host_belongs_to_the_kind_of_round_it_followed() -> None:
    host, exposed = HostSeconds(), 0.0
    for number in range(200):
        drafted = number % 4 != 0
        found = host.of_round(exposed, drafted=drafted)
        exposed += 0.5 if drafted else 0.1
        if number > 5:
            assert found == pytest.approx(0.5 if drafted else 0.1)
    exposed += 100.0  # someone else had the machine
    host.of_round(exposed, drafted=True)
    assert host.of_round(exposed + 0.5, drafted=True) < 1.0

    hidden = HostSeconds()  # by overlap, for a while
    for before in (0.0, 0.0, 0.0, 0.2):
        found = hidden.of_round(before, drafted=True)
    assert found == pytest.approx(0.2)


def test_it_explains_what_it_did() -> None:
    planner = Planner(COST, topk=4, confident=True)
    serve(planner, 2, 100, 0.7)
    records = planner.explain()
    assert sum(record.rounds for record in records) == 100
    assert records[0].rounds >= records[-1].rounds
    assert all(1.0 <= record.tau <= 1 + record.shape.depth for record in records)


def choose_randomly(engine: Engine, rng: random.Random) -> None:
    """Replace the planner's choice."""
    shapes = [None, *SHAPES]

    def choose(requests: int, *, behind: Callable[[], int]) -> RoundPlan | None:
        shape = rng.choice(shapes)
        return None if shape is None else RoundPlan(shape)

    engine._core._planner.choose = choose  # type: ignore[method-assign]


@pytest.mark.parametrize("rate", [0.05, 0.9])
def test_adaptive_output_equals_plain_decode(
    target: Target, greedy: Greedy, prompts: list[list[int]], rate: float
) -> None:
    """Plain and speculative rounds alternate; the head catches up each time (the scripted head checks on what)."""
    expected = greedy(60)
    head = scripted_head(target, expected, rate, best_first=True)
    head.strict = False
    engine = Engine(target, head, max_batch=5)
    head.strict = True
    choose_randomly(engine, random.Random(4))
    answers = engine.generate(prompts, max_tokens=60, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert all(answer.stats.drafted_rounds < answer.stats.rounds for answer in answers)


def test_the_planner_hears_how_long_draft_steps_took_without_what_is_around_them(
    target: Target, plain: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = plain.generate(prompts[:1], max_tokens=40, ignore_eos=True)
    head = scripted_head(target, expected, 0.9, best_first=True)
    head.strict = False
    engine = Engine(target, head, max_batch=1)
    heard, looks = [], itertools.count()
    planner = engine._core._planner
    planner.choose = lambda requests, behind: RoundPlan(TreeShape(4, 4, 16))  # type: ignore[method-assign]
    planner.time = lambda requests, shape, levels, rows, draft, verify: heard.append(draft)  # type: ignore[method-assign]
    # A second passes from look to look: one at the start, one after each step.
    monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: next(looks)))
    engine.generate(prompts[:1], max_tokens=40, ignore_eos=True)
    assert set(heard) == {3}


def test_a_plain_tree_is_plain_decode_even_with_a_head(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[:2], max_tokens=9, ignore_eos=True)
    engine = Engine(target, scripted_head(target, expected, 1.0), tree=PLAIN)
    answers = engine.generate(prompts[:2], max_tokens=9, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert answers[0].stats.tau == 1.0
    assert engine.stats().tau == 1.0


def test_a_long_run_of_plain_rounds_restarts_the_head(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[:3], max_tokens=190, ignore_eos=True)
    head = scripted_head(target, expected, 1.0, best_first=True)
    head.strict = False
    engine = Engine(target, head)
    head.strict = True
    calls = iter(range(10**6))
    deep = RoundPlan(TreeShape(4, 4, 16))
    engine._core._planner.choose = lambda requests, behind: None if next(calls) < 170 else deep  # type: ignore[method-assign]
    answers = engine.generate(prompts[:3], max_tokens=190, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert answers[0].stats.token_origins[169:177] == [0, 0, 1, 2, 3, 4, 0, 1]
    assert head.restarts > 0


def test_a_head_that_was_not_shown_the_prompt_catches_up(
    target: Target, plain: Engine, prompts: list[list[int]]
) -> None:
    expected = plain.generate(prompts[:6], max_tokens=20, ignore_eos=True)
    head = scripted_head(target, expected, 1.0, best_first=True)
    head.strict = False
    engine = Engine(target, head)
    head.strict = True
    planner = engine._core._planner
    planner.pays = lambda requests: False  # type: ignore[method-assign]
    planner.choose = lambda requests, behind: RoundPlan(TreeShape(4, 4, 16))  # type: ignore[method-assign]
    answers = engine.generate(prompts[:6], max_tokens=20, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert all(answer.stats.tau > 3 for answer in answers)
