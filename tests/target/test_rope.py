"""Rotary tables against transformers, for each kind of scaling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from fledge.base.errors import TargetError
from fledge.target import DecoderConfig, apply_rope, rope_table

KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    "yarn without a factor": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 128},
}


def configs(parameters: dict[str, Any]) -> tuple[DecoderConfig, LlamaConfig]:
    theirs = LlamaConfig(
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=16,
        max_position_embeddings=512,
        rope_parameters={"rope_theta": 10000.0, **parameters},
        architectures=["LlamaForCausalLM"],
    )
    return DecoderConfig.from_hf(theirs.to_dict()), theirs


@pytest.mark.parametrize("kind", KINDS)
def test_rotation_equals_transformers(kind: str) -> None:
    ours, theirs = configs(KINDS[kind])
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 300, 64, generator=generator)  # [1, heads, R, D]
    cos, sin = LlamaRotaryEmbedding(theirs)(query, torch.arange(300)[None])
    expected, _ = apply_rotary_pos_emb(query, query, cos, sin)
    result = apply_rope(query[0].transpose(0, 1), *rope_table(ours, 300))  # [R, heads, D]
    torch.testing.assert_close(result.transpose(0, 1), expected[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("scaling", "wrong"),
    [
        ({"rope_type": "linear", "factor": "two"}, "factor='two', not a positive number"),
        ({"rope_type": "linear", "factor": 0}, "factor=0"),
        ({"rope_type": "linear"}, "the linear RoPE scaling has no factor"),
        ({"type": "llama3", "factor": 8.0}, "the llama3 RoPE scaling has no low_freq_factor"),
        ({"type": "llama3", "factor": 8.0, "low_freq_factor": 2, "high_freq_factor": 2}, "equal"),
        ({"type": "yarn", "factor": 4.0, "beta_fast": "fast"}, "beta_fast='fast'"),
        ("yarn", "no JSON object"),
    ],
)
def test_scaling_that_gives_no_table_is_one_clear_error(scaling: Any, wrong: str, tmp_path: Path) -> None:
    _, theirs = configs(KINDS["default"])
    raw = theirs.to_dict() | {"rope_scaling": scaling}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(TargetError, match=rf"config\.json can't be used.*{wrong}.*download the model again"):
        DecoderConfig.from_folder(tmp_path)


def test_unknown_scaling_names_the_known_ones() -> None:
    ours, _ = configs(KINDS["default"])
    raw = {**ours.__dict__, "rope_scaling": {"rope_type": "longrope"}}
    with pytest.raises(TargetError, match=r"longrope.*llama3"):
        rope_table(DecoderConfig(**raw), 4)
