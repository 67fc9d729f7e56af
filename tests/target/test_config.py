"""Reading config.json as every version of transformers writes it, and refusing what the decoder can't compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from fledge.base.errors import TargetError
from fledge.draft import HeadConfig
from fledge.target import SUPPORTED_ARCHITECTURES, DecoderConfig

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 30,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}

GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 32}


def read(**changes: Any) -> DecoderConfig:
    return DecoderConfig.from_hf({**BASE, **changes})


def test_defaults_follow_transformers() -> None:
    config = read()
    assert (config.num_kv_heads, config.head_dim, config.rope_theta, config.rope_scaling) == (
        4,
        16,
        10000.0,
        None,
    )
    assert not config.tie_word_embeddings
    assert not config.qkv_bias
    assert not config.qk_norm


@pytest.mark.parametrize(
    "form",
    [
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3}},
    ],
)
def test_rope_of_old_and_new_transformers_is_the_same(form: dict[str, Any]) -> None:
    config = read(**form)
    assert config.rope_theta == 5e5
    assert config.rope_scaling == {"rope_type": "llama3", **LLAMA3}


@pytest.mark.parametrize("architecture", SUPPORTED_ARCHITECTURES)
def test_what_config_leaves_out_is_as_in_transformers(architecture: str) -> None:
    family = architecture.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")
    if family == "Mistral3":
        family = "Mistral"
    text = "Text" if family in ("Llama4", "Gemma3") or family.endswith("VL") else ""
    theirs = getattr(transformers, f"{family}{text}Config")()
    left_out = ("max_position_embeddings", "rms_norm_eps", "rope_parameters", "sliding_window")
    said = theirs.to_dict() | {"architectures": [architecture]}
    silent = {name: value for name, value in said.items() if name not in left_out}
    assert DecoderConfig.from_hf(silent) == DecoderConfig.from_hf(said)


def test_plain_rope_has_no_scaling() -> None:
    assert read(rope_parameters={"rope_type": "default", "rope_theta": 1e6}).rope_scaling is None
    assert read(rope_scaling=None, rope_theta=1e6).rope_theta == 1e6


def test_rope_scaling_holds_where_rope_parameters_stand_beside_it() -> None:
    """As in transformers 5, of a checkpoint that it saved and someone then scaled as the model's card says."""
    config = read(
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    )
    assert config.rope_scaling == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    assert config.rope_theta == 10000.0


def test_a_head_turns_as_its_target_s_layers_of_full_attention() -> None:
    kinds = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    }
    new = read(architectures=["Gemma3ForCausalLM"], rope_parameters=kinds)
    old = read(
        architectures=["Gemma3ForCausalLM"],
        rope_theta=1e6,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert (new.rope_theta, new.rope_scaling) == (old.rope_theta, old.rope_scaling) == (1e6, new.rope_scaling)


@pytest.mark.parametrize("place", ["top", "rope_parameters"])
def test_partly_turned_heads_are_not_decoded_wherever_config_says_so(place: str) -> None:
    partial = {"partial_rotary_factor": 0.5}
    scaled = {"rope_type": "linear", "factor": 2.0}
    config = read(
        **{"rope_parameters": scaled | partial} if place != "top" else partial | {"rope_scaling": scaled}
    )
    assert "partial_rotary_factor=0.5" in config.undecodable
    assert config.rope_scaling == scaled | {"original_max_position_embeddings": 1024}  # of the head: whole


def test_yarn_of_a_llama_4_is_not_decoded() -> None:
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 96}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    config = read(architectures=["Llama4ForCausalLM"], rope_parameters=yarn, **experts)
    assert "RoPE scaling 'yarn' (default, linear, llama3, frequency_factors)" in config.undecodable


def test_yarn_without_a_factor_reaches_as_far_as_the_context() -> None:
    scaling = read(rope_scaling={"type": "yarn", "factor": None, "original_max_position_embeddings": 256})
    assert scaling.rope_scaling is not None
    assert scaling.rope_scaling["factor"] == 4.0


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(30, (1, 14, 26)), (32, (1, 15, 28)), (8, (1, 3, 4)), (6, (0, 2, 5)), (3, (0, 1, 2)), (1, (0, 0, 0))],
)
def test_feature_layers(layers: int, expected: tuple[int, int, int]) -> None:
    assert read(num_hidden_layers=layers).feature_layers == expected


def test_an_unknown_architecture_is_read_and_not_decoded() -> None:
    config = read(architectures=["OlmoeForCausalLM"], sliding_window=128)
    assert "OlmoeForCausalLM" in config.undecodable
    assert all(name in config.undecodable for name in SUPPORTED_ARCHITECTURES)
    assert config.max_position_embeddings == 1024  # whatever windows its layers have


