"""A round's native calls do what its Python does, bit for bit: drafting, and the head's step over what was accepted."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from fledge.engine import PLAIN, Engine, SamplingParams, TreeShape, build, result
from fledge.engine.carried import RunningBatch
from fledge.engine.forwards import Models
from fledge.engine.native_round import NativeDraft
from fledge.engine.outcome import Outcome
from fledge.engine.phases import PhaseClock
from fledge.engine.planner.cost import CostCurve, CostModel
from fledge.engine.planner.plan import ConfidentPlan, RoundPlan
from fledge.engine.shapes import lookup_alone
from fledge.heads import Head
from fledge.target.cpu import NativeDecoder
from fledge.target.target import Target
from tests.engine.conftest import noisy_head
from tests.tiny import TinyShape, save_tiny_target

pytestmark = pytest.mark.kernels

ROUNDS = 60
POSITIONS = 256
SHAPES = [
    TreeShape(1, 1, 2),
    TreeShape(1, 4, 5),
    TreeShape(2, 2, 6, lookup=5),
    TreeShape(3, 1, 4),
    TreeShape(4, 3, 12),
    TreeShape(5, 4, 24, lookup=15),
    TreeShape(6, 8, 48, lookup=9),
]
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{}],
    "sampled": [{"temperature": 0.7}, {"temperature": 1.3}],
    "filtered": [
        {"temperature": 1.0, "top_k": 7},
        {},
        {"temperature": 0.8, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.2, "repetition_penalty": 1.3},
    ],
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Three layers on the native kernels."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=POSITIONS)
    return Target.load(str(save_tiny_target(tmp_path_factory.mktemp("round") / "llama", shape=shape)))


@pytest.fixture(scope="module")
def head(target: Target) -> Head:
    """It proposes 300 of the 512 tokens."""
    return noisy_head(target)


@pytest.mark.parametrize("settings", SETTINGS)
def test_native_rounds_leave_what_python_rounds_leave(target: Target, head: Head, settings: str) -> None:
    """Outcomes, and all that is carried: heads that follow, fall behind and forget; requests that come and leave."""
    native, python = (
        list(rounds(target, head, SETTINGS[settings], native=native)) for native in (True, False)
    )
    assert len(native) == len(python) > ROUNDS / 2
    seen = Counter[str]()
    for number, (made, wanted) in enumerate(zip(native, python, strict=True)):
        assert made.keys() == wanted.keys()
        for name, found in made.items():
            assert same(found, wanted[name]), (number, name)
        seen.update(made["kinds"])
    all_kinds = (
        "fixed confident copied accepted to_the_end deeper cut uneven someone_plain forgot "
        "copies_alone fixed_copies nothing_to_copy"
    )
    assert set(all_kinds.split()) <= set(seen)
    assert "copies_accepted" in seen or settings != "greedy"  # random tokens repeat nothing


def test_engines_on_the_kernels_use_them(target: Target, head: Head) -> None:
    """Else all of the above would compare Python with itself."""
    assert Engine(target, head)._core._models.native is not None
    assert Engine(target)._core._models.native is None
    assert Engine(target)._core._models.native_plain is not None


def test_a_fixed_tree_may_be_nothing_but_lookup(target: Target, head: Head) -> None:
    prompts = [[9, 8, 7] * 9, [30, 31]]
    expected = Engine(target).generate(prompts, max_tokens=40, ignore_eos=True)
    engine = Engine(target, head, tree=TreeShape(0, 1, 6, lookup=5))
    answers = engine.generate(prompts, max_tokens=40, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert engine.stats().drafts > 0


@pytest.mark.parametrize("tree", [PLAIN, TreeShape(3, 2, 7)], ids=str)
def test_what_is_no_number_stays_with_its_request(tmp_path: Path, tree: TreeShape) -> None:
    """Neither its neighbours nor those who get its pages see anything of it."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=POSITIONS, tied=False)
    target = Target.load(str(save_tiny_target(tmp_path / "llama", shape=shape)))
    prompts = [[9, 8, 7], [30] * 20, [40] * 33]
    plainly = Engine(target).generate(prompts, max_tokens=40, ignore_eos=True)
    expected = [answer.token_ids for answer in plainly]
    broken = next(token for token in range(50, 512) if not any(token in tokens for tokens in expected))
    cast(NativeDecoder, target.decoder)._embedding[broken] = torch.nan
    engine = Engine(target, noisy_head(target), tree=tree, max_batch=4, max_context=160, kv_tokens=320)
    for company in ([[broken] * 90], [], []):
        answers = engine.generate([*company, *prompts], max_tokens=40, ignore_eos=True)
        assert [answer.token_ids for answer in answers[len(company) :]] == expected


