"""Rounds in one C++ call do what `TorchRound` does, bit for bit, and decide as tests/engine/decisions.py does."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate, count
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fledge.draft.tree import DraftTree
from fledge.engine import PLAIN, Candidates, Completion, Engine, Lookup, SamplingParams, TreeShape, build
from fledge.engine.batch import RunningBatch
from fledge.engine.drafters.eagle import Eagle
from fledge.engine.drafters.proposal import Proposal
from fledge.engine.planner import Kind, RoundPlan, Terms
from fledge.engine.rounds.native import NativeRound
from fledge.engine.rounds.result import RoundResult
from fledge.engine.rounds.rounds import Rounds
from fledge.engine.rounds.torch import TorchRound
from fledge.engine.shapes import lookup_alone
from fledge.heads import Head
from fledge.native.abi import MOST_NODES
from fledge.target.cpu import NativeDecoder
from fledge.target.target import Target
from tests.engine import decisions
from tests.engine.conftest import noisy_head
from tests.tiny import TinyShape, save_tiny_target

pytestmark = pytest.mark.kernels

ROUNDS = 60  # fewer would hardly show anything
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
    # A hot target and its head race with the same coins: what the head drafts is often accepted.
    "sampled": [{"temperature": 0.7}, {"temperature": 1.3}, {"temperature": 3.0}],
    "filtered": [
        {"temperature": 1.0, "top_k": 7},
        {},
        {"temperature": 0.8, "top_p": 0.6},
        {"temperature": 1.0, "min_p": 0.2},
    ],
    "edited": [
        {"logprobs": 3},
        {"temperature": 1.0, "min_p": 0.2, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"temperature": 3.0, "logprobs": 0},
        {"logit_bias": {7: 3.0, 9: -2.0}},
        {},
    ],
    "structured": [
        {"structured_outputs": {"regex": "[a-f]{3,40}-[0-9]{2,30}"}},
        {"temperature": 3.0},
        {"structured_outputs": {"choice": ["yes", 'a "no"', "über"]}, "temperature": 1.0},
        {"logprobs": 2},
    ],
}
KINDS = (
    "plain fixed confident copied accepted to_the_end deeper cut uneven someone_plain forgot "
    "copies_alone fixed_copies nothing_to_copy"
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Target:
    """Three layers on the native kernels."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=POSITIONS)
    return Target.load(str(save_tiny_target(tmp_path_factory.mktemp("round") / "llama", shape=shape)))


@pytest.fixture(scope="module")
def head(target: Target) -> Head:
    """It proposes 300 of the 512 tokens."""
    return noisy_head(target)


@pytest.mark.parametrize(
    "settings", [pytest.param(s, marks=pytest.mark.slow) if s == "filtered" else s for s in SETTINGS]
)
def test_both_backends_leave_the_same(target: Target, head: Head, settings: str) -> None:
    """Results, and all that is carried: heads that follow, fall behind and forget; requests that come and leave."""
    if settings == "structured" and find_spec("llguidance") is None:
        pytest.skip("llguidance isn't installed: pip install 'fledge[structured]'")
    native, reference = (
        Served.of(target, head, SETTINGS[settings], native=native) for native in (True, False)
    )
    assert len(native.rounds) == len(reference.rounds) > ROUNDS
    for number, (made, wanted) in enumerate(zip(native.rounds, reference.rounds, strict=True)):
        assert made.keys() == wanted.keys()
        for name, found in made.items():
            assert same(found, wanted[name]), (number, name)
    assert set(KINDS.split()) <= native.kinds
    assert "copies_accepted" in native.kinds or settings != "greedy"  # random tokens repeat nothing
    plain = Engine(target, max_batch=5, kv_tokens=2048)
    for prompt, params in reversed(requests_of(SETTINGS[settings])):
        plain.submit(prompt, params)
    expected = ended(plain)
    for answers in native.answers, reference.answers:
        assert {request: one.token_ids for request, one in answers.items()} == {
            request: one.token_ids for request, one in expected.items()
        }
    assert {request: one.stats.token_sources for request, one in native.answers.items()} == {
        request: one.stats.token_sources for request, one in reference.answers.items()
    }


def test_engines_on_the_kernels_use_them(target: Target, head: Head) -> None:
    """Else all of the above would compare Python with itself."""
    assert isinstance(Engine(target, head)._core._rounds.round, NativeRound)
    assert isinstance(Engine(target)._core._rounds.round, NativeRound)
    assert isinstance(
        Engine(target, drafter=Lookup(), tree=TreeShape(4, 1, 5))._core._rounds.round, TorchRound
    )


