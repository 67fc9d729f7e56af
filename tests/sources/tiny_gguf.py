"""A tiny target's folder as a GGUF file, written the way llama.cpp's converter does."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, TokenType, quants
from safetensors.torch import load_file

from fledge.target import DecoderConfig

_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LFM2_ENDS = {**_ENDS, "model.norm.weight": "token_embd_norm.weight"}
_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_GEMMA3_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OTHER_NAMES = {
    "gemma3": _GEMMA3_NAMES,
    "seed_oss": {"post_attention_layernorm": "post_attention_norm"},
}
# Whose rows of q and k the converter reorders.
_INTERLEAVED = ("llama", "mistral3", "granite", "smollm3", "eagle3", "clip", "bloom")


def write_gguf(
    folder: Path,
    file: Path,
    *,
    architecture: str = "llama",
    also: Mapping[str, Sequence[float]] | None = None,
    metadata: Mapping[str, float | str | list[int]] | None = None,
    quantised: str | Callable[[str], str] = "F32",
    without: Sequence[str] = (),
) -> Path:
    """Write the checkpoint in `folder` to `file`, its matrices as `quantised`, or as that says for a name.

    `also`: further tensors; `metadata`: further keys of the architecture; `without`: tensors that are left out.
    """
    config = DecoderConfig.from_folder(folder)
    raw = json.loads((folder / "config.json").read_text())
    writer = GGUFWriter(file, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.own_positions)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    _add_own(writer, architecture, raw)
    _add_rope(writer, config)
    for key, value in (metadata or {}).items():
        if isinstance(value, list):
            del writer.kv_data[0][f"{architecture}.{key}"]  # one number so far
            writer.add_array(f"{architecture}.{key}", value)
        else:
            add = writer.add_string if isinstance(value, str) else writer.add_float32
            add(f"{architecture}.{key}", value)
    _add_tokenizer(writer, folder)
    tensors = dict(_converted(folder, architecture, config))
    tensors |= {name: np.array(values, dtype=np.float32) for name, values in (also or {}).items()}
    for name, values in tensors.items():
        if name in without:
            continue
        format = quantised if isinstance(quantised, str) else quantised(name)
        kind = GGMLQuantizationType[format if values.ndim > 1 else "F32"]
        data = quants.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _converted(folder: Path, architecture: str, config: DecoderConfig) -> Any:
    experts: dict[str, list[np.ndarray]] = {}
    for name, tensor in sorted(load_file(folder / "model.safetensors").items()):
        values = tensor.float().numpy()
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        if heads and architecture in _INTERLEAVED:  # neighbouring pairs are turned together
            values = values.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(values.shape)
        if architecture == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        if ".experts." in name:
            _, _, layer, _, _, _, kind, _ = name.split(".")
            experts.setdefault(f"blk.{layer}.{_NAMES[f'mlp.{kind}']}_exps.weight", []).append(values)
        else:
            yield _gguf_name(name, architecture), values
    for name, stack in experts.items():
        yield name, np.stack(stack)
    if config.rope_scaling and config.rope_scaling["rope_type"] == "llama3":
        yield "rope_freqs.weight", np.array(llama3_factors(config), dtype=np.float32)


def llama3_factors(config: DecoderConfig) -> list[float]:
    """What each frequency is divided by, from the definition of Llama 3.1's scaling."""
    scaling, factors = config.rope_scaling, []
    assert scaling is not None
    low, high, factor = (scaling[name] for name in ("low_freq_factor", "high_freq_factor", "factor"))
    for pair in range(config.head_dim // 2):
        turns = scaling["original_max_position_embeddings"] / (
            2 * math.pi * config.rope_theta ** (2 * pair / config.head_dim)
        )
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        factors.append(1 / (kept + (1 - kept) / factor))
    return factors


def _add_own(writer: GGUFWriter, architecture: str, raw: Mapping[str, Any]) -> None:
    """What the metadata of an architecture has besides."""
    if architecture == "granite":
        writer.add_attention_scale(raw["attention_multiplier"])
        writer.add_embedding_scale(raw["embedding_multiplier"])
        writer.add_residual_scale(raw["residual_multiplier"])
        writer.add_logit_scale(raw["logits_scaling"])
    if architecture == "gemma3":
        writer.add_rope_freq_base_swa(raw["rope_parameters"]["sliding_attention"]["rope_theta"])
    if architecture == "qwen3moe":
        writer.add_expert_count(raw["num_local_experts"])
        writer.add_expert_used_count(raw["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(raw["moe_intermediate_size"])
    if architecture in ("gemma3", "phi3") and raw.get("sliding_window"):
        writer.add_sliding_window(raw["sliding_window"])


def _add_rope(writer: GGUFWriter, config: DecoderConfig) -> None:
    scaling = config.rope_scaling or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        if "beta_fast" in scaling:
            writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])
            writer.add_rope_scaling_yarn_attn_factor(scaling["attention_factor"])


def _add_tokenizer(writer: GGUFWriter, folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["content"] for token in tokenizer["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types(
        [TokenType.CONTROL if token in special else TokenType.NORMAL for token, _ in vocab]
    )
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    ids = dict(vocab)
    writer.add_bos_token_id(ids["<|endoftext|>"])
    writer.add_eos_token_id(ids["<|im_end|>"])
    writer.add_pad_token_id(ids["<|endoftext|>"])
    writer.add_chat_template((folder / "chat_template.jinja").read_text())


def _gguf_name(name: str, architecture: str) -> str:
    if name in _ENDS:
        return (_LFM2_ENDS if architecture == "lfm2" else _ENDS)[name]
    _, _, layer, rest = name.split(".", 3)
    stem, _, kind = rest.rpartition(".")
    names = _NAMES | _OTHER_NAMES.get(architecture, {})
    return f"blk.{layer}.{names[stem]}.{kind}"
