from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from fledge.attention import PagedAttention, Window, reference_attention
from fledge.base.errors import EngineError, HeadError
from fledge.draft import TorchHeadRunner
from fledge.heads import Head, head_runner
from fledge.target import Target
from fledge.target.batch import ForwardBatch
from fledge.target.rope import apply_rope, rope_tables
from tests.heads.tiny_head import KINDS, estimating, load_tiny_target, random_head
from tests.tiny import TinyShape, save_tiny_target


@pytest.fixture(scope="module", params=KINDS)
def head(request: pytest.FixtureRequest, target: Target) -> Head:
    return random_head(target, **KINDS[request.param])


def batch(
    tokens: torch.Tensor, first: int, pages: torch.Tensor, *, mask: list[int] | None = None
) -> ForwardBatch:
    rows = tokens.shape[0]
    return ForwardBatch(
        token_ids=tokens.int(),
        positions=torch.arange(first, first + rows, dtype=torch.int32),
        row_start=torch.tensor([0, rows], dtype=torch.int32),
        prefix_length=torch.tensor([first], dtype=torch.int32),
        window_offset=torch.zeros(1, dtype=torch.int32),
        page_table=pages,
        window_mask=None if mask is None else torch.tensor(mask),
    )


def reference_forward(head: Head, embedding: torch.Tensor, rows: ForwardBatch, kv, entry, page_size: int):
    """The head row by row, as `Words` and facts define it: output before and after the final norm."""
    c, w = head.config, head.weights

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + c.rms_norm_eps) * weight

    attention_input = torch.cat(
        (norm(embedding[rows.token_ids.long()], w.input_norm), norm(entry, w.hidden_norm)), -1
    )
    parts = [c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim]
    q, k, v = (
        part.view(len(entry), -1, c.head_dim) for part in (attention_input @ w.qkv.T).split(parts, dim=-1)
    )
    cos, sin = (t[rows.positions.long()] for t in rope_tables(c.head_dim, c.rope_theta, c.rope_scaling, 256))
    slots = PagedAttention(rows, page_size).write_slots
    kv[0][slots], kv[1][slots] = apply_rope(k, cos, sin), v
    entry = norm(entry, w.hidden_norm) if c.norm_before_residual else entry
    window = Window(c.window, c.sinks, of_prefix=True)
    h = (
        entry
        + reference_attention(apply_rope(q, cos, sin), kv[0], kv[1], rows, page_size, window).flatten(1)
        @ w.o.T
    )
    gate, up = (norm(h, w.post_norm) @ w.gate_up.T).chunk(2, dim=-1)
    out = h + (F.silu(gate) * up) @ w.down.T
    return out, norm(out, w.norm)


def test_extend_and_draft_steps_equal_the_reference(target: Target, head: Head):
    runner = head_runner(target, head)
    assert isinstance(runner, TorchHeadRunner)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 512, (21,), generator=generator)
    features = torch.randn(21, 192, generator=generator)
    pages = torch.tensor([[2, 0, 1]], dtype=torch.int32)
    kv, reference_kv = runner.allocate_kv(3), runner.allocate_kv(3)
    embedding = target.weights.embedding

    entry = features
    if head.weights.fc_norms is not None:
        parts = [
            F.rms_norm(f, (64,), n, head.config.rms_norm_eps)
            for f, n in zip(features.split(64, dim=-1), head.weights.fc_norms, strict=True)
        ]
        entry = torch.cat(parts, -1)
    entry = entry @ head.weights.fc.T
    rows = batch(tokens, 0, pages)
    got = runner.forward(rows, kv, features=features, hidden=None, k=5)
    out, normed = reference_forward(head, embedding, rows, reference_kv, entry, runner.page_size)
    carried = normed if head.config.norm_output else out
    torch.testing.assert_close(got.hidden, carried, rtol=1e-4, atol=1e-4)

    # Two nodes side by side behind the last position, then two below the second of them.
    for first_mask in ([0b01, 0b10], [0b0110, 0b1010]):
        hidden = carried[-2:]
        step = batch(torch.tensor([7, 9]), 21, pages, mask=first_mask)
        step = step._replace(window_offset=torch.tensor([0 if first_mask[0] == 1 else 2], dtype=torch.int32))
        got = runner.forward(step, kv, features=None, hidden=hidden, k=5)
        out, normed = reference_forward(head, embedding, step, reference_kv, hidden, runner.page_size)
        carried = normed if head.config.norm_output else out
        torch.testing.assert_close(got.hidden, carried, rtol=1e-4, atol=1e-4)
        log_probs = (normed @ head.weights.lm_head.T).log_softmax(-1)
        best = log_probs.topk(5)
        assert torch.equal(got.token_ids, head.vocabulary.token_ids[best.indices])
        torch.testing.assert_close(got.log_probs, best.values, rtol=1e-4, atol=1e-4)