def test_a_fixed_tree_may_be_nothing_but_lookup(target: Target, head: Head) -> None:
    prompts = [[9, 8, 7] * 9, [30, 31]]
    expected = Engine(target).generate(prompts, max_tokens=40, ignore_eos=True)
    engine = Engine(target, head, tree=TreeShape(0, 1, 6, lookup=5))
    answers = engine.generate(prompts, max_tokens=40, ignore_eos=True)
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
    assert engine.stats().drafts > 0


def test_what_fails_in_the_midst_of_a_round_is_raised_behind_it(
    target: Target, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C++ can't pass an exception on, so it ends the round; the engine serves again after a reset."""
    engine = Engine(target, head, tree=TreeShape(3, 2, 7))
    penalty = {"max_tokens": 20, "ignore_eos": True, "repetition_penalty": 1.3}
    expected = engine.generate([[5, 6, 7]], **penalty)[0].token_ids
    engine.submit([5, 6, 7], SamplingParams(**penalty))
    engine.step()

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("device lost")

    with monkeypatch.context() as patch:
        patch.setattr(NativeDecoder, "forward", broken)
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step()
    engine.reset()
    assert engine.generate([[5, 6, 7]], **penalty)[0].token_ids == expected


@pytest.mark.parametrize("tree", [PLAIN, TreeShape(3, 2, 7)], ids=str)
def test_what_is_no_number_stays_with_its_request(tmp_path: Path, tree: TreeShape) -> None:
    """Neither its neighbours nor those who get its pages see anything of it."""
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=POSITIONS, tied=False)
    target = Target.load(str(save_tiny_target(tmp_path / "llama", shape=shape)))
    prompts = [[9, 8, 7], [30] * 20, [40] * 33]
    plainly = Engine(target).generate(prompts, max_tokens=40, ignore_eos=True)
    expected = [answer.token_ids for answer in plainly]
    broken = next(token for token in range(50, 512) if not any(token in tokens for tokens in expected))
    embedding, first = cast(NativeDecoder, target.decoder).embedding, broken // 32 * 32
    rows = embedding.rows(first, first + 32)
    rows[broken - first] = torch.nan
    embedding.pack_numbers(first, rows)
    engine = Engine(target, noisy_head(target), tree=tree, max_batch=4, max_context=160, kv_tokens=320)
    for others in ([[broken] * 90], [], []):
        answers = engine.generate([*others, *prompts], max_tokens=40, ignore_eos=True)
        assert [answer.token_ids for answer in answers[len(others) :]] == expected


def same(one: object, other: object) -> bool:
    """Bit for bit; tensors of the same type."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return one == other


class Served(NamedTuple):
    """What an engine made of all requests, and what each round left behind."""

    rounds: list[dict[str, Any]]
    kinds: set[str]  # of rounds, see `kinds_of`
    answers: dict[int, Completion]

    @classmethod
    def of(cls, target: Target, head: Head, settings: list[dict[str, Any]], *, native: bool) -> Served:
        """With plans and requests that are the same each time."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "_PENDING_PAGES", 1)
            if not native:
                patch.setattr(build, "_kernels", lambda *_: False)
            engine = Engine(target, head, max_batch=5, kv_tokens=2048)
        core, rng, calls = engine._core, random.Random(1), count()
        rounds, batch = core._rounds, core._batch
        assert isinstance(rounds.round, NativeRound if native else TorchRound)
        decode = rounds.decode if native else Deciding(rounds).decode
        core._planner.pays = lambda requests: True  # type: ignore[method-assign]
        core._scheduler._rereads = lambda *_: True
        core._planner.choose = lambda requests, behind: plan_of(rng, next(calls), core._planner)  # type: ignore[method-assign]
        found = cls([], set(), {})

        def watched(plan: RoundPlan) -> RoundResult:
            done = decode(plan)
            found.rounds.append({**values(done, batch), **left(engine)})
            found.kinds.update(kinds_of(done, plan, batch))
            return done

        core._rounds.decode = watched  # type: ignore[method-assign]
        requests = requests_of(settings)
        while engine.busy or requests:
            for _ in range(rng.choice([0, 1, 2]) if requests else 0):
                if requests:
                    engine.submit(*requests.pop(), speculate=len(requests) % 5 > 0)
            found.answers.update(stepped(engine))
        return found