def same(one: object, other: object) -> bool:
    """Bit for bit; tensors of the same type."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


def rounds(
    target: Target, head: Head, settings: list[dict[str, Any]], *, native: bool
) -> Iterator[dict[str, Any]]:
    """What each speculative round made and left behind; plans and requests are the same each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_PENDING_PAGES", 1)
        engine = Engine(target, head, max_batch=5, kv_tokens=2048)
    core, rng = engine._core, random.Random(1)
    if not native:
        core._models = replace(core._models, native=None, native_plain=None)
    core._planner.pays = lambda requests: True  # type: ignore[method-assign]
    core._scheduler._rereads = lambda *_: True
    calls = count()
    core._planner.choose = lambda requests, behind: plan_of(rng, next(calls), core._planner, requests)  # type: ignore[method-assign]
    requests = requests_of(settings)
    found: list[dict[str, Any]] = []

    def watched(
        made_by: Callable[[Models, RunningBatch, RoundPlan, PhaseClock], Outcome | None],
        models: Models,
        batch: RunningBatch,
        plan: RoundPlan,
        clock: PhaseClock,
    ) -> Outcome | None:
        assert (models.native is not None) == native
        done = made_by(models, batch, plan, clock)
        if done is None:
            found.append({**left(models, batch), "kinds": ["nothing_to_copy"]})
            return None
        by_calls = native and (plan.drafts or not batch.selection.wants_logits)
        assert isinstance(done.drafted, NativeDraft) == by_calls
        found.append({**copied(done), **left(models, batch), "kinds": kinds(done, plan, batch)})
        return done

    speculative, lookup = result.speculative_round, result.lookup_round
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(result, "speculative_round", partial(watched, speculative))
        patch.setattr(result, "lookup_round", partial(watched, lookup))
        while (engine.busy or requests) and len(found) < ROUNDS:
            for _ in range(rng.choice([0, 1, 2]) if requests else 0):
                if requests:
                    engine.submit(*requests.pop(), speculate=len(requests) % 5 > 0)
            engine.step()
            yield from found
            found.clear()


def requests_of(settings: list[dict[str, Any]]) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of any length, some that repeat themselves and one that reaches the last position."""
    rng, made = random.Random(0), []
    for number in range(24):
        length = rng.choice([1, 3, 31, 32, 33, 70])
        prompt = [rng.randrange(6, 512) for _ in range(length)] * rng.choice([1, 3])
        limit = rng.choice([5, 60])
        if number == 20:
            prompt, limit = prompt[:1] * (POSITIONS - 12), 12
        setting = settings[number % len(settings)]
        made.append((prompt, SamplingParams(max_tokens=limit, seed=number, ignore_eos=True, **setting)))
    return made


def plan_of(rng: random.Random, call: int, planner: Any, requests: int) -> RoundPlan | None:
    """A fixed tree, or one that decides as it grows.

    Now and then a plain round instead, that heads fall behind, and once so many that they forget.
    """
    shape, kind, price = rng.choice(SHAPES), rng.random(), rng.choice([1, 3, 8])
    if kind < 0.15 or 20 < call < 60:
        return None
    if kind < 0.4:
        return RoundPlan(lookup_alone(7) if kind > 0.35 else shape, planner.match_rates)
    target = CostCurve((1, 4, 16, 64), (0.02, 0.021, 0.025, 0.05))
    cost = CostModel(target, CostCurve((1, 64), (0.001, 0.003)))
    bound = lookup_alone(7) if kind > 0.75 else shape
    return ConfidentPlan(bound, planner.match_rates, requests, 11 * price, cost, planner.speeds.acceptance)


def copied(done: Outcome) -> dict[str, Any]:
    """An outcome's values; of emitted tokens and paths only what means something."""
    emits = done.emitted[:, 0].tolist()
    return {
        "emitted": [row[1 : 1 + size].clone() for row, size in zip(done.emitted, emits, strict=True)],
        "path": [row[:size].clone() for row, size in zip(done.path, emits, strict=True)],
        "tree": [column.clone() for column in done.drafted.tree],
        "shape": done.shape,
        "levels": [level.clone() for level in done.drafted.levels],
        "proposal": None
        if done.drafted.proposal is None
        else [column.clone() for column in done.drafted.proposal],
        "rows": done.rows,
    }


def left(models: Models, batch: RunningBatch) -> dict[str, Any]:
    """All that later rounds read."""
    now = batch.view()
    assert models.head_kv is not None
    carried = {name: value.clone() for name, value in now._asdict().items() if name != "history"}
    known = [row[: length + 1].clone() for row, length in zip(now.history, now.length.tolist(), strict=True)]
    state = {"pending": batch.pending[: batch.size], "restarted": batch.restarted[: batch.size]}
    return {**carried, **state, "known": known, "kv": models.kv.clone(), "head_kv": models.head_kv.clone()}


def kinds(done: Outcome, plan: RoundPlan, batch: RunningBatch) -> list[str]:
    """What happened in a round, by name."""
    bound, sizes = plan.bound, (done.drafted.tree.token_ids >= 0).sum(1)
    happened = {
        "confident" if plan.terms() else "fixed": True,
        "copied": done.drafted.proposal is not None and bool((done.drafted.proposal.matched > 0).any()),
        "accepted": bool((done.emitted[:, 0] > 1).any()),
        "to_the_end": int(done.emitted[:, 0].max()) == done.path.shape[1],
        "deeper": len(done.drafted.levels) > 1,
        "cut": done.shape.nodes < bound.nodes,
        "uneven": len(set(sizes.tolist())) > 1,
        "someone_plain": batch.speculating().mask is not None,
        "forgot": any(batch.restarted[: batch.size]),
        "copies_alone": not bound.depth,
        "fixed_copies": not bound.depth and plan.terms() is None,
        "copies_accepted": not bound.depth and bool((done.emitted[:, 0] > 1).any()),
    }
    return [name for name, true in happened.items() if true]
