"""A tiny target's folder as a GGUF file, written the way llama.cpp's converter does."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from safetensors.torch import load_file

from fledge.target import DecoderConfig

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(
    folder: Path, file: Path, *, architecture: str = "llama", also: Sequence[str] = (), window: int = 0
) -> Path:
    """Write the checkpoint in `folder` to `file`; `also`: names of further tensors, of ones."""
    config = DecoderConfig.from_folder(folder)
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
    if window:
        writer.add_sliding_window(window)
    _add_tokenizer(writer, folder)
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads}.get(name.split(".")[-2])
        if heads:  # llama.cpp turns neighbouring pairs, so rows are interleaved
            values = values.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(values.shape)
        writer.add_tensor(_gguf_name(name), np.ascontiguousarray(values), raw_dtype=GGMLQuantizationType.F32)
    for name in also:
        writer.add_tensor(name, np.ones(config.head_dim // 2, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


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


def _gguf_name(name: str) -> str:
    fixed = {
        "model.embed_tokens.weight": "token_embd",
        "model.norm.weight": "output_norm",
        "lm_head.weight": "output",
    }
    if name in fixed:
        return f"{fixed[name]}.weight"
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest.removesuffix('.weight')]}.weight"
