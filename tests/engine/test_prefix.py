"""Requests begin with what others left in the KV pool; answers and acceptance are those of a prefill from the start."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fledge.draft import DraftVocabulary
from fledge.engine import PLAIN, Completion, Engine, SamplingParams, TreeShape
from fledge.engine.planner import RoundPlan
from fledge.engine.pool import PagePool
from fledge.engine.prefix import Match, PrefixCache
from fledge.engine.request import Request
from fledge.heads import Head
from fledge.target.target import Target
from tests.engine.conftest import VOCABULARY, eagle, scripted_head
from tests.tiny import TinyShape, save_tiny_target

ON_BOTH_BACKENDS = True

TREE = TreeShape(3, 3, 8)
TOKENS = 25


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(6, VOCABULARY) for _ in range(count)]


def facts(answers: Sequence[Completion]) -> list[tuple[list[int], int, list[int]]]:
    """Tokens and acceptance."""
    return [(a.token_ids, a.stats.rounds, a.stats.accepted_by_depth) for a in answers]


def answer(engine: Engine, prompts: Sequence[list[int]], *, speculate: bool = True) -> list[Completion]:
    return engine.generate(list(prompts), max_tokens=TOKENS, ignore_eos=True, speculate=speculate)


def cold(engine: Engine) -> Engine:
    """The same engine without its cache."""
    engine._core._scheduler.prefix = None
    return engine


def first_level(engine: Engine) -> tuple[torch.Tensor, ...]:
    """The head's newest output for the running requests: its best tokens, their probabilities, and its state."""
    state = eagle(engine).view(engine._core._batch.size)
    return state.first_token_ids, state.first_log_probs, state.hidden


def prompts_alike(size: int) -> list[list[int]]:
    """Prompts that part at, before and behind the ends of pages."""
    rng = random.Random(4)
    start = random_tokens(rng, 4 * size)
    ends = [size - 1, size, size + 1, 2 * size - 1, 2 * size, 2 * size + 1, 3 * size + 5, 4 * size]
    return [start[:end] + random_tokens(rng, 1 + n) for n, end in enumerate(ends)]


