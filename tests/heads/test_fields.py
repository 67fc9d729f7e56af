"""Published heads load with all their harmless fields; a field that changes the computation is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from fledge.base.errors import HeadError
from fledge.deploy.exchange import export_head, first_difference, import_head
from fledge.heads import Head
from fledge.heads.checkpoint import write_head
from fledge.heads.forms import Form
from fledge.target import Target
from tests.heads.tiny_head import random_head

# As transformers 4 wrote them into every config.json that a trainer saved whole.
TRANSFORMERS_4: dict[str, Any] = {
    "_attn_implementation_autoset": True, "_name_or_path": "meta-llama/Llama-3.1-8B-Instruct",
    "add_cross_attention": False, "architectures": ["LlamaForCausalLMEagle3"], "bad_words_ids": None,
    "begin_suppress_tokens": None, "bos_token_id": 128000, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None, "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False,
    "early_stopping": False, "encoder_no_repeat_ngram_size": 0, "eos_token_id": [128001, 128008, 128009],
    "exponential_decay_length_penalty": None, "finetuning_task": None, "forced_bos_token_id": None,
    "forced_eos_token_id": None, "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False,
    "is_encoder_decoder": False, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0, "max_length": 20,
    "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_return_sequences": 1,
    "output_attentions": False, "output_hidden_states": False, "output_scores": False, "pad_token_id": None,
    "prefix": None, "problem_type": None, "pruned_heads": {}, "quantization_config": None,
    "remove_invalid_values": False, "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False,
    "sep_token_id": None, "suppress_tokens": None, "task_specific_params": None, "temperature": 1.0,
    "tf_legacy_loss": False, "tie_encoder_decoder": False, "tokenizer_class": None, "top_k": 50, "top_p": 1.0,
    "torchscript": False, "typical_p": 1.0, "use_bfloat16": False, "transformers_version": "4.51.0",
}  # fmt: skip
SLIDING = {"layer_types": ["sliding_attention"], "sliding_window": 32}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip

# What published heads have beside the sizes, by who made them.
PUBLISHED: dict[str, tuple[Form, dict[str, Any]]] = {
    "EAGLE": (
        "eagle",
        {
            "architectures": ["LlamaForCausalLM"], "bos_token_id": 128000, "eos_token_id": 128001,
            "initializer_range": 0.02, "pad_token_id": 0, "torch_dtype": "float16", "use_cache": True,
            "transformers_version": "4.28.1", "pretraining_tp": 1,
        },
    ),
    "SpecForge for Qwen3": (
        "sglang",
        {
            "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643, "dtype": "bfloat16",
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True},
            "max_window_layers": 36, "mlp_bias": False, "pretraining_tp": 1, "rope_scaling": None,
            "sliding_window": None, "use_cache": True, "use_sliding_window": False, "decoder_sparse_step": 1,
        },
    ),
    "SpecForge for Gemma 3": (
        "specforge",
        {"sliding_window": 512, "use_sliding_window": False, "target_model_type": "gemma3_text"},
    ),
    "SpecForge for Qwen2.5-VL": (
        "specforge",
        {
            "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}, "max_window_layers": 28,
            "sliding_window": 32768, "use_sliding_window": False, "target_model_type": "qwen2_5_vl",
        },
    ),
    "of a mixture of experts": (
        "sglang",
        {
            "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128,
            "num_experts_per_tok": 8, "output_router_logits": False, "router_aux_loss_coef": 0.001,
            "kv_lora_rank": 512, "q_lora_rank": None, "n_shared_experts": 1, "rope_interleave": None,
        },
    ),
    "NVIDIA": (
        "sglang",
        {
            "attention_bias": False, "attention_dropout": 0.0, "head_dim": 32, "mlp_bias": False,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": True,
                "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
                "next_layer_regular": True, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": None,
            },
            "eagle_decoder_type": "llama", "position_embedding_type": "rope", "rope_scaling": LLAMA3,
        },
    ),
    "AngelSlim": (
        "vllm",
        {"modal_type": "VLM", "target_model_type": "qwen3_vl", "num_aux_hidden_states": 3, "draft_vocab_size": 96},
    ),
    "all of transformers 4": ("sglang", TRANSFORMERS_4),
    "all of transformers 5": ("sglang", PreTrainedConfig().to_dict() | {"architectures": ["LlamaForCausalLM"]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def head(target: Target) -> Head:
    made = random_head(target)
    return Head(made.config, made.weights.to(torch.bfloat16), made.metadata)


def published(head: Head, folder: Path, form: Form, changes: Mapping[str, Any], place: str = "") -> Path:
    """The head as another tool would have written it: without fledge's block, with other fields."""
    write_head(head, str(folder), form)
    config = json.loads((folder / "config.json").read_text())
    del config["fledge"]
    (config[place] if place else config).update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("maker", PUBLISHED)
