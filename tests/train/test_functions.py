"""Every hand-written backward pass against plain autograd, in float64-free float32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import AuxOutput, create_mask

from fledge.base.errors import DataError
from fledge.target.rope import apply_rope, rope_tables
from fledge.train import attention_flex
from fledge.train.attention import UnrollAttention
from fledge.train.blocks import Sizes, make_blocks
from fledge.train.functions import AddShifted, Linear, RmsNorm, Rope, SwiGlu, TakeRows
from fledge.train.kernels import Kernels
from fledge.train.loss import LossFunction, own_loss_gradient_, step_loss, teacher_probabilities
from fledge.train.weights import TrainableWeights
from fledge.train.workspace import Workspace

ROWS = 1100  # more than one piece
KERNELS = Kernels()


def weights(**tensors: Tensor) -> TrainableWeights:
    return TrainableWeights(tensors, torch.float32, torch.device("cpu"))


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape).requires_grad_()


def assert_same(ours: Callable[[], Tensor], plain: Callable[[], Tensor], inputs: list[Tensor]) -> None:
    """Equal outputs, and equal gradients of all inputs under a random slope."""
    grads = []
    outputs = [ours(), plain()]
    slope = torch.randn_like(outputs[0])
    for output in outputs:
        grads.append(torch.autograd.grad(output, inputs, slope))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-4)
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(("width_in", "width_out"), [(24, 40), (40, 24), (32, 32)])
def test_linear(width_in: int, width_out: int):
    x, add, matrix = leaf(ROWS, width_in), leaf(ROWS, width_out), torch.randn(width_out, width_in)
    held = weights(w=matrix)
    plain = matrix.clone().requires_grad_()
    assert_same(
        lambda: Linear.apply(x, add, held["w"].compute, held["w"], Workspace()),
        lambda: F.linear(x, matrix) + add,
        [x, add],
    )
    held.grad.zero_()
    slope = torch.randn(ROWS, width_out)
    Linear.apply(x.detach(), None, held["w"].compute, held["w"], Workspace()).backward(slope)
    (expected,) = torch.autograd.grad(F.linear(x, plain), plain, slope)
    torch.testing.assert_close(held.tensors(held.grad)["w"], expected, rtol=1e-3, atol=1e-3)


def test_rms_norm():
    x, gain = leaf(ROWS, 48), torch.randn(48)
    held = weights(w=gain)
    plain = gain.clone().requires_grad_()
    assert_same(
        lambda: RmsNorm.apply(x, held["w"].compute, held["w"], 1e-5),
        lambda: F.rms_norm(x, (48,), gain, 1e-5),
        [x],
    )
    held.grad.zero_()
    slope = torch.randn(ROWS, 48)
    RmsNorm.apply(x, held["w"].compute, held["w"], 1e-5).backward(slope)
    (expected,) = torch.autograd.grad(F.rms_norm(x, (48,), plain, 1e-5), plain, slope)
    torch.testing.assert_close(held["w"].grad, expected, rtol=1e-3, atol=1e-3)


def test_swiglu():
    x = leaf(ROWS, 64)
    assert_same(lambda: SwiGlu.apply(x, KERNELS), lambda: F.silu(x[:, :32]) * x[:, 32:], [x])


def test_rope():
    x = leaf(ROWS, 48)
    cos, sin = rope_tables(16, 10000.0, None, ROWS)
    assert_same(
        lambda: Rope.apply(x, cos, sin, KERNELS),
        lambda: apply_rope(x.view(-1, 3, 16), cos, sin).flatten(1),
        [x],
    )


def test_rows_and_shifts():
    x, y = leaf(20, 6), leaf(20, 6)
    rows = torch.tensor([3, 4, 5, 11, 19])
    assert_same(lambda: TakeRows.apply(x, rows), lambda: x[rows], [x])
    for by in (0, 1, 3):
        kept = slice(0, 20 - by)
        assert_same(
            lambda by=by, kept=kept: AddShifted.apply(x * 1, y, by)[kept],
            lambda by=by, kept=kept: x[kept] + y[by:],
            [x, y],
        )


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("flex", [False, True], ids=["blocks", "flex"])
@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (1, 0), (3, 4), (12, 4)])
def test_attention_is_one_softmax_over_step_0_keys_and_own_keys(
    steps: int, flex: bool, window: int, sinks: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        "fledge.train.blocks._BLOCK_SCORES", 400
    )  # several blocks, some of several conversations
    sizes = Sizes(4, 2, 8, window, sinks)
    lengths = [9, 17, 8, 30, 5, 9]
    supervised = [torch.arange(n)[torch.rand(n) < 0.6] for n in lengths]
    supervised = [p if len(p) else torch.tensor([0]) for p in supervised]
    total, rows = sum(lengths), sum(len(p) for p in supervised)
    blocks = make_blocks(lengths, supervised)
    assert 1 < len(blocks) < len(lengths)
    query, keys, values = leaf(rows, 32), leaf(total, 16), leaf(total, 16)
    own = [leaf(rows, 16) for _ in range(2 * steps)]

    def plain() -> Tensor:
        outputs, start, row = [], 0, 0
        for n, positions in zip(lengths, supervised, strict=True):
            for p in positions.tolist():
                first = max(p + 1 - window, 0) if window else 0
                near = [start + i for i in range(p + 1) if i >= first or i < sinks]
                seen = [
                    keys[near].view(-1, 2, 8),
                    *(k[row].view(1, 2, 8) for k in own[:steps]),
                ]
                read = [
                    values[near].view(-1, 2, 8),
                    *(v[row].view(1, 2, 8) for v in own[steps:]),
                ]
                k, v = (torch.cat(t).repeat_interleave(2, dim=1) for t in (seen, read))
                scores = torch.einsum("hd,lhd->hl", query[row].view(4, 8), k) * 8**-0.5
                outputs.append(torch.einsum("hl,lhd->hd", scores.softmax(-1), v).flatten())
                row += 1
            start += n
        return torch.stack(outputs)

    if flex:  # its backward pass exists on CUDA only
        monkeypatch.setattr(attention_flex, "_flex", lambda device: dense_attention)
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    mask = attention_flex.conversation_mask(
        torch.cat([torch.arange(n) for n in lengths]),
        torch.cat([start + positions for start, positions in zip(starts, supervised, strict=True)]),
        sizes,
    )
    assert_same(
        lambda: (
            attention_flex.unroll_attention(mask, sizes, query, keys, values, *own)
            if flex
            else UnrollAttention.apply(KERNELS, blocks, sizes, Workspace(), query, keys, values, *own)
        ),
        plain,
        [query, keys, values, *own],
    )
    if flex:
        monkeypatch.undo()
        with torch.no_grad():
            given = (t.detach() for t in (query, keys, values, *own))
            found = attention_flex.unroll_attention(mask, sizes, *given)
        torch.testing.assert_close(found, plain(), rtol=1e-4, atol=1e-4)


def dense_attention(q, k, v, *, block_mask, enable_gqa, return_aux) -> tuple[Tensor, AuxOutput]:
    """Flex attention's result by plain operations."""
    assert enable_gqa
    assert return_aux.lse
    seen = create_mask(block_mask.mask_mod, None, None, q.shape[2], k.shape[2], device="cpu")
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, float("-inf"))
    return scores.softmax(-1) @ v, AuxOutput(lse=scores.logsumexp(-1))