def test_hits_cost_neither_tokens_nor_acceptance(target: Target, plain: Engine) -> None:
    """The scripted head checks itself that each row sees exactly the tokens before it."""
    size = target.decoder.page_size
    prompts = prompts_alike(size)
    head = scripted_head(target, answer(Engine(target, prefix_cache=False), prompts), 0.8)
    expected = [answer(cold(Engine(target, head, tree=TREE)), [prompt])[0] for prompt in prompts]
    engine = Engine(target, head, tree=TREE)
    for turn in range(2):
        answers = [answer(engine, [prompt])[0] for prompt in prompts]
        assert facts(answers) == facts(expected)
        hits = [a.stats.cached_tokens for a in answers]
        if turn == 0:  # the token behind a page has to be the same as well
            assert hits == [0, 0, 0, size, size, size, 2 * size, 3 * size]
        else:  # all but the last token, rounded down to pages
            assert hits == [(len(prompt) - 1) // size * size for prompt in prompts]
    assert engine.stats().hit_tokens == 8 * size + sum(hits)
    assert all(a.stats.cached_tokens == 0 for a in expected)


@pytest.mark.kernels
def test_a_real_head_on_the_kernels_proposes_the_same_after_a_hit_to_the_last_bit(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    shape = TinyShape(layers=3, heads=2, kv_heads=1, positions=256)
    target = Target.load(str(save_tiny_target(tmp_path_factory.mktemp("prefix") / "llama", shape=shape)))
    head = Head.from_target(target, DraftVocabulary.from_counts(torch.rand(VOCABULARY), 300))
    size, parameters = target.decoder.page_size, SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    engine, fresh = Engine(target, head, tree=TREE), Engine(target, head, tree=TREE, prefix_cache=False)
    prompts = prompts_alike(size)
    answer(engine, prompts)
    for prompt in prompts:
        states = []
        for one in (engine, fresh):
            number = one.submit(prompt, parameters)
            one.step()  # prefill and the first round
            states.append([tensor.clone() for tensor in first_level(one)])
            one.cancel(number)
        for hit, none in zip(*states, strict=True):
            assert torch.equal(hit, none)
    assert engine.stats().hit_tokens > 10 * size
    assert fresh.stats().hit_tokens == 0


def test_the_next_turn_begins_with_the_last_turns_answer(target: Target, plain: Engine) -> None:
    size = target.decoder.page_size
    first = random_tokens(random.Random(5), 2 * size - 13)
    done = answer(Engine(target, prefix_cache=False), [first])[0]
    second = [*first, *done.token_ids, *random_tokens(random.Random(6), 4)]
    both = [done, answer(Engine(target, prefix_cache=False), [second])[0]]
    head = scripted_head(target, both, 1.0, best_first=True)
    engine = Engine(target, head, tree=TREE)
    answer(engine, [first])
    again = answer(engine, [second])[0]
    assert again.token_ids == both[1].token_ids
    assert again.stats.cached_tokens == (len(first) + TOKENS - 1) // size * size > size
    assert again.stats.rounds == (TOKENS - 1) // (TREE.depth + 1)


def test_pages_the_head_has_not_seen_yet_are_not_offered_to_speculation(target: Target) -> None:
    """A request that ends after plain rounds leaves its head behind; the next turn must not feel it."""
    size = target.decoder.page_size
    first = random_tokens(random.Random(7), size - 4)
    reference = Engine(target, prefix_cache=False)
    done = answer(reference, [first])[0]
    second = [*first, *done.token_ids, 9, 10]
    head = scripted_head(target, [done, answer(reference, [second])[0]], 1.0, best_first=True)
    head.strict = False  # while costs are measured
    engine = Engine(target, head)
    head.strict = True
    engine._core._planner.choose = lambda requests, behind: RoundPlan(PLAIN)  # type: ignore[method-assign]
    engine._core._scheduler._rereads = lambda *_: True
    answer(engine, [first])
    tree = TreeShape(2, 4, 8)
    engine._core._planner.choose = lambda requests, behind: RoundPlan(tree)  # type: ignore[method-assign]
    assert answer(engine, [second])[0].stats.rounds == (TOKENS - 1) // (tree.depth + 1)


def test_pages_before_a_head_that_restarted_are_not_offered_to_speculation(
    target: Target, backend: str
) -> None:
    """Plain rounds until the head can't catch up on all of them, then trees again: a gap stays in its KV."""
    if backend == "native":
        pytest.skip("the target's 256 positions hold too few pages of the kernels' size")
    size = target.decoder.page_size
    first = random_tokens(random.Random(13), size + 3)
    head = scripted_head(target, [], 1.0, best_first=True)
    head.strict = False
    engine = Engine(target, head)
    engine._core._scheduler._rereads = lambda *_: True
    plain_rounds = eagle(engine).sizes.pending + size
    count = plain_rounds + 10
    done = Engine(target, prefix_cache=False).generate([first], max_tokens=count, ignore_eos=True)[0]
    second = [*first, *done.token_ids, 9, 10]
    after = Engine(target, prefix_cache=False).generate([second], max_tokens=13, ignore_eos=True)[0]
    head.learn([*one.prompt_token_ids, *one.token_ids] for one in (done, after))
    tree, rounds = TreeShape(2, 4, 8), itertools.count()
    engine._core._planner.choose = lambda requests, behind: (  # type: ignore[method-assign]
        RoundPlan(PLAIN if next(rounds) < plain_rounds else tree)
    )
    assert engine.generate([first], max_tokens=count, ignore_eos=True)[0].token_ids == done.token_ids
    again = engine.generate([second], max_tokens=13, ignore_eos=True)[0]
    assert again.token_ids == after.token_ids
    assert again.stats.cached_tokens == size
    assert again.stats.rounds == 12 // (tree.depth + 1)
    target_only = engine.generate([second], max_tokens=1, speculate=False)[0]
    assert target_only.stats.cached_tokens == (len(second) - 1) // size * size


def test_pages_without_head_serve_plain_requests_only_until_a_speculating_one_replaces_them(
    target: Target, plain: Engine
) -> None:
    size = target.decoder.page_size
    prompt = random_tokens(random.Random(8), 2 * size + 2)
    expected = answer(Engine(target, prefix_cache=False), [prompt])
    head = scripted_head(target, expected, 1.0, best_first=True)
    engine = Engine(target, head, tree=TREE)
    hits = []
    for speculate in (False, False, True, True, False):
        got = answer(engine, [prompt], speculate=speculate)
        assert got[0].token_ids == expected[0].token_ids
        assert got[0].stats.tau == (TREE.depth + 1 if speculate else 1)
        hits.append(got[0].stats.cached_tokens)
    assert hits == [0, 2 * size, 0, 2 * size, 2 * size]
    engine.check()


def test_pages_without_head_serve_all_where_running_them_again_costs_more(
    target: Target, backend: str
) -> None:
    """The head begins behind them; what it writes there is offered to nobody."""
    if backend == "native":
        pytest.skip("only the scripted head in torch counts its restarts")
    size = target.decoder.page_size
    prompt = random_tokens(random.Random(14), 3 * size + 2)
    reference = Engine(target, prefix_cache=False)
    expected = answer(reference, [prompt])
    longer = [*prompt, *expected[0].token_ids, *random_tokens(random.Random(15), 2 * size)]
    after = answer(reference, [longer])
    head = scripted_head(target, [*expected, *after], 1.0, best_first=True)
    engine = Engine(target, head, tree=TREE)
    scheduler = engine._core._scheduler
    answer(engine, [prompt], speculate=False)
    pages = (len(prompt) + TOKENS - 1) // size
    for rereads, hits, restarts in (
        (False, pages * size, True),
        (True, 0, False),
        (True, len(longer) // size * size, False),
    ):
        scheduler._rereads = lambda *_, rereads=rereads: rereads
        before = head.restarts
        got = answer(engine, [longer])[0]
        assert got.token_ids == after[0].token_ids
        assert got.stats.tau == TREE.depth + 1
        assert got.stats.cached_tokens == hits
        assert (head.restarts > before) == restarts
        assert scheduler.prefix is not None
        assert not (restarts and any(entry.with_head for entry in scheduler.prefix._entries.values()))
    engine.check()


def test_a_head_that_caught_up_leaves_its_pages_to_speculating_requests(target: Target) -> None:
    """It wasn't shown the prompt, for speculation didn't pay then."""
    size = target.decoder.page_size
    prompt = random_tokens(random.Random(16), 2 * size + 2)
    done = answer(Engine(target, prefix_cache=False), [prompt])
    head = scripted_head(target, done, 1.0, best_first=True)
    head.strict = False  # while costs are measured
    engine = Engine(target, head)
    head.strict = True
    planner = engine._core._planner
    planner.choose = lambda requests, behind: RoundPlan(TREE)  # type: ignore[method-assign]
    planner.pays = lambda requests: False  # type: ignore[method-assign]
    engine._core._scheduler._rereads = lambda *_: True
    for hits in (0, 2 * size):
        got = answer(engine, [prompt])[0]
        assert got.token_ids == done[0].token_ids
        assert got.stats.tau == TREE.depth + 1
        assert got.stats.cached_tokens == hits
    engine.check()


def test_prompts_that_begin_alike_and_come_together_are_written_once(target: Target) -> None:
    rng, size = random.Random(9), target.decoder.page_size
    start = random_tokens(rng, 100)
    prompts = [start + random_tokens(rng, 3) for _ in range(5)] + [random_tokens(rng, 60) for _ in range(2)]
    expected = answer(Engine(target, prefix_cache=False), prompts)
    engine = Engine(target)
    assert facts(answer(engine, prompts)) == facts(expected)
    assert engine.stats().hit_tokens == 4 * (100 // size * size)
    first = [engine.submit(prompt, SamplingParams(max_tokens=2)) for prompt in (prompts[5], *prompts[:2])]
    # Nobody waits for what is there already.
    assert [result.request_id for result in engine.step()][:3] == first


def test_what_a_preempted_prompt_left_itself_was_not_cached(target: Target, backend: str) -> None:
    if backend == "native":
        pytest.skip("made for pages of 16 tokens")
    rng = random.Random(11)
    engine = Engine(target, max_batch=2, max_context=200, kv_tokens=220, busy_prefill_rows=3)
    engine.submit(random_tokens(rng, 30), SamplingParams(max_tokens=150, ignore_eos=True))
    engine.step()
    late = engine.submit(random_tokens(rng, 140), SamplingParams(max_tokens=2, ignore_eos=True))
    done = {}
    while engine.busy:
        done.update({result.request_id: result.completion for result in engine.step()})
    assert engine.stats().preemptions == 1
    assert engine.stats().hit_tokens > 0
    assert done[late].stats.cached_tokens == 0


def test_without_prefix_cache_nothing_is_kept(target: Target) -> None:
    engine = Engine(target, prefix_cache=False)
    prompt = random_tokens(random.Random(10), 100)
    for _ in range(2):
        assert answer(engine, [prompt])[0].stats.cached_tokens == 0
    assert engine.stats().hit_tokens == engine.stats().pages_cached == 0


def test_a_page_that_is_kept_is_never_written_again(target: Target) -> None:
    """Not while others decode behind it, and not while trees are verified and paths are moved."""
    rng, size = random.Random(11), target.decoder.page_size
    start = random_tokens(rng, 3 * size)
    prompts = [start[: rng.randrange(size, 3 * size)] + random_tokens(rng, 9) for _ in range(20)]
    head = scripted_head(target, answer(Engine(target, prefix_cache=False), prompts), 0.7)
    engine = Engine(target, head, tree=TREE, max_batch=4)
    prefix, kv = engine._core._scheduler.prefix, engine._core._target.kv
    assert prefix is not None
    head_kv = eagle(engine).kv
    seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def contents(page: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = slice(page * size, (page + 1) * size)
        return kv[:, :, slots].clone(), head_kv[slots].clone()

    for prompt in prompts:
        engine.submit(prompt, SamplingParams(max_tokens=TOKENS, ignore_eos=True))
    while engine.busy:
        engine.step()
        for page in prefix._key_of:
            if page not in seen:
                seen[page] = contents(page)
            for before, now in zip(seen[page], contents(page), strict=True):
                assert torch.equal(before, now)
    assert len(seen) > 20


@pytest.mark.parametrize(("tokens", "pages"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3)])
def test_a_request_that_finds_all_its_pages_has_a_token_left_to_run(tokens: int, pages: int) -> None:
    cache = PrefixCache(PagePool(5, 4), heads=True)
    request = Request(list(range(tokens)), SamplingParams(), 0, frozenset(), True, None)
    assert len(cache.keys(request)) == pages


def test_a_match_ends_for_heads_where_the_first_page_lacks_their_entries() -> None:
    pool = PagePool(5, 4)
    cache = PrefixCache(pool, heads=True)

    def request(head_written: int) -> Request:
        made = Request(list(range(13)), SamplingParams(), 0, frozenset(), True, None)
        made.draft.written = head_written
        return made

    first = request(head_written=12)
    pool.reserve(first.pages, 12)
    cache.insert(first, 12)
    assert cache.match(request(0)) == Match(first.pages, 3)
    start, middle, end = first.pages
    pool.release([middle])
    pool.release([start, end])
    others: list[int] = []
    pool.reserve(others, 8)  # the free page, and the one that was used longest ago
    pool.release(others)
    assert cache.match(request(0)) == Match([start], 1)
    again = request(head_written=4)
    pool.share(again.pages, [start])
    again.shared_pages = 1
    pool.reserve(again.pages, 8)
    cache.insert(again, 8)
    assert cache.match(request(0)) == Match(
        [start, again.pages[1], end], 1
    )  # though the last page has them again
    cache.check()


def test_the_pool_keeps_what_was_used_last(target: Target) -> None:
    size = target.decoder.page_size
    rng = random.Random(12)
    prompts = [random_tokens(rng, 3 * size + 1) for _ in range(6)]
    engine = Engine(target, max_batch=1, max_context=5 * size, kv_tokens=12 * size)
    for prompt in (*prompts[:3], prompts[0], prompts[3]):
        engine.generate([prompt], max_tokens=1, ignore_eos=True)
    hits = [
        engine.generate([p], max_tokens=1)[0].stats.cached_tokens // size for p in (prompts[0], prompts[1])
    ]
    assert hits[0] == 3
    assert hits[1] < 3
    stats = engine.stats()
    assert stats.evictions > 0
    assert stats.pages == 12
    assert stats.pages_in_use == 0
    assert 9 <= stats.pages_cached <= 12


@given(
    seed=st.integers(0, 10_000),
    pages=st.integers(4, 30),
    size=st.integers(1, 4),
    actions=st.integers(5, 60),
)
def test_whatever_happens_matched_pages_hold_the_requests_tokens(
    seed: int, pages: int, size: int, actions: int
) -> None:
    """Against a model: what each page was filled with, target up to its end and head one token further."""
    rng = random.Random(seed)
    pool = PagePool(pages, size)
    cache = PrefixCache(pool, heads=True)
    holds: dict[int, tuple[tuple[int, ...], bool]] = {}
    live: list[Request] = []

    def check() -> None:
        pool.check(request.pages for request in live)
        cache.check()

    for number in range(actions):
        if live and rng.random() < 0.5:
            request = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.7:
                cache.insert(request, request.length - 1)
            pool.release(request.pages)
            check()
            continue
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 14))]
        speculate = rng.random() < 0.7
        request = Request(tokens, SamplingParams(max_tokens=1), 0, frozenset(), speculate, None, id=number)
        found, known = cache.match(request)
        if speculate and rng.random() < 0.7:
            found = found[:known]
        assert len(found) * size < len(tokens)
        for index, page in enumerate(found):
            held, with_head = holds[page]
            assert held == tuple(tokens[: (index + 1) * size + 1])
            assert with_head or index >= known
        if pool.pages_for(len(tokens)) - len(found) > pool.free_pages - pool.idle(found):
            continue
        pool.share(request.pages, found)
        request.shared_pages = len(found)
        assert pool.reserve(request.pages, len(tokens))
        request.draft.written = rng.randrange(len(tokens)) if speculate and known == len(found) else 0
        for index in range(len(found), len(request.pages)):
            with_head = (index + 1) * size <= request.draft.written
            holds[request.pages[index]] = (tuple(tokens[: (index + 1) * size + 1]), with_head)
        live.append(request)
        if rng.random() < 0.5:
            own = list(request.pages)
            cache.insert(request, rng.randrange(len(tokens)))
            swapped = [index for index, page in enumerate(request.pages) if page != own[index]]
            assert all((index + 1) * size <= request.draft.written for index in swapped)
        check()
    while live:
        pool.release(live.pop().pages)
    check()
    assert pool.free_pages == pages - 1