def stepped(engine: Engine) -> dict[int, Completion]:
    """Answers that a step ended, by request."""
    return {one.request_id: one.completion for one in engine.step() if one.completion is not None}


def ended(engine: Engine) -> dict[int, Completion]:
    """All answers, by request."""
    answers: dict[int, Completion] = {}
    while engine.busy:
        answers.update(stepped(engine))
    return answers


def requests_of(settings: list[dict[str, Any]]) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of any length, some that repeat themselves and one that reaches the last position."""
    rng, made = random.Random(0), []
    for number in range(24):
        length = rng.choice([1, 3, 31, 32, 33, 70])
        prompt = [rng.randrange(6, 512) for _ in range(length)] * rng.choice([1, 3])
        limit = rng.choice([5, 60])
        if number == 20:
            prompt, limit = prompt[:1] * (POSITIONS - 12), 12
        setting: dict[str, Any] = {"ignore_eos": "structured_outputs" not in settings[number % len(settings)]}
        setting |= settings[number % len(settings)]
        made.append((prompt, SamplingParams(max_tokens=limit, seed=number, **setting)))
    return made


def plan_of(rng: random.Random, call: int, planner: Any) -> RoundPlan:
    """A fixed tree, or one that decides as it grows.

    Now and then a plain round instead, that heads fall behind, and once so many that they forget.
    """
    shape, kind = rng.choice(SHAPES), rng.random()
    if kind < 0.15 or 20 < call < 60:
        return RoundPlan(PLAIN, planner.match_rates)
    if kind < 0.4:
        return RoundPlan(lookup_alone(7) if kind > 0.35 else shape, planner.match_rates)
    bound = lookup_alone(7) if kind > 0.75 else shape
    return RoundPlan(bound, planner.match_rates, terms_of(rng))


def terms_of(rng: random.Random) -> Terms:
    """From those by which almost everything is worth its while to those by which almost nothing is."""
    price = rng.choice([0.1, 1.0, 3.0])
    gaps = [rng.randrange(1, 30) for _ in range(rng.randrange(1, 4))]
    costs = (price * gap * rng.uniform(-0.005, 0.05) for gap in gaps)
    return Terms(
        calibration=[rng.uniform(0.5, 1.2) for _ in range(17)],
        next_levels=[rng.uniform(0.4, 0.9) for _ in range(8)],
        rows=tuple(accumulate(gaps, initial=1)),
        costs=list(accumulate(costs, initial=0.5)),
        step=price * rng.uniform(0.01, 0.2),
    )


class Uneven(NamedTuple):
    """`Drafts` of which each request has a number of its own."""

    tree: DraftTree
    shape: TreeShape
    levels: Sequence[Tensor]
    proposal: Proposal | None
    sizes: list[int]

    @property
    def sources(self) -> Tensor:
        """As in `Drafts`."""
        return self.tree.sources

    @property
    def rows(self) -> int:
        """As in `Drafts`."""
        return len(self.sizes) + sum(self.sizes)


class Deciding:
    """`TorchRound`, and in Python what it leaves to C++: a plan's decisions, and heads that chains leave behind."""

    def __init__(self, rounds: Rounds) -> None:
        self._decode, self._batch = rounds.decode, rounds.batch
        assert isinstance(rounds.drafter, Eagle)
        self._eagle = rounds.drafter

    def decode(self, plan: RoundPlan) -> RoundResult:
        """As `Rounds.decode` over a `NativeRound`."""
        if plan.kind is Kind.PLAIN or (plan.drafts and plan.terms is None):
            return self._decode(plan)
        if plan.terms is None:
            return self._keeping(plan)
        if plan.drafts:
            self._eagle.catch_up(self._batch)
        made, counts = decided(self._batch, self._eagle, plan)
        # Where the head runs it follows, even if no node is worth its row: one that is empty stands for it.
        nodes = 1 + max(*counts, int(plan.drafts))
        shape = plan.bound.cut(len(made.levels), nodes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self._eagle, "propose", lambda batch, plan: only_best(made, counts))
            fixed = RoundPlan(shape, plan.match_rates)
            done = self._decode(fixed) if plan.drafts else self._keeping(fixed)
        drafted = Uneven(own_trees(made, counts), shape, made.levels, made.proposal, counts)
        numbers = (done.drafted.tree.token_ids >= 0).cumsum(1) - 1  # of the nodes that aren't empty
        return done._replace(drafted=drafted, path=numbers.gather(1, done.path))

    def _keeping(self, plan: RoundPlan) -> RoundResult:
        """A round without the head, for which it is kept what all accepted tokens were."""
        eagle, batch, size = self._eagle, self._batch, self._batch.size
        length, passed = batch.view().length.tolist(), list[Tensor]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(eagle, "rest", lambda batch, tokens, features: passed.append(features))
            patch.setattr(eagle, "fell_behind", lambda counts: None)
            done = self._decode(plan)
        if not passed:
            return done
        state, counts = eagle.view(size), done.emitted[:, 0].tolist()
        features = passed[0].view(size, -1, passed[0].shape[1])
        for row, accepted in enumerate(counts):
            for step in range(accepted):
                column = (length[row] + step) % eagle.sizes.pending
                state.recent_tokens[row, column] = done.emitted[row, 1 + step]
                state.recent_features[row, column] = features[row, step]
        eagle.fell_behind(counts)
        pending, restarted = eagle.behind(size)
        return done._replace(pending=pending, restarted=restarted)


