"""Pages are owned by one request or by nobody, whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fledge.base.errors import EngineError
from fledge.engine.pool import PADDING_PAGE, PagePool


@given(
    pages=st.integers(2, 40),
    page_size=st.sampled_from([1, 16, 32]),
    actions=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400), st.booleans()), max_size=60),
)
def test_random_use_keeps_every_page_accounted_for(
    pages: int, page_size: int, actions: list[tuple[int, int, bool]]
) -> None:
    pool = PagePool(pages, page_size)
    owners: list[list[int]] = [[] for _ in range(6)]
    for who, tokens, give_back in actions:
        owned, before, free = owners[who], list(owners[who]), pool.free_pages
        if give_back:
            pool.release(owned)
            assert owned == []
        elif pool.reserve(owned, tokens):
            assert len(owned) * page_size >= tokens
            assert owned[: len(before)] == before
            assert len(owned) == max(len(before), pool.pages_for(tokens))
        else:
            assert owned == before
            assert pool.free_pages == free < pool.pages_for(tokens) - len(before)
        pool.check(owners)
        assert PADDING_PAGE not in [page for held in owners for page in held]
        assert pool.free_pages + sum(map(len, owners)) == pages - 1
    for owned in owners:
        pool.release(owned)
    pool.check()


def test_check_finds_a_lost_page() -> None:
    pool = PagePool(8, 16)
    pool.reserve([], 20)
    with pytest.raises(EngineError, match="2 KV pages have no owner"):
        pool.check()


def test_check_finds_a_page_with_two_owners() -> None:
    pool = PagePool(8, 16)
    owned: list[int] = []
    pool.reserve(owned, 16)
    with pytest.raises(EngineError, match="more owners"):
        pool.check([owned, owned])


def test_giving_a_page_back_twice_is_refused() -> None:
    pool = PagePool(8, 16)
    owned: list[int] = []
    pool.reserve(owned, 16)
    again = list(owned)
    pool.release(owned)
    with pytest.raises(EngineError, match="twice"):
        pool.release(again)


def test_a_pool_without_room_is_refused() -> None:
    with pytest.raises(EngineError, match="kv_tokens"):
        PagePool(1, 16)


def test_tokens_take_as_many_pages_as_they_fill() -> None:
    pool = PagePool(8, 16)
    assert [pool.pages_for(tokens) for tokens in (0, 1, 16, 17, 32, 33)] == [0, 1, 1, 2, 2, 3]
    owned: list[int] = []
    assert not pool.reserve(owned, 7 * 16 + 1)
    assert pool.reserve(owned, 7 * 16)  # all there are
    assert pool.usable_tokens == 7 * 16


def test_what_was_used_longest_ago_is_evicted_first_and_beginnings_last() -> None:
    pool, evicted = PagePool(10, 16), list[int]()
    pool.on_evict = evicted.append
    first, second, plain = list[int](), list[int](), list[int]()
    for owned in (first, second, plain):
        pool.reserve(owned, 3 * 16)
    ones, twos = list(first), list(second)
    for page in (*ones, *twos):
        pool.keep(page)
    for owned in (first, second, plain):
        pool.release(owned)
    assert (pool.idle_pages, pool.free_pages) == (6, 9)
    pool.share(first, ones[:1])  # the beginning of the older one is used again
    pool.release(first)
    pool.reserve(plain, 3 * 16)  # what is worth nothing goes first
    assert evicted == []
    for wanted in range(4, 10):
        pool.reserve(plain, wanted * 16)
    assert evicted == [ones[2], ones[1], twos[2], twos[1], twos[0], ones[0]]
    assert pool.evictions == 6
