"""A target's weights, read from safetensors and fused: one matrix for Q, K and V, one for gate and up."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from fledge.errors import TargetError
from fledge.target.config import DecoderConfig


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. H hidden, I intermediate, D head_dim, q = heads * D, kv = kv_heads * D."""

    input_norm: Tensor  # [H]
    qkv: Tensor  # [q + 2 * kv, H]
    qkv_bias: Tensor | None  # [q + 2 * kv]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    o: Tensor  # [H, q]
    post_norm: Tensor  # [H]
    gate_up: Tensor  # [2 * I, H], gate rows first
    down: Tensor  # [H, I]


@dataclass(frozen=True)
class DecoderWeights:
    """All weights of a target. `lm_head` is `embedding` itself where they are tied."""

    embedding: Tensor  # [V, H]
    layers: list[LayerWeights]
    norm: Tensor  # [H]
    lm_head: Tensor  # [V, H]


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, single or sharded; [] if there are none or one is missing."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    files = [folder / name for name in names]
    return files if all(file.exists() for file in files) else []


def load_weights(
    folder: Path, config: DecoderConfig, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> DecoderWeights:
    """Read and fuse the weights of an HF folder, cast to `dtype`."""
    source = _TensorSource(folder, dtype, torch.device(device))
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = source.read("model.embed_tokens.weight", vocab, hidden)
    return DecoderWeights(
        embedding=embedding,
        layers=[_read_layer(source, config, index) for index in range(config.num_layers)],
        norm=source.read("model.norm.weight", hidden),
        lm_head=embedding if config.tie_word_embeddings else source.read("lm_head.weight", vocab, hidden),
    )


class _TensorSource:
    """Tensors by HF name, whichever shard they are in, checked for their shape."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        files = weight_files(folder)
        if not files:
            raise TargetError(
                f"{folder} lacks some or all safetensors weights: download or save the model again"
            )
        self._folder, self._dtype, self._device = folder, dtype, device
        self._handles: dict[str, Any] = {}
        for file in files:
            try:
                handle = safe_open(str(file), framework="pt")
            except Exception as error:  # safetensors raises its own type for a truncated or foreign file
                raise TargetError(
                    f"{file} isn't a whole safetensors file ({error}): download it again"
                ) from error
            self._handles.update(dict.fromkeys(handle.keys(), handle))

    def read(self, name: str, *shape: int) -> Tensor:
        if name not in self._handles:
            raise TargetError(f"{self._folder} has no tensor {name}: download or save the model again")
        tensor: Tensor = self._handles[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise TargetError(
                f"{name} in {self._folder} has shape {tuple(tensor.shape)}, but config.json says {shape}: "
                "download or save the model again"
            )
        return tensor.to(device=self._device, dtype=self._dtype)


def _read_layer(source: _TensorSource, config: DecoderConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    hidden, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    sizes = {"q": config.num_heads * head, "k": config.num_kv_heads * head, "v": config.num_kv_heads * head}

    def read_qkv(kind: str, *columns: int) -> Tensor:
        return torch.cat(
            [source.read(f"{attention}.{n}_proj.{kind}", rows, *columns) for n, rows in sizes.items()]
        )

    return LayerWeights(
        input_norm=source.read(f"{prefix}.input_layernorm.weight", hidden),
        qkv=read_qkv("weight", hidden),
        qkv_bias=read_qkv("bias") if config.qkv_bias else None,
        q_norm=source.read(f"{attention}.q_norm.weight", head) if config.qk_norm else None,
        k_norm=source.read(f"{attention}.k_norm.weight", head) if config.qk_norm else None,
        o=source.read(f"{attention}.o_proj.weight", hidden, sizes["q"]),
        post_norm=source.read(f"{prefix}.post_attention_layernorm.weight", hidden),
        gate_up=torch.cat([source.read(f"{mlp}.{n}_proj.weight", inner, hidden) for n in ("gate", "up")]),
        down=source.read(f"{mlp}.down_proj.weight", hidden, inner),
    )
