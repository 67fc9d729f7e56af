"""The draft head on the kernels against the plain torch runner."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fledge.base.errors import EngineError
from fledge.draft.cpu import NativeHeadRunner, native_head_reason
from fledge.draft.description import SINKS, HeadConfig, HeadWeights
from fledge.draft.race import Draws
from fledge.draft.runner import DraftOutput, TorchHeadRunner
from fledge.heads import Head
from fledge.train.candidates import estimated
from tests.native.test_native_decoder import PAGES, int32, make_config, one_request, tokens_of

pytestmark = pytest.mark.kernels

VOCAB, DRAFT = 523, 200


def make_head(
    fc_norm: bool, norm_output: bool, norm_before_residual: bool = False
) -> tuple[HeadConfig, HeadWeights, Tensor]:
    on = {"fc_norm": fc_norm, "norm_output": norm_output, "norm_before_residual": norm_before_residual}
    config = HeadConfig.for_target(make_config(), DRAFT, switches=[name for name in on if on[name]])
    generator = torch.Generator().manual_seed(11)

    def random(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=generator) * 0.06).bfloat16()

    def norm(*shape: int) -> Tensor:
        return (1 + 0.1 * torch.randn(*shape, generator=generator)).bfloat16()

    h, inner = config.hidden_size, config.intermediate_size
    ids = torch.randperm(VOCAB, generator=generator)[:DRAFT].sort().values
    weights = HeadWeights(
        fc=random(h, 3 * h), hidden_norm=norm(h), input_norm=norm(h), post_norm=norm(h),
        qkv=random(config.qkv_size, 2 * h), o=random(h, config.num_heads * config.head_dim),
        gate_up=random(2 * inner, h), down=random(h, inner), norm=norm(h), lm_head=random(DRAFT, h) * 8,
        d2t=ids - torch.arange(DRAFT), embedding=None, fc_norms=norm(3, h) if fc_norm else None,
    )  # fmt: skip
    return config, weights, torch.randn(VOCAB, h, generator=generator).bfloat16()


@pytest.mark.parametrize("flags", [(False, False), (True, True), (False, False, True)])
@pytest.mark.parametrize(("int8", "near"), [(False, 0.03), (True, 0.06)])
def test_extend_and_draft_steps_agree_with_torch(flags: tuple[bool, ...], int8: bool, near: float) -> None:
    config, weights, embedding = make_head(*flags)
    runners = (
        NativeHeadRunner(config, weights, embedding, draft_weights="int8" if int8 else "bfloat16"),
        TorchHeadRunner(config, weights, embedding.float(), page_size=32),
    )
    length, k = 45, 5
    features = torch.randn(
        length, 3 * config.hidden_size, generator=torch.Generator().manual_seed(2)
    ).bfloat16()
    extend = one_request(tokens_of(length, VOCAB, seed=4), 0)._replace(logit_rows=int32([7, length - 1]))
    step = one_request(tokens_of(4, VOCAB, seed=5), length, [0b1, 0b10, 0b101, 0b1010])
    step_inputs = torch.randn(4, config.hidden_size, generator=torch.Generator().manual_seed(3)).bfloat16()
    outputs: list[list[DraftOutput]] = []
    for runner in runners:
        kv = runner.allocate_kv(PAGES)
        first = runner.forward(extend, kv, features=features, hidden=None, k=k)
        outputs.append([first, runner.forward(step, kv, features=None, hidden=step_inputs, k=k)])
    for native, torch_ in zip(*outputs, strict=True):
        assert native.token_ids.shape == torch_.token_ids.shape
        assert (native.log_probs - torch_.log_probs).abs().max() < (0.2 if int8 else 0.05)
        assert (native.hidden.float() - torch_.hidden).abs().max() < near * torch_.hidden.abs().max()
        assert (native.token_ids[:, 0] == torch_.token_ids[:, 0]).all()


@pytest.mark.parametrize("count", [1, 12, 13, 64, DRAFT])  # 200 tokens: 12 whole groups of 16, and a rest
def test_candidates_agree_with_torch(count: int) -> None:
    config, weights, embedding = make_head(False, True)
    moment = torch.eye(config.hidden_size, dtype=torch.float64)
    head = estimated(Head(config, weights), moment, count=count, rank=32)
    native = NativeHeadRunner(head.config, head.weights, embedding, draft_weights="bfloat16")
    plain = TorchHeadRunner(head.config, head.weights, embedding.float(), page_size=32)
    features = torch.randn(20, 3 * config.hidden_size, generator=torch.Generator().manual_seed(2)).bfloat16()
    batch = one_request(tokens_of(20, VOCAB, seed=4), 0)
    got, expected = (
        runner.forward(batch, runner.allocate_kv(PAGES), features=features, hidden=None, k=6)
        for runner in (native, plain)
    )
    same = (got.token_ids == expected.token_ids).all(1)
    assert (
        same.float().mean() > 0.7
    )  # rounding moves the border between exact scores and estimates now and then
    assert (got.log_probs - expected.log_probs)[same].abs().max() < 0.05


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_scores_that_are_no_numbers_have_no_candidates(share: float) -> None:
    config, weights, embedding = make_head(False, False)
    moment = torch.eye(config.hidden_size, dtype=torch.float64)
    head = estimated(Head(config, weights), moment, count=64, rank=32)
    assert head.weights.candidate_up is not None
    head.weights.candidate_up[int(DRAFT * share) :] = torch.nan
    runner = NativeHeadRunner(head.config, head.weights, embedding, draft_weights="bfloat16")
    features = torch.randn(9, 3 * config.hidden_size).bfloat16()
    batch = one_request(tokens_of(9, VOCAB, seed=4), 0)
    got = runner.forward(batch, runner.allocate_kv(PAGES), features=features, hidden=None, k=6)
    assert ((got.token_ids >= 0) & (got.token_ids < VOCAB)).all()


@pytest.mark.parametrize("norm_output", [False, True])
@pytest.mark.parametrize("wanted", [[39], [0, 17, 39], [39, 17]])
def test_the_wanted_rows_of_an_extend_are_those_of_all(norm_output: bool, wanted: list[int]) -> None:
    config, weights, embedding = make_head(norm_output, False)
    runner = NativeHeadRunner(config, weights, embedding)
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(40, 3 * config.hidden_size, generator=generator).bfloat16()
    batch = one_request(tokens_of(40, VOCAB, seed=4), 0)
    kv, whole_kv = runner.allocate_kv(PAGES), runner.allocate_kv(PAGES)
    whole = runner.forward(batch, whole_kv, features=features, hidden=None, k=4)
    some = batch._replace(logit_rows=int32(wanted))
    got = runner.forward(some, kv, features=features, hidden=None, k=4)
    assert torch.equal(kv, whole_kv)
    for mine, its in zip(got, whole, strict=True):
        assert torch.equal(mine, its[wanted])


def test_races_agree_with_torch() -> None:
    config, weights, embedding = make_head(False, False)
    runners = (
        NativeHeadRunner(config, weights, embedding),
        TorchHeadRunner(config, weights, embedding.float(), page_size=32),
    )
    count = 24
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(count, 3 * config.hidden_size, generator=generator).bfloat16()
    batch = one_request(tokens_of(count, VOCAB, seed=4), 0)
    draws = Draws(
        temperature=torch.tensor([0.0, 1.0, 0.7, 1.5]).repeat(6),
        top_k=torch.tensor([0, 0, 0, 0, 9, 9, 9, 9]).repeat(3),
        top_p=torch.tensor([1.0, 1.0, 1.0, 0.9, 0.9, 1.0]).repeat(4),
        min_p=torch.tensor([0.0, 0.0, 0.05]).repeat(8),
        coin=torch.randint(-(2**62), 2**62, (count,), generator=generator),
    )
    native, torch_ = (
        runner.forward(batch, runner.allocate_kv(PAGES), features=features, hidden=None, k=4, draws=draws)
        for runner in runners
    )
    assert (
        native.token_ids[:, 0] == torch_.token_ids[:, 0]
    ).float().mean() > 0.85  # rounding moves a border now and then
    same = (native.token_ids == torch_.token_ids).all(1)
    assert same.float().mean() > 0.6
    assert (native.log_probs - torch_.log_probs)[same].abs().max() < 0.3
    greedy = draws._replace(temperature=torch.zeros(count))
    kv = runners[0].allocate_kv(PAGES)
    plain = runners[0].forward(batch, kv, features=features, hidden=None, k=4)
    again = runners[0].forward(batch, kv, features=features, hidden=None, k=4, draws=greedy)
    assert torch.equal(plain.token_ids, again.token_ids)
    assert torch.equal(plain.log_probs, again.log_probs)


def test_proposals_are_sorted_target_ids_and_log_probabilities() -> None:
    config, weights, embedding = make_head(False, False)
    runner = NativeHeadRunner(config, weights, embedding)
    batch = one_request(tokens_of(6, VOCAB, seed=1), 0)
    features = torch.randn(6, 3 * config.hidden_size, generator=torch.Generator().manual_seed(2)).bfloat16()
    out = runner.forward(batch, runner.allocate_kv(PAGES), features=features, hidden=None, k=64)
    assert (out.log_probs.diff(dim=-1) <= 0).all()
    assert (out.log_probs.exp().sum(-1) <= 1.0001).all()
    allowed = set((weights.d2t + torch.arange(DRAFT)).tolist())
    assert set(out.token_ids.flatten().tolist()) <= allowed
    assert all(len(set(row)) == 64 for row in out.token_ids.tolist())


def test_8_bit_weights_take_half_the_memory_and_draft_a_little_differently() -> None:
    config, weights, embedding = make_head(False, False)
    runners = [
        NativeHeadRunner(config, weights, embedding, draft_weights="int8" if int8 else "bfloat16")
        for int8 in (False, True)
    ]
    wide, narrow = (runner.weight_bytes for runner in runners)
    matrices = (weights.qkv, weights.o, weights.gate_up, weights.down, weights.fc)
    assert wide == 2 * (
        sum(m.numel() for m in matrices) + 224 * config.hidden_size
    )  # lm_head: whole panels of 32
    assert 0.5 * wide < narrow < 0.54 * wide  # and a scale per output
    batch = one_request(tokens_of(6, VOCAB, seed=1), 0)
    features = torch.randn(6, 3 * config.hidden_size, generator=torch.Generator().manual_seed(2)).bfloat16()
    first, second = (
        r.forward(batch, r.allocate_kv(PAGES), features=features, hidden=None, k=1).log_probs for r in runners
    )
    assert 0 < (first - second).abs().max() < 0.2


def test_wrong_calls_and_shapes_are_refused() -> None:
    config, weights, embedding = make_head(False, False)
    runner = NativeHeadRunner(config, weights, embedding)
    batch, kv = one_request([1], 0), runner.allocate_kv(PAGES)
    with pytest.raises(EngineError, match="either features"):
        runner.forward(batch, kv, features=None, hidden=None, k=1)
    with pytest.raises(EngineError, match="use at most"):
        runner.forward(batch, kv, features=None, hidden=torch.zeros(1, config.hidden_size), k=65)
    assert "multiple of 32" in native_head_reason(replace(config, target_hidden_size=100))


def windowed_head(window: int) -> tuple[HeadConfig, HeadWeights, Tensor]:
    config, weights, embedding = make_head(False, False)
    return replace(config, window=window, sinks=SINKS), weights, embedding


def extended_and_stepped(
    runner: NativeHeadRunner | TorchHeadRunner, length: int, forget: slice = slice(0)
) -> list[DraftOutput]:
    """An extend of `length` rows, and a draft step of a tree behind it after pages `forget` have become NaN."""
    width = runner.config.hidden_size
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(length, 3 * width, generator=generator).bfloat16()
    hidden = torch.randn(4, width, generator=generator).bfloat16()
    kv = runner.allocate_kv(PAGES)
    extend = one_request(tokens_of(length, VOCAB, seed=4), 0)
    first = runner.forward(extend, kv, features=features, hidden=None, k=5)
    if forget.stop:
        kv[:, forget] = torch.nan
    step = one_request(tokens_of(4, VOCAB, seed=5), length, [0b1, 0b10, 0b101, 0b1010])
    return [first, runner.forward(step, kv, features=None, hidden=hidden, k=5)]


@pytest.mark.parametrize("length", [45, 256, 300, 700])
@pytest.mark.parametrize("window", [1, 30, 100, 256, 300, 520])
def test_windows_agree_with_torch(length: int, window: int) -> None:
    config, weights, embedding = windowed_head(window)
    native = extended_and_stepped(
        NativeHeadRunner(config, weights, embedding, draft_weights="bfloat16"), length
    )
    plain = extended_and_stepped(TorchHeadRunner(config, weights, embedding.float(), page_size=32), length)
    for mine, its in zip(native, plain, strict=True):
        assert (mine.hidden.float() - its.hidden).abs().max() < 0.03 * its.hidden.abs().max()
        assert (mine.log_probs - its.log_probs).abs().max() < 0.1


@pytest.mark.parametrize("window", [696, 700, 5000])
def test_a_window_that_holds_all_changes_nothing(window: int) -> None:
    config, weights, embedding = windowed_head(window)
    found = extended_and_stepped(NativeHeadRunner(config, weights, embedding), 700)
    whole = extended_and_stepped(
        NativeHeadRunner(replace(config, window=0, sinks=0), weights, embedding), 700
    )
    for mine, its in zip(found, whole, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, its, strict=True))


@pytest.mark.parametrize(("window", "forget"), [(30, slice(1, 20)), (300, slice(1, 12))])
def test_a_draft_step_reads_the_pages_of_its_window_and_of_the_first_tokens_alone(
    window: int, forget: slice
) -> None:
    runner = NativeHeadRunner(*windowed_head(window))
    for kept, forgotten in zip(
        extended_and_stepped(runner, 700), extended_and_stepped(runner, 700, forget), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(kept, forgotten, strict=True))
