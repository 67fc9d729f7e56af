"""The unroll computes what drafting computes: proven against the serving head, one real draft at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fledge.draft import HeadRunner
from fledge.features import FeatureSample
from fledge.heads import Head, head_runner
from fledge.target import Target
from fledge.target.batch import ForwardBatch
from fledge.train import attention_flex
from fledge.train.batches import make_batch
from fledge.train.learner import Learner
from tests.heads.tiny_head import KINDS, random_head
from tests.train.samples import make_sample
from tests.train.test_functions import dense_attention

STEPS = 4
SAMPLES = [
    make_sample([(5, 9)], seed=1),
    make_sample([(3, 1), (4, 6), (2, 7)], seed=2),
    make_sample([(2, 20)], seed=3),
]


@pytest.fixture(scope="module", params=KINDS)
def head(request: pytest.FixtureRequest, target: Target) -> Head:
    return random_head(target, **KINDS[request.param])


def draft_from(runner: HeadRunner, sample: FeatureSample, base: int, steps: int) -> list[Tensor]:
    """Log probabilities [Vd] of each draft step from base position `base`, as serving drafts them, fed true tokens."""
    pages = -(-(len(sample.token_ids) + steps) // runner.page_size)
    kv, size = runner.allocate_kv(pages), runner.config.draft_vocab_size
    zero = torch.zeros(1, dtype=torch.int32)
    found = []
    hidden = None
    for step in range(steps):
        count = 1 if step else base + 1
        rows = ForwardBatch(
            token_ids=sample.token_ids[base + 1 + step : base + 2 + step]
            if step
            else sample.token_ids[1 : base + 2],
            positions=torch.arange(base + step, base + step + 1) if step else torch.arange(base + 1),
            row_start=torch.tensor([0, count], dtype=torch.int32),
            prefix_length=torch.tensor([base + 1], dtype=torch.int32) if step else zero,
            window_offset=torch.tensor([step - 1], dtype=torch.int32) if step else zero,
            page_table=torch.arange(pages, dtype=torch.int32)[None],
            window_mask=torch.tensor([2**step - 1]) if step else None,
            logit_rows=torch.tensor([count - 1], dtype=torch.int32),
        )
        features = None if step else sample.features[: base + 1].float()
        out = runner.forward(rows, kv, features=features, hidden=hidden, k=size)
        hidden = out.hidden[-1:]
        found.append(out.log_probs[0][out.token_ids[0].argsort()])
    return found


def test_unrolled_logits_equal_those_of_real_drafting(target: Target, head: Head):
    learner = Learner(head, target.weights, torch.float32, torch.device("cpu"))
    runner = head_runner(target, head)
    batch = make_batch(SAMPLES, torch.float32)
    outputs = list(learner.unrolled.unroll(batch, STEPS))
    lm_head = learner.unrolled.weights["lm_head"]
    row, compared = 0, 0
    for sample in SAMPLES:
        n = len(sample.token_ids)
        for base in range(n - 2):
            if not sample.loss_mask[base + 2]:
                continue
            generated = [bool(m) for m in sample.loss_mask[base + 2 :]]
            depth = [*generated, False].index(False)  # tokens that can be drafted in a row from here
            expected = draft_from(runner, sample, base, min(depth, STEPS))
            for step, wanted in enumerate(expected):
                got = lm_head.multiply(outputs[step][row : row + 1]).log_softmax(-1)[0]
                torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
                assert batch.valid(step)[row]
                compared += 1
            assert not any(
                batch.valid(step)[row] for step in range(depth, STEPS) if row < len(batch.rows) - step
            )
            row += 1
    assert row == len(batch.rows)
    assert compared > 100


def test_labels_and_teachers_belong_to_the_same_token():
    batch = make_batch(SAMPLES, torch.float32)
    expected = [
        (sample.token_ids[p + 2], sample.argmax[p + 1], sample.hidden[p + 1].float())
        for sample in SAMPLES
        for p in range(len(sample.token_ids) - 2)
        if sample.loss_mask[p + 2]
    ]
    assert batch.labels.tolist() == [int(label) for label, _, _ in expected]
    assert batch.argmax.tolist() == [int(best) for _, best, _ in expected]
    assert torch.equal(batch.teacher_hidden, torch.stack([hidden for _, _, hidden in expected]))
    assert (batch.argmax >= 0).all()


def test_the_first_response_token_is_supervised():
    sample = make_sample([(5, 4)], seed=0)
    batch = make_batch([sample], torch.float32)
    # p = 3 predicts x[5], the first generated token; p = 4 predicts x[6], the first one that is ever drafted.
    assert batch.rows.tolist() == [3, 4, 5, 6]
    assert batch.labels.tolist() == sample.token_ids[5:].tolist()
    assert batch.rows_left.tolist() == [4, 3, 2, 1]
    assert batch.valid(2).tolist() == [True, True]


def test_only_supervised_positions_make_gradients(target: Target, head: Head):
    """What the target thinks of prompt tokens doesn't matter."""
    learner = Learner(head, target.weights, torch.float32, torch.device("cpu"))
    sample = make_sample([(6, 8)], seed=4)
    sample = replace(sample, argmax=torch.full_like(sample.argmax, int(head.vocabulary.token_ids[0])))

    def gradient(changed: FeatureSample) -> Tensor:
        learner.unrolled.weights.grad.zero_()
        learner.learn(make_batch([changed], torch.float32), [0.5, 0.5], measure=False)
        return learner.unrolled.weights.grad.clone()

    before = gradient(sample)
    hidden = sample.hidden.clone()
    hidden[:5] = 7.0  # teachers of x[1] .. x[5], which are all prompt
    assert torch.equal(gradient(replace(sample, hidden=hidden)), before)
    hidden[5] = 7.0  # the teacher of x[6], the first generated token
    assert not torch.equal(gradient(replace(sample, hidden=hidden)), before)