def decided(batch: RunningBatch, eagle: Eagle, plan: RoundPlan) -> tuple[Candidates, list[int]]:
    """The candidates of trees that are grown as far as the plan wants, and how many each request gets."""
    bound, level = plan.bound, min(plan.bound.depth, 1)
    while True:
        shape = TreeShape(level, bound.topk, level + 1, bound.lookup)
        made = eagle.propose(batch, RoundPlan(shape, plan.match_rates))
        if level == bound.depth or not decisions.goes_deeper(plan, level, open_mass(made, bound.topk)):
            break
        level += 1
    speculates = batch.speculating().mask
    scores = made.log_probs
    if speculates is not None:
        scores = scores.masked_fill(~speculates[:, None], -torch.inf)
    return made, decisions.nodes(plan, scores, made.depths[1:])


def open_mass(made: Candidates, topk: int) -> list[float]:
    """[B] probability that the next token is a child of the last level's best and isn't proposed by lookup."""
    frontier = made.levels[-1].sort(dim=1, descending=True).values[:, :topk]
    masses = frontier.exp().sum(1).tolist()
    return [mass - covered(made, row) for row, mass in enumerate(masses)]


def covered(made: Candidates, row: int) -> float:
    """Probability of the token that lookup proposes behind the last level; 0 where the two have parted before."""
    levels, proposal = len(made.levels), made.proposal
    if proposal is None or levels >= proposal.token_ids.shape[1]:
        return 0.0
    number, ends = 0, [1, *(1 + end for end in accumulate(level.shape[1] for level in made.levels))]
    for token, begin, end in zip(proposal.token_ids[row].tolist(), ends, ends[1:], strict=False):
        level = range(begin, end)
        hits = [n for n in level if made.token_ids[row, n] == token and made.parents[row, n] == number]
        if not hits:
            return 0.0
        number = hits[0]
    reached = made.log_probs[row, number - 1] if number else torch.zeros(())
    return float((reached + proposal.log_probs[row, levels]).exp())


def only_best(made: Candidates, counts: Sequence[int]) -> Candidates:
    """Each request's best so many candidates; the others are empty."""
    order = made.log_probs.sort(dim=1, descending=True, stable=True).indices
    kept = torch.zeros_like(order, dtype=torch.bool)
    kept.scatter_(1, order, torch.arange(order.shape[1]) < torch.tensor(counts)[:, None])
    tokens = made.token_ids.clone()
    tokens[:, 1:].masked_fill_(~kept, -1)
    return made._replace(token_ids=tokens, log_probs=made.log_probs.masked_fill(~kept, -torch.inf))


def own_trees(made: Candidates, counts: Sequence[int]) -> DraftTree:
    """The trees of each request's best so many candidates; what lies behind these means nothing."""
    trees = [made.select(1 + count, MOST_NODES) for count in counts]
    columns = zip(*([column[row] for column in tree] for row, tree in enumerate(trees)), strict=True)
    return DraftTree(*(pad_sequence(list(column), batch_first=True) for column in columns))


