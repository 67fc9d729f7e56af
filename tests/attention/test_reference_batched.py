"""The batched torch path against the reference, on whatever batches hypothesis thinks of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fledge.attention import PagedAttention, Window, reference_attention
from fledge.attention import batched as batched_module
from fledge.target.batch import ForwardBatch
from tests.target.paging import make_batch, scattered_pages


@st.composite
def batches(draw: st.DrawFn) -> tuple[ForwardBatch, int, int, int]:
    """A batch, and its page size, pages per request and requests."""
    page_size = draw(st.sampled_from([1, 4, 16]))
    requests = draw(st.integers(1, 4))
    rows = [draw(st.integers(0, 9)) for _ in range(requests)]
    if not any(rows):
        rows[0] = 1
    prefix = [draw(st.integers(0, 150)) for _ in range(requests)]
    offset = [draw(st.integers(0, 12)) for _ in range(requests)]
    masks = None
    if draw(st.booleans()):  # each row sees itself and any window entry before it
        masks = [
            [
                (1 << (offset[b] + i)) | draw(st.integers(0, (1 << (offset[b] + i)) - 1))
                for i in range(rows[b])
            ]
            for b in range(requests)
        ]
    else:
        offset = [0] * requests
    pages = (180 + page_size - 1) // page_size
    table = scattered_pages(requests, pages, draw(st.integers(0, 99)))
    ids = [[0] * count for count in rows]
    return make_batch(ids, table, prefix=prefix, offset=offset, masks=masks), page_size, pages, requests


@settings(max_examples=80, deadline=None)
@given(
    batches(),
    st.sampled_from([(4, 4), (6, 2), (3, 1)]),
    st.booleans(),
    st.one_of(
        st.one_of(st.just(0), st.integers(64, 180)).map(Window),
        st.builds(Window, st.integers(1, 180), st.sampled_from([0, 4]), of_prefix=st.just(True)),
    ),
    st.sampled_from([None, 1, 1 << 24]),
)
def test_batched_equals_reference(
    drawn: tuple[ForwardBatch, int, int, int],
    heads: tuple[int, int],
    one_by_one: bool,
    window: Window,
    scores_at_once: int | None,
) -> None:
    batch, page_size, pages, requests = drawn
    generator = torch.Generator().manual_seed(0)
    slots, rows = requests * pages * page_size, batch.token_ids.shape[0]
    query = torch.randn(rows, heads[0], 8, generator=generator)
    keys, values = (torch.randn(slots, heads[1], 8, generator=generator) for _ in range(2))
    sinks = None if scores_at_once is None else torch.randn(heads[0], generator=generator) * 3
    with pytest.MonkeyPatch.context() as patch:
        if one_by_one:
            patch.setattr(batched_module, "_FREE_AREA", 0)
            patch.setattr(batched_module, "_MAX_PADDING", 0)
        patch.setattr(batched_module, "_MOST_SCORES", scores_at_once)
        attended = PagedAttention(batch, page_size, window).attend(query, keys, values, sinks)
    torch.testing.assert_close(
        attended, reference_attention(query, keys, values, batch, page_size, window, sinks)
    )


def test_the_sixty_fourth_window_bit_counts_in_the_batched_path() -> None:
    table = scattered_pages(1, 5)
    batch = make_batch([[0]], table, prefix=[2], offset=[63], masks=[[-(1 << 63) | 0b101]])
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 8, generator=generator)
    keys, values = (torch.randn(80, 2, 8, generator=generator) for _ in range(2))
    result = PagedAttention(batch, 16).attend(query, keys, values)
    torch.testing.assert_close(result, reference_attention(query, keys, values, batch, 16))


def test_a_long_prefill_beside_short_decodes_is_not_padded_to_a_rectangle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batched_module, "_FREE_AREA", 0)
    table = scattered_pages(4, 5)
    batch = make_batch([[0] * 60, [0], [0], [0]], table, prefix=[0, 50, 51, 52])
    attention = PagedAttention(batch, 16)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(63, 4, 8, generator=generator)
    keys, values = (torch.randn(320, 2, 8, generator=generator) for _ in range(2))
    assert len(attention._blocks) == 4
    torch.testing.assert_close(
        attention.attend(query, keys, values), reference_attention(query, keys, values, batch, 16)
    )
