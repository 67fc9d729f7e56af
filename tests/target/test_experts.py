"""Mixtures of experts: each row through its own experts, whatever else is in the batch, and in the whole engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.draft import DraftVocabulary
from fledge.engine import Engine, TreeShape
from fledge.heads import Head
from fledge.target import DecoderConfig, Target
from fledge.target.experts import ExpertsConfig, ExpertWeights, Routing, mix_experts
from fledge.train.start import random_head
from tests.tiny import EXPERTS, TinyShape, save_tiny_target

COUNT, HIDDEN, INNER = 7, 24, 16


def make_experts(
    routing: Routing, per_token: int, *, gpt_oss: bool = False
) -> tuple[ExpertsConfig, ExpertWeights]:
    generator = torch.Generator().manual_seed(per_token)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    weights = ExpertWeights(
        router=random(COUNT, HIDDEN),
        gate_up=random(COUNT, 2 * INNER, HIDDEN),
        down=random(COUNT, HIDDEN, INNER),
        router_bias=random(COUNT) if gpt_oss else None,
        gate_up_bias=random(COUNT, 2 * INNER) if gpt_oss else None,
        down_bias=random(COUNT, HIDDEN) if gpt_oss else None,
    )
    clamp = 0.7 if gpt_oss else 0.0
    return ExpertsConfig(COUNT, per_token, INNER, routing, 0, (0,), INNER, clamp), weights


def one_row(x: Tensor, w: ExpertWeights, config: ExpertsConfig) -> Tensor:
    """What a row [H] should become, written out expert by expert."""
    gpt_oss = w.router_bias is not None and w.gate_up_bias is not None and w.down_bias is not None
    scores = w.router @ x + (w.router_bias if gpt_oss else 0)
    probabilities = scores.softmax(dim=0)
    chosen = scores.argsort(descending=True)[: config.per_token]
    total, out = probabilities[chosen].sum(), torch.zeros(HIDDEN)
    for expert in chosen.tolist():
        weight = {
            "softmax": probabilities[expert],
            "renormalised": probabilities[expert] / total,
            "sigmoid": scores[expert].sigmoid(),
        }[config.routing]
        inside = x * weight if config.routing == "sigmoid" else x
        gate, up = (w.gate_up[expert] @ inside + (w.gate_up_bias[expert] if gpt_oss else 0)).chunk(2)
        activated = F.silu(gate) * up
        if gpt_oss:
            gate, up = gate.clamp(max=0.7), up.clamp(-0.7, 0.7)
            activated = gate / (1 + (-1.702 * gate).exp()) * (up + 1)
        mixed = w.down[expert] @ activated + (w.down_bias[expert] if gpt_oss else 0)
        out += mixed if config.routing == "sigmoid" else mixed * weight
    return out


@pytest.mark.parametrize("per_token", [1, 3])
@pytest.mark.parametrize(
    ("routing", "gpt_oss"),
    [("softmax", False), ("renormalised", False), ("sigmoid", False), ("renormalised", True)],
)
def test_each_row_is_the_sum_of_its_own_experts(routing: Routing, gpt_oss: bool, per_token: int) -> None:
    config, weights = make_experts(routing, per_token, gpt_oss=gpt_oss)
    for rows in (0, 1, 5, 40):  # no row: a prompt's last layer, if none of its tokens is wanted
        x = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows))
        expected = torch.stack([one_row(row, weights, config) for row in x]) if rows else x
        torch.testing.assert_close(mix_experts(x, weights, config), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("routing", ["softmax", "sigmoid"])
def test_grouped_products_in_bf16_are_those_of_the_loop(
    routing: Routing, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not hasattr(F, "grouped_mm"):
        pytest.skip("this torch has no grouped_mm")
    config, weights = make_experts(routing, 2)
    low = ExpertWeights(weights.router.bfloat16(), weights.gate_up.bfloat16(), weights.down.bfloat16())
    x = torch.randn(33, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()
    grouped = mix_experts(x, low, config)
    monkeypatch.delattr(F, "grouped_mm")
    torch.testing.assert_close(grouped, mix_experts(x, low, config), rtol=0.02, atol=0.02)


def test_no_rows_in_bf16_are_no_rows() -> None:
    config, weights = make_experts("softmax", 2)
    low = ExpertWeights(weights.router.bfloat16(), weights.gate_up.bfloat16(), weights.down.bfloat16())
    assert mix_experts(torch.empty(0, HIDDEN).bfloat16(), low, config).shape == (0, HIDDEN)


@pytest.fixture(scope="module", params=list(EXPERTS))
def sparse_target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = save_tiny_target(
        tmp_path_factory.mktemp("sparse"), request.param, shape=TinyShape(tied=False), dtype=torch.float32
    )
    return Target.load(str(folder), dtype="float32")


def test_an_answer_with_a_head_is_the_plain_one(sparse_target: Target) -> None:
    head = random_head(sparse_target, DraftVocabulary.from_counts(torch.ones(512), 200), keep_output=True)
    prompts = [list(range(start, start + 20)) for start in (30, 90, 200)]
    plain = Engine(sparse_target).generate(prompts, max_tokens=12, ignore_eos=True)
    engine = Engine(sparse_target, head, tree=TreeShape(depth=3, topk=2, nodes=6))
    drafted = engine.generate(prompts, max_tokens=12, ignore_eos=True)
    assert [a.token_ids for a in drafted] == [a.token_ids for a in plain]


def test_a_head_starts_as_the_last_layer_only_where_all_tokens_pass_an_mlp(sparse_target: Target) -> None:
    vocabulary = DraftVocabulary.from_counts(torch.ones(512), 64)
    if sparse_target.config.architecture.startswith("Llama4"):
        shared = sparse_target.weights.layers[-1].down
        head = Head.from_target(sparse_target, vocabulary)
        assert torch.cosine_similarity(head.weights.down, shared, dim=1).min() > 0.99
    else:
        with pytest.raises(TargetError, match=r"train\.init=lm_head"):
            Head.from_target(sparse_target, vocabulary)


def test_a_head_starts_as_a_dense_layer_of_a_size_of_its_own(tmp_path: Path) -> None:
    folder = save_tiny_target(
        tmp_path, "Llama4ForCausalLM", shape=TinyShape(tied=False), moe_layers=[0], dtype=torch.float32
    )
    head = Head.from_target(
        Target.load(str(folder), dtype="float32"), DraftVocabulary.from_counts(torch.ones(512), 64)
    )
    assert head.config.intermediate_size == EXPERTS["Llama4ForCausalLM"]["intermediate_size_mlp"]


def test_weight_count_is_the_size_of_the_checkpoint(sparse_target: Target) -> None:
    from safetensors import safe_open

    with safe_open(str(sparse_target.folder / "model.safetensors"), framework="pt") as file:
        tensors = list(map(file.get_tensor, file.keys()))
    matrices = sum(tensor.numel() for tensor in tensors if tensor.dim() > 1)
    routers = sum(t.numel() for t in tensors if t.dim() == 2 and t.shape[0] in (5, 6))
    assert sparse_target.config.weight_count == matrices - routers


def test_missing_numbers_of_experts_are_named() -> None:
    raw = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 512,
        "num_experts": 4,
    }
    with pytest.raises(TargetError, match=r"config\.json has no moe_intermediate_size"):
        DecoderConfig.from_hf(raw)
