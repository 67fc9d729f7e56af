"""A new head's sizes: its target's, a dense target's beside experts, or those of the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fledge.base.errors import HeadError, RecipeError
from fledge.bench.plan.shape import HeadShape, shape_of
from fledge.draft import DraftVocabulary, HeadConfig
from fledge.draft.description import weight_shapes
from fledge.draft.options import HeadOptions
from fledge.target.config import DecoderConfig
from fledge.train import TrainOptions
from fledge.train.refusals import refuse_untrainable
from fledge.train.start import random_head
from tests.heads.tiny_head import load_tiny_target

SCORES = torch.arange(512)
SIZES = {"max_position_embeddings": 4096, "vocab_size": 1000, "hidden_act": "silu", "rms_norm_eps": 1e-6}
# hidden size, one expert's width, heads and heads of keys, as published
GPT_OSS = SIZES | {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "num_hidden_layers": 36,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
    "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
}  # fmt: skip
QWEN3_30B = SIZES | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
}  # fmt: skip
QWEN35 = SIZES | {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
        "num_key_value_heads": 2, "head_dim": 256, "moe_intermediate_size": 512, "num_experts": 256,
        "num_experts_per_tok": 8, "shared_expert_intermediate_size": 512,
    } | SIZES,
}  # fmt: skip
DEEPSEEK = SIZES | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "num_experts_per_tok": 8, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
LLAMA = SIZES | {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
}  # fmt: skip


@pytest.mark.parametrize(
    ("published", "sizes"),
    [
        (LLAMA, (14336, 32, 8, 128)),
        (GPT_OSS, (17280, 64, 8, 64)),
        (QWEN3_30B, (12288, 32, 4, 128)),
        (QWEN35, (12288, 16, 2, 256)),
        (DEEPSEEK, (43008, 56, 8, 128)),
    ],
    ids=["llama", "gpt-oss", "qwen3-30b", "qwen3.5-moe", "deepseek-v3"],
)
def test_a_head_is_as_wide_as_a_dense_targets(published: dict[str, Any], sizes: tuple[int, ...]) -> None:
    c = HeadConfig.for_target(DecoderConfig.from_hf(published), 800)
    assert (c.intermediate_size, c.num_heads, c.num_kv_heads, c.head_dim) == sizes
    planned, shapes = shape_of(published), weight_shapes(c)
    head = HeadShape.of(planned, 800)
    matrices = {name: shape[0] * shape[1] for name, shape in shapes.items() if len(shape) == 2}
    assert head.fc == matrices.pop("fc")
    assert head.weights == sum(matrices.values())


def test_the_recipe_chooses_other_sizes(tiny_target_folder: Path) -> None:
    target = load_tiny_target(tiny_target_folder)
    options = TrainOptions(head={"intermediate_size": 160, "num_heads": 6, "num_kv_heads": 3})
    refuse_untrainable(target, options)
    vocabulary = DraftVocabulary.from_counts(SCORES, 64)
    c = random_head(target, vocabulary, sizes=options.head).config
    assert (c.intermediate_size, c.num_heads, c.num_kv_heads) == (160, 6, 3)


def test_sizes_that_cannot_be_honoured_are_refused(tiny_target_folder: Path) -> None:
    target = load_tiny_target(tiny_target_folder)
    with pytest.raises(HeadError, match="can't share 4 heads of keys"):
        HeadOptions(num_heads=6, num_kv_heads=4).complete(target.config)
    with pytest.raises(HeadError, match="num_kv_heads"):
        refuse_untrainable(target, TrainOptions(head={"num_heads": 3}))
    with pytest.raises(RecipeError, match="init=target copies"):
        refuse_untrainable(target, TrainOptions(init="target", head={"intermediate_size": 64}))
    with pytest.raises(ValueError, match="layers"):
        TrainOptions(head={"layers": 2})