def cross_entropy(logits: Tensor, teacher: Tensor, best: Tensor) -> Tensor:
    """The loss of each row, for autograd."""
    return -(teacher * logits.log_softmax(-1)).sum(-1)


@pytest.mark.parametrize("draft_vocab", [20, 70])  # lm_head stored either way round
def test_loss_and_its_gradients(draft_vocab: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fledge.train.loss._CHUNK_ROWS", 300)
    hidden, matrix = leaf(ROWS, 32), torch.randn(draft_vocab, 32) / 4
    held = weights(lm_head=matrix)
    plain = matrix.clone().requires_grad_()
    target_hidden, target_head = torch.randn(ROWS, 24), torch.randn(24, draft_vocab) / 4
    teacher = teacher_probabilities(target_hidden, target_head, KERNELS)
    torch.testing.assert_close(teacher, (target_hidden @ target_head).softmax(-1))
    counted = torch.rand(ROWS) < 0.7
    best = torch.randint(-1, draft_vocab, (ROWS,))
    result = step_loss(
        hidden.detach(), held["lm_head"], teacher, best, counted, None, 0.25, Workspace(), measure=True
    )
    assert result.measures is not None
    logits = F.linear(hidden, plain)
    per_row = cross_entropy(logits, teacher, best)
    overlap = torch.minimum(teacher, logits.softmax(-1)).sum(-1)
    torch.testing.assert_close(result.measures.overlap[counted], overlap[counted])
    d_hidden, d_matrix = torch.autograd.grad(0.25 * per_row[counted].sum(), [hidden, plain])
    torch.testing.assert_close(result.measures.loss[counted], per_row[counted])
    torch.testing.assert_close(result.d_hidden, d_hidden, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(held.tensors(held.grad)["lm_head"], d_matrix, rtol=1e-3, atol=1e-3)
    assert torch.equal(result.measures.best, logits.argmax(-1))
    assert not result.d_hidden[~counted].any()


@pytest.mark.parametrize("measure", [False, True])
def test_a_loss_of_ones_own_has_the_gradient_of_the_one_it_says(measure: bool) -> None:
    logits, teacher = torch.randn(50, 30), torch.randn(50, 30).softmax(-1)
    counted, best = torch.rand(50) < 0.7, torch.randint(-1, 30, (50,))
    slopes = [logits.clone(), logits.clone()]
    built_in = KERNELS.loss_gradient_(slopes[0], teacher, counted, measure=measure)
    own = own_loss_gradient_(slopes[1], teacher, best, counted, cross_entropy, measure=measure)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-3, atol=1e-5)
    assert (built_in is None) == (own is None) == (not measure)
    if built_in is not None and own is not None:
        torch.testing.assert_close(own.loss[counted], built_in.loss[counted], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own.overlap[counted], built_in.overlap[counted])
        assert torch.equal(own.best, built_in.best)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda logits, teacher, best: logits.sum(), r"returns \(\) for 5 rows; .* one number per row"),
        (lambda logits, teacher, best: 1.0, "returns a float for 5 rows; .* one number per row"),
        (lambda logits, teacher, best: logits.detach().sum(-1), "doesn't depend on the logits"),
        (lambda logits, teacher, best: logits.sum(-1) * 0 / best, "in 1 of 3 rows .* isn't finite"),
        (
            lambda logits, teacher, best: (logits.sum(-1) * best).abs().sqrt(),
            "in 1 of 3 rows .* isn't finite",
        ),
    ],
    ids=["scalar", "number", "detached", "loss", "gradient"],
)
def test_a_loss_that_cannot_be_trained_on_is_refused(loss: LossFunction, says: str) -> None:
    best = torch.tensor([0, 1, 2, -1, 0])
    counted = torch.tensor([True, True, True, False, False])
    with pytest.raises(DataError, match=says):
        own_loss_gradient_(torch.randn(5, 30), torch.rand(5, 30), best, counted, loss, measure=False)


def test_a_loss_is_not_blamed_for_logits_that_diverged() -> None:
    logits, best = torch.full((5, 30), float("nan")), torch.zeros(5, dtype=torch.int64)
    own_loss_gradient_(logits, torch.rand(5, 30), best, best == 0, cross_entropy, measure=False)
    assert logits.isnan().all()  # which the update refuses


def test_what_a_loss_writes_into_teacher_and_best_stays_its_own() -> None:
    def loss(logits: Tensor, teacher: Tensor, best: Tensor) -> Tensor:
        best.clamp_(min=0)
        return -(teacher.mul_(2) * logits.log_softmax(-1)).sum(-1)

    teacher, best = torch.rand(5, 30), torch.full((5,), -1)
    given = teacher.clone(), best.clone()
    own_loss_gradient_(torch.randn(5, 30), teacher, best, best < 0, loss, measure=True)
    assert torch.equal(teacher, given[0])
    assert torch.equal(best, given[1])
