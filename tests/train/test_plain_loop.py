"""The trainer's loss and gradients are those of the plain loop in transformers and autograd."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fledge.train.batches import make_batch
from fledge.train.learner import Learner
from tests.heads.tiny_head import load_tiny_target, random_head
from tests.train.plain_loop import PlainHead
from tests.train.samples import make_sample

WEIGHTS = [0.5, 0.3, 0.2]


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_loss_and_gradients_equal_a_plain_loop_s(
    tiny_target_folder: Path, norm_before_residual: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fledge.train.unroll._FIRST_POSITIONS", 4)  # RoPE's table has to grow
    target = load_tiny_target(tiny_target_folder)
    head = random_head(target, size=200, norm_before_residual=norm_before_residual)
    plain = PlainHead(head, target)
    samples = [make_sample([(5, 9)], seed=1), make_sample([(3, 1), (4, 6), (2, 7)], seed=2)]
    inside = head.vocabulary.token_ids
    samples[0] = replace(samples[0], argmax=samples[0].argmax.where(samples[0].argmax < 0, inside[3].int()))
    loss = plain(samples, WEIGHTS)
    loss.backward()
    learner = Learner(head, target.weights, torch.float32, torch.device("cpu"))
    measures = learner.learn(make_batch(samples, torch.float32), WEIGHTS, measure=True)
    assert measures is not None
    assert measures.loss == pytest.approx(loss.item(), rel=1e-4)
    weights = learner.unrolled.weights
    gradients = {name: (w.grad.t() if w.transposed else w.grad) for name, w in weights.weights.items()}
    qkv = torch.cat([plain.q.weight.grad, plain.k.weight.grad, plain.v.weight.grad])
    expected = {
        "lm_head": plain.lm_head.weight.grad,
        "fc": plain.fc.weight.grad,
        "o": plain.o.weight.grad,
        "down": plain.mlp.down_proj.weight.grad,
        "gate_up": torch.cat([plain.mlp.gate_proj.weight.grad, plain.mlp.up_proj.weight.grad]),
        "qkv_embedding": qkv.chunk(2, dim=1)[0],
        "qkv_hidden": qkv.chunk(2, dim=1)[1],
        "hidden_norm": plain.hidden_norm.weight.grad,
        "input_norm": plain.input_norm.weight.grad,
        "post_norm": plain.post_norm.weight.grad,
        "norm": plain.norm.weight.grad,
    }
    assert set(expected) == set(gradients)
    for name, wanted in expected.items():
        assert wanted is not None
        difference = (gradients[name] - wanted).norm() / wanted.norm()
        assert difference < 1e-3, name


@pytest.mark.parametrize("answer", [2, 3, 5])
def test_a_batch_with_fewer_rows_than_steps_equals_a_plain_loop_s(tiny_target_folder: Path, answer: int):
    target = load_tiny_target(tiny_target_folder)
    head = random_head(target, size=200)
    sample = make_sample([(7, answer)], seed=1)
    inside = head.vocabulary.token_ids[3].int()
    sample = replace(sample, argmax=sample.argmax.where(sample.argmax < 0, inside))
    weights = [1 / 8] * 8
    learner = Learner(head, target.weights, torch.float32, torch.device("cpu"))
    batch = make_batch([sample], torch.float32)
    measures = learner.learn(batch, weights, measure=True)
    assert measures is not None
    assert len(measures.losses) == answer
    assert measures.loss == pytest.approx(PlainHead(head, target)([sample], weights).item(), rel=1e-4)
    assert not learner.hits(batch, 8)[answer:].any()