def values(done: RoundResult, batch: RunningBatch) -> dict[str, Any]:
    """A round's result; of tokens, paths and nodes only what means something, of drafts those of who speculates."""
    rows, drafted = done.emitted.tolist(), done.drafted
    sizes = [0] * len(rows) if drafted is None else drafted.sizes
    who = speculating(batch)
    told = done.logprobs.read([tokens[:count] for count, *tokens in rows]) if done.logprobs else None
    made = {
        "emitted": [row[1 : 1 + row[0]].clone() for row in done.emitted],
        "path": [path[: row[0]].clone() for path, row in zip(done.path, rows, strict=True)],
        "logprobs": told,
        "pending": list(done.pending),
        "restarted": list(done.restarted),
        "sizes": sizes,
    }
    if drafted is None or not max(sizes):
        return {**made, "tree": None, "levels": None, "proposal": None}
    return {
        **made,
        "tree": [column[row, : 1 + sizes[row]].clone() for row in who for column in drafted.tree],
        "levels": [level[who] for level in drafted.levels],
        "proposal": None if drafted.proposal is None else [column[who] for column in drafted.proposal],
    }


def speculating(batch: RunningBatch) -> list[int]:
    """Rows of the requests that do."""
    rows = batch.speculating().rows
    return list(range(batch.size)) if rows is None else rows


def left(engine: Engine) -> dict[str, Any]:
    """All that later rounds read."""
    core = engine._core
    batch, eagle, target = core._batch, core._drafter, core._target
    assert isinstance(eagle, Eagle)
    now, state = batch.view(), eagle.view(batch.size)
    who = speculating(batch)
    lengths, starts = now.length.tolist(), state.head_start.tolist()
    entries = entry_masks(target.decoder)
    head_kv = {row: lengths[row] - starts[row] - eagle.pending[row] for row in who}
    return {
        "length": now.length.clone(),
        "bonus": now.bonus.clone(),
        "page_table": now.page_table.clone(),
        "history": [row[: length + 1].clone() for row, length in zip(now.history, lengths, strict=True)],
        "head": [column[who] for column in state],
        "kv": [
            committed(target.kv, pages, length, entries)
            for pages, length in zip(now.page_table.tolist(), lengths, strict=True)
        ],
        "head_kv": [
            committed(eagle.kv, state.head_pages[row].tolist(), length, entries)
            for row, length in head_kv.items()
        ],
    }


def committed(kv: Tensor, pages: Sequence[int], length: int, entries: Tensor) -> Tensor:
    """The KV of a request's first `length` entries, page by page; `entries` as of `entry_masks`."""
    size, parts = len(entries), [kv.new_empty(0)]
    for begin in range(0, length, size):
        known = entries[: length - begin].any(0)
        parts.append(kv[:, pages[begin // size]][:, :, known].flatten())
    return torch.cat(parts)


_entry_masks: list[Tensor] = []


def entry_masks(decoder: Any) -> Tensor:
    """[page size, 2, page size * head_dim] bool: which numbers of a page are each entry's keys and values."""
    if not _entry_masks:
        size = decoder.page_size
        for entry in range(size):
            pool = decoder.allocate_kv(2)
            pool[:, 0] = 1
            decoder.move_kv(pool, torch.tensor([entry]), torch.tensor([size + entry]))
            _entry_masks.append(pool[0, 1, 0] != 0)
    return torch.stack(_entry_masks)


def kinds_of(done: RoundResult, plan: RoundPlan, batch: RunningBatch) -> list[str]:
    """What happened in a round, by name."""
    drafted = done.drafted
    if plan.kind is Kind.PLAIN:
        return ["plain"]
    bound, terms, sizes = plan.bound, plan.terms, drafted.sizes
    if not max(sizes):
        return [] if plan.drafts else ["nothing_to_copy"]
    proposal, longest = drafted.proposal, int(done.emitted[:, 0].max())
    happened = {
        "confident" if terms else "fixed": True,
        "copied": proposal is not None and bool((proposal.matched > 0).any()),
        "accepted": longest > 1,
        "to_the_end": longest == done.path.shape[1],
        "deeper": len(drafted.levels) > 1,
        "cut": drafted.shape.nodes < bound.nodes,
        "uneven": len(set(sizes)) > 1,
        "someone_plain": batch.speculating().mask is not None,
        "forgot": any(done.restarted),
        "copies_alone": not bound.depth,
        "fixed_copies": not bound.depth and terms is None,
        "copies_accepted": not bound.depth and longest > 1,
    }
    return [name for name, true in happened.items() if true]