def test_positions_whose_best_token_is_outside_the_vocabulary_are_misses_without_loss(
    target: Target, head: Head
):
    learner = Learner(head, target.weights, torch.float32, torch.device("cpu"))
    sample = make_sample([(4, 12)], seed=5)
    inside = head.vocabulary.token_ids[:12].int()
    outside = (~head.vocabulary.t2d).nonzero().flatten()[:12].int()
    argmax = sample.argmax.clone()
    argmax[3:15] = inside
    argmax[7] = outside[0]
    batch = make_batch([replace(sample, argmax=argmax)], torch.float32)
    result = learner.learn(batch, [1.0], measure=True)
    assert result is not None
    logits = (
        learner.unrolled.weights["lm_head"].multiply(next(iter(learner.unrolled.unroll(batch, 1)))).detach()
    )
    teacher = (batch.teacher_hidden @ target.weights.lm_head[head.vocabulary.token_ids].float().T).softmax(-1)
    kept = torch.arange(12) != 4
    loss = -(teacher * logits.log_softmax(-1)).sum(-1)[kept].mean()
    assert result.losses[0] == pytest.approx(float(loss), rel=1e-4)

    tokens = sample.token_ids.clone()
    tokens[4:] = outside
    missed = make_batch([replace(sample, token_ids=tokens)], torch.float32)
    assert not learner.hits(missed, 2).any()


def test_the_whole_gradient_equals_autograd_through_a_plain_unroll(target: Target, head: Head):
    """Finite differences along random directions of the total loss."""
    learner = Learner(head, target.weights, torch.float32, torch.device("cpu"))
    batch = make_batch(SAMPLES, torch.float32)
    weights, step_weights = learner.unrolled.weights, [0.5, 0.3, 0.2]
    weights.grad.zero_()
    learner.learn(batch, step_weights, measure=False)
    gradient, start = weights.grad.clone(), weights.masters.shard.clone()
    generator = torch.Generator().manual_seed(0)
    for weight in weights.weights.values():
        direction = torch.zeros_like(start)
        direction[weight.span] = torch.randn(weight.grad.numel(), generator=generator)
        direction /= direction.norm()
        losses = []
        for sign in (1, -1):
            weights.masters.shard.copy_(start + sign * 1e-2 * direction)
            weights.refresh()
            result = learner.learn(batch, step_weights, measure=True)
            assert result is not None
            losses.append(result.loss)
        slope = (losses[0] - losses[1]) / 2e-2
        assert slope == pytest.approx(float(gradient @ direction), rel=0.05, abs=2e-4), weight.name


def test_flex_attention_gives_the_gradients_of_the_blocks(
    target: Target, head: Head, monkeypatch: pytest.MonkeyPatch
):
    """What CUDA uses, through the whole head and every step; flex attention itself has no backward pass on a CPU."""
    monkeypatch.setattr(attention_flex, "_flex", lambda device: dense_attention)
    found = []
    for flex in (False, True):
        learner = Learner(head, target.weights, torch.float32, torch.device("cpu"))
        learner.unrolled._flex = flex
        learner.learn(make_batch(SAMPLES, torch.float32), [0.4, 0.3, 0.3], measure=False)
        found.append(learner.unrolled.weights.grad)
    assert float(found[0].norm()) > 0
    assert (found[0] - found[1]).norm() < 1e-3 * found[0].norm()