def test_what_a_config_leaves_to_its_class_is_filled_in_by_transformers() -> None:
    """Gemma 3's say as little as this."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
    }
    text["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
    raw = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": text}
    config = DecoderConfig.from_hf(raw)
    assert not config.undecodable
    assert config.tie_word_embeddings
    assert (config.window, config.windowed_layers[:7]) == (4096, (0, 1, 2, 3, 4, 6, 7))
    assert (config.window_rope_theta, config.query_scale) == (1e4, 1 / 16)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert (config.num_layers, config.vocab_size, config.max_position_embeddings) == (34, 262208, 131072)
    assert config.rope_theta == 1e6
    assert config.rope_scaling is not None
    assert config.rope_scaling["factor"] == 8.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"architectures": ["Ernie4_5ForCausalLM"], "use_bias": True}, "use_bias=true (false)"),
        ({"architectures": ["SeedOssForCausalLM"], "mlp_bias": True}, "mlp_bias=true (false)"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "RoPE scaling 'longrope'"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 63}, "sliding_window=63 (64 or more)"),
        (GEMMA3 | {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        (GEMMA3 | {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        (GEMMA3 | {"hidden_activation": "relu"}, "hidden_activation='relu' (gelu_pytorch_tanh)"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 (none)"),
        ({"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ({"use_qk_norm": True}, "use_qk_norm=true (false)"),
        ({"attention_sinks": True}, "attention_sinks"),
        ({"residual_multiplier": 0.22}, "residual_multiplier=0.22 (1)"),
        ({"scale_emb": 12}, "scale_emb=12"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size=8192"),
        ({"attn_temperature_tuning": True}, "attn_temperature_tuning"),
        ({"no_rope_layers": [1, 1, 0]}, "no_rope_layers"),
        ({"rope_interleave": True}, "rope_interleave"),
        ({"position_embedding_type": "nope"}, "position_embedding_type='nope'"),
        ({"compression_config": {"bits": 4}}, "compression_config"),
        (
            {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta=0.1",
        ),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types linear_attention"),
        ({"layer_types": ["sliding_attention"], "sliding_window": 128}, "layer_types with windows of 128"),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "sliding_window": 128,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
            },
            "rope_parameters of their own for windowed layers",
        ),
    ],
)
def test_variants_that_the_decoder_lacks_are_read_and_not_decoded(change: dict[str, Any], named: str) -> None:
    assert not read().undecodable
    config = read(**change)
    assert named in config.undecodable
    assert config.rope_scaling is None  # what a new head gets


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": None},
        {"rms_norm_eps": None},
        {"rms_norm_eps": "small"},
        {"final_logit_softcapping": 30.0},
        {"logit_scale": 0.0625},
        {"logits_scaling": 8.0},
        {"architectures": ["GraniteMoeForCausalLM"], "logits_scaling": 8.0},
        {"lm_head_multiplier": 0.04},
        {"mup_width_multiplier": 8.0},
        {"architectures": ["MiniCPMForCausalLM"], "dim_model_base": 32},
    ],
)
def test_what_no_head_can_learn_from_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(TargetError, match=list(change)[-1]):
        read(**change)


@pytest.mark.parametrize(
    "published",
    [
        {"pretraining_tp": 1, "use_cache": True, "mlp_bias": False, "attention_bias": False, "sliding_window": None},
        {"architectures": ["Qwen2ForCausalLM"], "use_mrope": False, "use_sliding_window": False, "sliding_window": 256},
        {"architectures": ["Qwen3ForCausalLM"], "use_qk_norm": True, "layer_types": ["full_attention"] * 30},
        {"architectures": ["Phi3ForCausalLM"], "embd_pdrop": 0.0, "lm_head_bias": False, "sliding_window": 262144},
        {
            "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
            "attention_multiplier": 0.015625, "logits_scaling": 8.0, "position_embedding_type": "rope",
        },
        {"rope_scaling": {"rope_type": "mrope", "mrope_section": [2, 3, 3], "mrope_interleaved": True}},
        {"a_field_of_next_year": True, "summary_type": "cls_index", "embedding_multiplier": 1.0},
        GEMMA3 | {"query_pre_attn_scalar": 256, "rope_local_base_freq": 10000.0, "sliding_window": 512},
    ],
)  # fmt: skip
def test_fields_of_published_targets_that_the_decoder_knows_or_needs_not_are_no_obstacle(
    published: dict[str, Any],
) -> None:
    assert read(**published).undecodable == ""


def test_multimodal_configs_as_older_versions_wrote_them_are_read() -> None:
    """Qwen2.5-VL's has the text model's fields at the top, and a RoPE for pictures that is the plain one for text."""
    flat = {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "rope_theta": 1e6,
    }
    config = read(
        **flat, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]}, tie_word_embeddings=True
    )
    assert not config.undecodable
    assert (config.hidden_size, config.num_layers, config.rope_theta, config.rope_scaling) == (
        64,
        30,
        1e6,
        None,
    )
    assert config.tie_word_embeddings
    assert config.qkv_bias


def test_a_mistral_3_around_another_text_model_or_quantised_is_not_decoded() -> None:
    mistral3 = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3"}
    text = {**BASE, "model_type": "mistral"}
    assert not DecoderConfig.from_hf({**mistral3, "text_config": text}).undecodable
    newer = DecoderConfig.from_hf({**mistral3, "text_config": {**text, "model_type": "ministral3"}})
    assert "Mistral3ForConditionalGeneration around ministral3" in newer.undecodable
    quantised = {"quantization_config": {"quant_method": "fp8"}}
    assert (
        "quantization_config"
        in DecoderConfig.from_hf({**mistral3, **quantised, "text_config": text}).undecodable
    )


def test_which_layers_see_a_window_alone() -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "num_hidden_layers": 3}
    assert windows(read(**mistral, sliding_window=256)) == (256, (0, 1, 2))
    assert windows(read(**mistral, sliding_window=None)) == (0, ())
    assert windows(read(**mistral)) == (0, ())  # 4096 of 1,024 positions
    qwen = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 256}
    assert windows(read(**qwen)) == (0, ())
    assert windows(read(**qwen, use_sliding_window=True)) == (256, (28, 29))
    assert windows(read(**qwen, use_sliding_window=True, max_window_layers=30)) == (0, ())
    assert read(**mistral, sliding_window=256).max_position_embeddings == 1024


def windows(config: DecoderConfig) -> tuple[int, tuple[int, ...]]:
    return config.window, config.windowed_layers


def test_a_llama_4_is_decoded_within_its_chunk_and_its_head_goes_on() -> None:
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 96}
    config = read(architectures=["Llama4ForCausalLM"], attention_chunk_size=256, **experts)
    assert (config.max_position_embeddings, config.own_positions) == (256, 1024)
    assert HeadConfig.for_target(config, 8).max_position_embeddings == 1024  # other engines serve them all


def test_gpt_oss_is_decoded_in_bf16_and_with_its_experts_in_mxfp4() -> None:
    """What openai/gpt-oss-20b says."""
    yarn = {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    raw = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "head_dim": 64,
        "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880, "initial_context_length": 4096,
        "layer_types": ["sliding_attention", "full_attention"] * 12, "max_position_embeddings": 131072,
        "num_attention_heads": 64, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8,
        "num_local_experts": 32, "rms_norm_eps": 1e-5, "rope_scaling": yarn, "rope_theta": 150000,
        "sliding_window": 128, "swiglu_limit": 7.0, "tie_word_embeddings": False, "vocab_size": 201088,
    }  # fmt: skip
    plain = DecoderConfig.from_hf(raw)
    assert not plain.undecodable
    assert (plain.rope_theta, plain.rope_scaling) == (150000.0, yarn)
    assert (plain.window, plain.windowed_layers) == (128, tuple(range(0, 24, 2)))
    assert plain.experts is not None
    assert (plain.experts.count, plain.experts.per_token, plain.experts.clamp) == (32, 4, 7.0)
    assert 20.9e9 < plain.weight_count < 20.92e9
    quantised = {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"}
    assert DecoderConfig.from_hf({**raw, "quantization_config": quantised}) == plain
    other = {**raw, "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    assert "quantization_config" in DecoderConfig.from_hf(other).undecodable
    llama = {"architectures": ["LlamaForCausalLM"], "quantization_config": quantised}
    assert "quantization_config" in read(**llama).undecodable


def test_a_damaged_config_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"no config\.json"):
        DecoderConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BASE)[:40])
    with pytest.raises(TargetError, match="can't read"):
        DecoderConfig.from_folder(tmp_path)
    for wrong in ({"head_dim": "x"}, {"architectures": 1}, {"text_config": [1]}, {"rope_scaling": "linear"}):
        (tmp_path / "config.json").write_text(json.dumps(BASE | wrong))
        with pytest.raises(TargetError, match="download the model again"):
            DecoderConfig.from_folder(tmp_path)
