"""The reference against a dense softmax, and what a row sees."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fledge.attention import PagedAttention, Window, reference_attention
from fledge.attention.reference import seen_indices
from fledge.target.batch import ForwardBatch
from tests.target.paging import make_batch, scattered_pages

PAGE = 4


def test_causal_rows_equal_dense_causal_attention() -> None:
    generator = torch.Generator().manual_seed(1)
    count, heads, kv_heads, size = 11, 6, 2, 8
    batch = make_batch([[0] * count], scattered_pages(1, 5))
    query, key, value = (
        torch.randn(count, n, size, generator=generator) for n in (heads, kv_heads, kv_heads)
    )
    keys, values = torch.zeros(5 * PAGE, kv_heads, size), torch.zeros(5 * PAGE, kv_heads, size)
    slots = PagedAttention(batch, PAGE).write_slots
    keys[slots], values[slots] = key, value
    dense = F.scaled_dot_product_attention(
        query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(reference_attention(query, keys, values, batch, PAGE), dense.transpose(0, 1))


def test_a_sink_is_one_more_key_whose_value_is_nothing() -> None:
    generator = torch.Generator().manual_seed(2)
    batch = make_batch([[0]], scattered_pages(1, 2), prefix=[4])
    query = torch.randn(1, 4, 8, generator=generator)
    keys, values = (torch.randn(2 * PAGE, 2, 8, generator=generator) for _ in range(2))
    plain = reference_attention(query, keys, values, batch, PAGE)
    far = reference_attention(query, keys, values, batch, PAGE, sinks=torch.full((4,), -1e30))
    torch.testing.assert_close(far, plain)
    score = torch.einsum(
        "hd,hd->h", query[0], keys[int(batch.page_table[0, 0]) * PAGE].repeat_interleave(2, 0)
    )
    first = make_batch(
        [[0]], batch.page_table, prefix=[0]
    )  # sees a single key: half of it, if the sink is as loud
    half = reference_attention(query, keys, values, first, PAGE, sinks=score * 8**-0.5)
    torch.testing.assert_close(half, reference_attention(query, keys, values, first, PAGE) / 2)


def test_tree_rows_see_the_prefix_and_their_ancestors() -> None:
    batch = make_batch([[0] * 4], scattered_pages(1, 3), prefix=[3], masks=[[0b0001, 0b0011, 0b0101, 0b1011]])
    seen = [seen_indices(batch, 0, row) for row in range(4)]
    assert seen == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 6]]


def test_the_sixty_fourth_window_bit_counts() -> None:
    mask = -(1 << 63) | 1  # bits 0 and 63
    batch = make_batch([[0]], scattered_pages(1, 20), prefix=[2], offset=[63], masks=[[mask]])
    assert seen_indices(batch, 0, 0) == [0, 1, 2, 65]


def test_later_causal_rows_see_earlier_windows() -> None:
    batch = make_batch([[0, 0]], scattered_pages(1, 4), prefix=[4], offset=[2])
    assert seen_indices(batch, 0, 1) == list(range(8))


def test_rows_are_written_behind_the_prefix_and_the_window_offset() -> None:
    table = torch.tensor([[5, 2], [7, 3]], dtype=torch.int32)
    batch = make_batch([[0, 0], [0]], table, prefix=[2, 1], offset=[1, 0])
    assert PagedAttention(batch, PAGE).write_slots.tolist() == [5 * PAGE + 3, 2 * PAGE, 7 * PAGE + 1]


def test_a_draft_heads_window_ends_at_the_prefix_for_trees_and_at_a_causal_row_itself() -> None:
    pages = torch.arange(32, dtype=torch.int32)[None]
    tree = make_batch([[0, 0]], pages, prefix=[12], offset=[1], masks=[[0b11, 0b101]])
    causal = make_batch([[0, 0]], pages, prefix=[12])

    def seen(batch: ForwardBatch, window: int, sinks: int = 4) -> list[list[int]]:
        return [seen_indices(batch, 0, row, Window(window, sinks, of_prefix=True)) for row in range(2)]

    assert seen(tree, 3) == [[0, 1, 2, 3, 9, 10, 11, 12, 13], [0, 1, 2, 3, 9, 10, 11, 12, 14]]
    assert seen(tree, 1, sinks=0) == [[11, 12, 13], [11, 12, 14]]
    assert seen(causal, 3) == [[0, 1, 2, 3, 10, 11, 12], [0, 1, 2, 3, 11, 12, 13]]
    assert seen(causal, 10) == [list(range(13)), list(range(14))]  # the sinks touch the window
    assert seen(causal, 12) == [list(range(13)), list(range(14))]  # and overlap it
    assert seen(tree, 40) == [[*range(12), 12, 13], [*range(12), 12, 14]]