def test_candidates_have_exact_scores_and_other_tokens_estimates(target: Target, head: Head):
    few = estimating(head, count=8)
    features = torch.randn(9, 192, generator=torch.Generator().manual_seed(4))
    rows = batch(torch.arange(30, 39), 0, torch.tensor([[0]], dtype=torch.int32))
    size = head.config.draft_vocab_size

    def forward(one: Head):
        runner = head_runner(target, one)
        return runner.forward(rows, runner.allocate_kv(1), features=features, hidden=None, k=size)

    def by_token(out) -> torch.Tensor:
        return out.log_probs.gather(1, out.token_ids.argsort(1))

    got, exact = forward(few), forward(head)
    assert torch.equal(got.hidden, exact.hidden)
    if head.config.norm_output:  # then the lm_head's input is known
        w = few.weights
        estimates = got.hidden @ w.candidate_down.T @ w.candidate_up.T
        best = estimates.topk(8).indices
        scores = estimates.scatter(1, best, (got.hidden @ w.lm_head.T).gather(1, best))
        torch.testing.assert_close(by_token(got), scores.log_softmax(-1), rtol=1e-4, atol=1e-4)
    all_of_them = forward(estimating(head, count=size))
    torch.testing.assert_close(by_token(all_of_them), by_token(exact), rtol=1e-4, atol=1e-4)


def test_extending_in_pieces_equals_extending_at_once(target: Target, head: Head):
    runner = head_runner(target, head)
    tokens, features = torch.arange(40, 57), torch.randn(17, 192, generator=torch.Generator().manual_seed(2))
    pages = torch.tensor([[1, 0]], dtype=torch.int32)
    whole = runner.forward(
        batch(tokens, 0, pages), runner.allocate_kv(2), features=features, hidden=None, k=4
    )
    kv = runner.allocate_kv(2)
    for first, last in ((0, 6), (6, 7), (7, 17)):
        rows = batch(tokens[first:last], first, pages)
        part = runner.forward(rows, kv, features=features[first:last], hidden=None, k=4)
        torch.testing.assert_close(part.hidden, whole.hidden[first:last], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(part.log_probs, whole.log_probs[first:last], rtol=1e-4, atol=1e-4)


def test_a_forward_answers_for_the_rows_that_are_wanted(target: Target, head: Head):
    runner = head_runner(target, head)
    tokens, features = torch.arange(8), torch.randn(8, 192)
    rows = batch(tokens, 0, torch.tensor([[0]], dtype=torch.int32))
    kv = runner.allocate_kv(1)
    all_rows = runner.forward(rows, kv, features=features, hidden=None, k=3)
    wanted = runner.forward(
        rows._replace(logit_rows=torch.tensor([6, 2], dtype=torch.int32)),
        kv,
        features=features,
        hidden=None,
        k=3,
    )
    assert torch.equal(wanted.token_ids, all_rows.token_ids[[6, 2]])
    torch.testing.assert_close(wanted.hidden, all_rows.hidden[[6, 2]])


def test_a_head_that_names_fewer_positions_runs_as_far_as_its_target(target: Target, head: Head):
    """EAGLE's own configs say 2,048 for targets of 131,072."""
    short = Head(replace(head.config, max_position_embeddings=64), head.weights)
    tokens, features = torch.arange(200), torch.randn(200, 192, generator=torch.Generator().manual_seed(3))
    pages = torch.arange(13, dtype=torch.int32)[None]
    found = []
    for one in (head, short):
        runner = head_runner(target, one)
        kv = runner.allocate_kv(13)
        found.append(
            runner.forward(batch(tokens, 0, pages), kv, features=features, hidden=None, k=4).log_probs
        )
    assert torch.equal(*found)


def test_a_head_that_names_more_positions_takes_no_memory_for_them(target: Target, head: Head):
    """Llama 4 Scout's names ten millions, of which the decoder uses eight thousand."""
    long = Head(replace(head.config, max_position_embeddings=10**12), head.weights)
    assert long.fitted_to(target).config.max_position_embeddings == 10**12  # what other engines read
    assert head_runner(target, long).config == head_runner(target, head).config


def test_misuse_is_refused(target: Target, head: Head, tmp_path: Path):
    runner = head_runner(target, head)
    rows = batch(torch.arange(2), 0, torch.tensor([[0]], dtype=torch.int32))
    kv = runner.allocate_kv(1)
    with pytest.raises(EngineError, match="either features"):
        runner.forward(rows, kv, features=None, hidden=None, k=2)
    with pytest.raises(EngineError, match="at most 96"):
        runner.forward(rows, kv, features=torch.zeros(2, 192), hidden=None, k=97)
    with pytest.raises(HeadError, match="another target"):
        head_runner(load_tiny_target(save_tiny_target(tmp_path / "other", shape=TinyShape(hidden=128))), head)
