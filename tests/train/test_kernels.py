"""The compiled kernels compute what their torch versions do, up to bf16 rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fledge.target.rope import rope_tables
from fledge.train.blocks import Gradients, Inputs, Sizes, make_blocks
from fledge.train.kernels import Kernels
from fledge.train.kernels_compiled import CompiledKernels, kernels_for
from fledge.train.learner import bf16_products
from fledge.train.workspace import Workspace

COMPILED, PLAIN = kernels_for(torch.bfloat16, torch.device("cpu")), Kernels()
pytestmark = pytest.mark.skipif(
    not isinstance(COMPILED, CompiledKernels),
    reason="kernels: those of training are off or can't be compiled",
)
ROWS, WIDTH = 37, 48


def low(*shape: int) -> Tensor:
    return torch.randn(*shape).bfloat16()


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_close(one: Tensor, other: Tensor) -> None:
    assert one.dtype == other.dtype
    torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=2e-2)


def test_rms_norm():
    x, gain = low(ROWS, WIDTH), low(WIDTH)
    fast, plain = (kernels.rms_norm(x, gain, 1e-5) for kernels in (COMPILED, PLAIN))
    assert_close(fast.y, plain.y)
    assert_close(fast.scale, plain.scale)


@pytest.mark.parametrize("threads", [1, 3])
def test_rms_norm_back(threads: int):
    x, gain, dy = low(ROWS, WIDTH), low(WIDTH), low(ROWS, WIDTH)
    scale = PLAIN.rms_norm(x, gain, 1e-5).scale

    def back(kernels: Kernels) -> tuple[Tensor | None, Tensor]:
        d_gain = torch.ones(WIDTH)
        dx = kernels.rms_norm_back(x, gain, scale, dy, d_gain, wants_dx=True)
        return dx, d_gain

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (fast, fast_gain), (plain, plain_gain) = back(COMPILED), back(PLAIN)
    finally:
        torch.set_num_threads(before)
    assert_close(fast, plain)
    assert_close(fast_gain, plain_gain)


def test_swiglu_both_ways():
    gate_up, dy = 8 * low(ROWS, 2 * WIDTH), low(ROWS, WIDTH)
    assert_close(COMPILED.swiglu(gate_up), PLAIN.swiglu(gate_up))
    assert_close(COMPILED.swiglu_back(gate_up, dy), PLAIN.swiglu_back(gate_up, dy))


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_rope_of_a_strided_slice(direction: float):
    wide = low(ROWS, 100)
    cos, sin = rope_tables(16, 10000.0, None, ROWS)
    found = [kernels.rotate(wide[:, 20:68], cos, sin, direction) for kernels in (COMPILED, PLAIN)]
    assert_close(*found)


def test_transpose_and_accumulate():
    x, totals = low(ROWS, 70), torch.ones(2, ROWS, 70)
    for total, kernels in zip(totals, (COMPILED, PLAIN), strict=True):
        for strided in (x, low(70, ROWS).t()):
            assert torch.equal(kernels.transpose(strided, x.new_empty(70, ROWS)), strided.t())
        kernels.accumulate(total, x, 0.3)
    torch.testing.assert_close(*totals)


def test_softmax_and_the_gradient_of_the_loss():
    logits, teacher = 10 * low(ROWS, 700), (3 * torch.randn(ROWS, 700)).softmax(-1).bfloat16()
    logits[3] = -1e4  # far below: no slow or broken exponentials
    logits[3, 5] = 100.0
    counted = torch.rand(ROWS) < 0.6

    copies = [logits.clone(), logits.clone()]
    for copy, kernels in zip(copies, (COMPILED, PLAIN), strict=True):
        kernels.softmax_(copy)
    assert_close(*copies)
    for measure in (False, True):
        fast, plain = logits.clone(), logits.clone()
        fast_measures = COMPILED.loss_gradient_(fast, teacher, counted, measure=measure)
        plain_measures = PLAIN.loss_gradient_(plain, teacher, counted, measure=measure)
        assert_close(fast, plain)
        assert not fast[~counted].any()
        if measure:
            torch.testing.assert_close(fast_measures.loss, plain_measures.loss, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(fast_measures.overlap, plain_measures.overlap, rtol=1e-4, atol=1e-3)
            assert torch.equal(fast_measures.best, plain_measures.best)
        else:
            assert fast_measures is plain_measures is None


def test_padding_that_sees_what_no_row_of_a_window_does_leaves_gradients_finite():
    """The first key's score is far above those in the window of the row that padding repeats."""
    sizes = Sizes(2, 1, 16, 2, 0)
    (block,) = make_blocks([9, 14], [torch.tensor([8]), torch.arange(9, 14)])
    query, slope = torch.ones(6, 32), torch.randn(6, 32)
    keys = torch.randn(23, 16)
    keys[[0, 9]] = 200.0
    others = [keys, torch.randn(23, 16)]
    output, log_sum = torch.empty(6, 32), torch.empty(6, 2)
    given = Inputs(sizes, query, others, Workspace())
    PLAIN.attend(block, given, output, log_sum)
    grads = [t.new_empty(t.shape) for t in (query, *others)]
    PLAIN.attend_back(block, given, Gradients(output, log_sum, slope, grads[0], grads[1:]))
    assert all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (1, 0), (3, 4), (8, 2), (50, 4)])
def test_attention_on_a_padded_block(steps: int, window: int, sinks: int):
    sizes = Sizes(6, 2, 16, window, sinks)
    lengths, supervised = [9, 14, 11], [torch.arange(3, 8), torch.arange(14), torch.tensor([2, 3, 9])]
    (block,) = make_blocks(lengths, supervised)
    total, rows = sum(lengths), sum(len(p) for p in supervised)
    wide = low(rows, 300)
    query, slope = low(rows, 96), low(rows, 96)
    others = [low(total, 64)[:, :32], low(total, 64)[:, 32:]]
    others += [
        wide[:, 32 * i : 32 * i + 32] for i in range(2 * steps)
    ]  # strided, as they come out of a projection
    given = Inputs(sizes, query, others, Workspace())
    found = []
    for kernels in (COMPILED, PLAIN):
        output, log_sum = query.new_empty(query.shape), torch.empty(rows, 6)
        with bf16_products(torch.bfloat16):
            kernels.attend(block, given, output, log_sum)
            grads = [t.new_empty(t.shape) for t in (query, *others)]
            kernels.attend_back(block, given, Gradients(output, log_sum, slope, grads[0], grads[1:]))
        found.append((output, log_sum, *grads))
    for fast, plain in zip(*found, strict=True):
        assert_close(fast, plain)