def test_a_published_head_loads_with_all_its_harmless_fields(
    maker: str, head: Head, target: Target, tmp_path: Path
) -> None:
    form, fields = PUBLISHED[maker]
    import_head(
        str(published(head, tmp_path / "theirs", form, fields)),
        str(tmp_path / "ours"),
        target=str(target.folder),
    )
    assert first_difference(Head.load(str(tmp_path / "ours")), head) is None


@pytest.mark.parametrize("layer", [LlamaConfig, Qwen3Config])
def test_a_head_of_speculators_loads_with_all_that_its_layers_class_writes(
    layer: type[PreTrainedConfig], head: Head, tmp_path: Path
) -> None:
    folder = published(
        head, tmp_path, "speculators", {"embed_requires_grad": False, "has_no_defaults_at_init": False}
    )
    config = json.loads((folder / "config.json").read_text())
    own = {k: v for k, v in config["transformer_layer_config"].items() if k != "rope_scaling"}
    config["transformer_layer_config"] = layer(**own).to_dict()
    config["speculators_config"]["verifier"] |= {"hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    assert Head.load(str(folder)).config == head.config


@pytest.mark.parametrize(
    ("form", "place", "change", "named"),
    [
        # Windows, in the forms of speculators, vLLM, SGLang and EAGLE-4.
        ("speculators", "transformer_layer_config", SLIDING | {"use_sliding_window": True}, "layer_types"),
        ("speculators", "transformer_layer_config", SLIDING, "layer_types"),
        ("vllm", "", SLIDING, "layer_types"),
        ("sglang", "", {"use_sliding_window": True, "sliding_window": 32}, "sliding_window=32"),
        ("sglang", "", {"use_sliding_window": True}, "use_sliding_window=true"),
        ("sglang", "", {"sliding_window": 512}, "sliding_window=512"),
        ("sglang", "", {"sliding_window": 512, "sliding_window_sinks": 7}, "sliding_window_sinks=7"),
        ("sglang", "", {"sliding_window": None, "sliding_window_sinks": 4}, "sliding_window=null"),
        ("sglang", "", {"attention_chunk_size": 64}, "attention_chunk_size=64"),
        # Other drafters.
        ("sglang", "", {"architectures": ["LlamaForCausalLMPEagle"]}, "LlamaForCausalLMPEagle"),
        ("sglang", "", {"architectures": ["PEagleDraftModel"]}, "PEagleDraftModel"),
        ("vllm", "", {"architectures": ["EagleLlama4ForCausalLM"]}, "EagleLlama4ForCausalLM"),
        (
            "sglang",
            "",
            {"efficient_lm_head_config": {"type": "low_rank", "rank": 64}},
            "efficient_lm_head_config",
        ),
        ("vllm", "", {"parallel_drafting": True}, "parallel_drafting"),
        ("speculators", "", {"speculators_model_type": "peagle"}, "type 'peagle'"),
        ("speculators", "speculators_config", {"algorithm": "dflash"}, r"speculators_config\.algorithm"),
        # Switches, at each level.
        ("sglang", "", {"norm_before_fc": True}, "norm_before_fc=true"),
        ("sglang", "", {"num_hidden_layers": 2}, "num_hidden_layers=2"),
        ("sglang", "", {"bias": True}, "bias=true"),
        ("sglang", "", {"use_qk_norm": True}, "use_qk_norm=true"),
        ("sglang", "", {"use_last_layernorm": False}, "use_last_layernorm=false"),
        ("sglang", "", {"hidden_act": "gelu"}, 'hidden_act="gelu"'),
        ("sglang", "", {"hidden_activation": "gelu_pytorch_tanh"}, "hidden_activation"),
        ("sglang", "", {"residual_multiplier": 0.22}, r"residual_multiplier=0\.22"),
        ("sglang", "", {"logits_scaling": 8.0}, "logits_scaling"),
        ("sglang", "", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("sglang", "", {"layer_norm_eps": 1e-5}, "layer_norm_eps"),
        ("sglang", "", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        (
            "sglang",
            "",
            {"eagle_config": {"use_mtp_layernorm": True}},
            r"eagle_config\.use_mtp_layernorm=true",
        ),
        ("sglang", "", {"eagle_config": {"parallel_draft_step": 4}}, r"eagle_config\.parallel_draft_step=4"),
        ("sglang", "", {"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state=false"),
        ("sglang", "", {"eagle_config": {"use_last_layernorm": False}}, "use_last_layernorm=false"),
        ("sglang", "", {"eagle_config": [1]}, r"config\.json can't be used"),
        ("sglang", "", {"eagle_aux_hidden_state_layer_ids": "low"}, r"config\.json can't be used"),
        (
            "sglang",
            "",
            {"eagle_config": {"norm_before_residual": True}},
            r"eagle_config\.norm_before_residual",
        ),
        ("sglang", "", {"eagle_config": {"use_input_layernorm_in_first_layer": False}}, "first_layer=false"),
        ("speculators", "transformer_layer_config", {"attention_bias": True}, "attention_bias=true"),
        # RoPE.
        ("sglang", "", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5"),
        ("sglang", "", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope_type="dynamic"'),
        ("sglang", "", {"rope_scaling": {"type": "longrope", "factor": 4.0}}, 'rope_type="longrope"'),
        ("sglang", "", {"rope_scaling": {"factor": 4.0}}, r"rope_scaling\.factor=4\.0"),
        ("sglang", "", {"rope_scaling": {"type": "linear", "factor": 4.0, "beta_fast": 32}}, "beta_fast"),
        ("sglang", "", {"rope_scaling": LLAMA3 | {"attn_factor": 1.2}}, r"attn_factor=1\.2"),
        ("sglang", "", {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor=0\.5"),
        ("sglang", "", {"rotary_pct": 0.25}, r"rotary_pct=0\.25"),
        # Layer ids under names whose convention isn't known.
        ("sglang", "", {"target_layer_ids": [1, 2, 5]}, "target_layer_ids"),
    ],
)
def test_a_field_that_changes_the_computation_is_refused_by_name(
    form: Form, place: str, change: dict[str, Any], named: str, head: Head, tmp_path: Path
) -> None:
    folder = published(head, tmp_path, form, change, place)
    with pytest.raises(HeadError, match=named):
        Head.load(str(folder))


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": ["full_attention"], "sliding_window": 32, "use_sliding_window": True},
        {"sliding_window": 4096},  # of 2,048 positions
        {"use_sliding_window": True, "sliding_window": None},
        {"rope_scaling": {"rope_type": "mrope", "mrope_section": [4, 6, 6], "mrope_interleaved": True}},
        {"rope_scaling": {"mrope_section": [4, 6, 6]}},
        {"rope_scaling": {"type": "default", "factor": 1.0}},
        {
            "eagle_aux_hidden_state_layer_ids": [2, 4, 5, 6]
        },  # the fourth is the last layer, for the target's logits
        {"eagle_aux_hidden_state_layer_ids": [2, 4, 5], "target_hidden_layer_ids": [2, 4, 5]},
        {"logit_scale": 1.0, "residual_multiplier": 1, "rotary_pct": 1.0, "hidden_activation": "silu"},
    ],
)
def test_a_field_that_switches_nothing_on_is_accepted(
    fields: dict[str, Any], head: Head, tmp_path: Path
) -> None:
    assert Head.load(str(published(head, tmp_path, "sglang", fields))).config == head.config


@pytest.mark.parametrize(
    ("states", "fields", "says"),
    [
        (4, {"num_aux_hidden_states": 4}, r"reads 4 hidden states .*fc is of shape \(64, 256\)"),
        (5, {"target_layer_ids": [1, 2, 3, 4, 6]}, "reads 5 hidden states"),
        (6, {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4, 5, 6]}, "reads 6 hidden states"),
        (1, {}, "reads 1 hidden states"),
        (3, {"num_aux_hidden_states": 4}, "reads 4 hidden states .*num_aux_hidden_states"),
        (3, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}}, "reads 2 hidden states"),
        (3, {"target_hidden_size": 60}, "correct target_hidden_size"),
    ],
)
def test_a_head_of_other_than_three_hidden_states_is_refused_by_their_number(
    states: int, fields: dict[str, Any], says: str, head: Head, tmp_path: Path
) -> None:
    folder = published(head, tmp_path, "sglang", fields)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["fc.weight"] = torch.randn(64, states * 64).to(torch.bfloat16)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    with pytest.raises(HeadError, match=says):
        Head.load(str(folder))


def test_a_nested_field_counts_where_an_outer_one_hides_it(head: Head, tmp_path: Path) -> None:
    folder = published(head, tmp_path, "speculators", {"attention_bias": False, "sliding_window": None})
    config = json.loads((folder / "config.json").read_text())
    config["transformer_layer_config"] |= {"attention_bias": True, "sliding_window": 32}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(HeadError, match="sliding_window=32, attention_bias=true"):
        Head.load(str(folder))


def test_norms_of_features_under_their_former_names_are_the_same_norms(
    target: Target, tmp_path: Path
) -> None:
    """SGLang still reads `use_aux_norm` and `aux_norm_low`, `mid`, `high`."""
    made = random_head(target, fc_norm=True)
    normed = Head(made.config, made.weights.to(torch.bfloat16), made.metadata)
    folder = published(normed, tmp_path / "older", "sglang", {"fc_norm": None, "use_aux_norm": True})
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for i, name in enumerate(("low", "mid", "high")):
        tensors[f"aux_norm_{name}.weight"] = tensors.pop(f"fc_norm.{i}.weight")
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    read = Head.load(str(folder))
    assert first_difference(read, normed) is None
    assert read.config == normed.config
    export_head(str(folder), str(tmp_path / "out"), form="vllm")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["fc_norm"] is True


def test_a_tensor_under_two_names_is_refused(head: Head, tmp_path: Path) -> None:
    """One of them would be dropped unread."""
    write_head(head, str(tmp_path))
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.hidden_norm.weight"] = torch.ones(64)
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(HeadError, match=r"has model\.layers\.0\.hidden_norm\.weight under a second name"):
        Head.load(str(tmp_path))


def test_a_heads_own_incomplete_rope_is_said_of_the_head(head: Head, tmp_path: Path) -> None:
    for rope in ({"rope_type": "linear"}, {"rope_type": "llama3", "factor": 8.0}, "yarn"):
        folder = published(head, tmp_path / "head", "sglang", {"rope_scaling": rope})
        with pytest.raises(HeadError, match=r"head/config\.json can't be used .*RoPE.*get the head again"):
            Head.load(str(folder))


@pytest.mark.parametrize(
    ("ids", "advice"),
    [((4, 6, 8), "--layers 3,5,7"), ((-1, 3, 5), "--layers 0,4,6"), ((1, 5, 20), "with the three it was")],
)
def test_layers_that_a_target_lacks_are_answered_by_advice_that_works(
    ids: tuple[int, ...], advice: str, head: Head, target: Target, tmp_path: Path
) -> None:
    """Ids counted as states between the layers end with the number of layers; NVIDIA's gpt-oss heads do."""
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids)}}
    folder = str(published(head, tmp_path / "head", "sglang", nested))
    with pytest.raises(HeadError, match="the target's 8 layers are 0 to 7") as caught:
        import_head(folder, str(tmp_path / "in"), target=str(target.folder))
    assert advice in str(caught.value)
    assert "target.feature_layers" not in str(caught.value)
    if advice.startswith("--layers"):
        layers = [int(layer) for layer in advice.removeprefix("--layers ").split(",")]
        import_head(folder, str(tmp_path / "in"), target=str(target.folder), layers=layers)
        assert Head.load(str(tmp_path / "in")).metadata.feature_layers == tuple(layers)
