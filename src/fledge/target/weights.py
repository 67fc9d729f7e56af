"""A target's weights, read from safetensors and fused: one matrix for Q, K and V, one for gate and up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.target import families
from fledge.target.config import DecoderConfig
from fledge.target.experts import ExpertWeights
from fledge.target.families import Family
from fledge.target.source import open_source
from fledge.target.tensors import TensorSource


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer. H hidden, I intermediate, D head_dim, q = heads * D, kv = kv_heads * D.

    Granite's multipliers are in the matrices, as Gemma's on queries is in their norm. Norms are float32 where the
    checkpoint holds them less one, as Gemma's does: bf16 would round them once more.
    """

    input_norm: Tensor  # [H]
    qkv: Tensor  # [q + 2 * kv, H]
    qkv_bias: Tensor | None  # [q + 2 * kv]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    o: Tensor  # [H, q]
    post_norm: Tensor  # [H], before the MLP
    gate_up: Tensor | None  # [2 * I, H], gate rows first; None in a layer of routed experts alone
    down: Tensor | None  # [H, I]
    experts: ExpertWeights | None = None
    attention_out_norm: Tensor | None = None  # [H], of what attention adds to the residual
    mlp_out_norm: Tensor | None = None  # [H]
    o_bias: Tensor | None = None  # [H]
    sinks: Tensor | None = None  # [heads], logits that take their part of attention's softmax

    @property
    def dense_mlp(self) -> tuple[Tensor, Tensor]:
        """gate_up and down where they must be; a TargetError in a layer that has routed experts alone."""
        if self.gate_up is None or self.down is None:
            raise TargetError(
                "the target's layer has routed experts alone, no MLP that every token passes: a head can't start as a "
                "copy of it; use train.init=lm_head or train.init=random"
            )
        return self.gate_up, self.down


@dataclass(frozen=True)
class EndWeights:
    """A target's two ends: all that training a head takes of it.

    `lm_head` is `embedding` where they are tied, and has Granite's multiplier of logits in it.
    """

    embedding: Tensor  # [V, H]
    norm: Tensor  # [H]
    lm_head: Tensor  # [V, H]


@dataclass(frozen=True)
class DecoderWeights(EndWeights):
    """All weights of a target."""

    layers: Sequence[LayerWeights]


class LayerReader(Sequence[LayerWeights]):
    """A target's layers, each read from its file when it is used: a loop over them holds one at a time."""

    def __init__(self, source: TensorSource, config: DecoderConfig, family: Family) -> None:
        self._source, self._config, self._family = source, config, family

    def __len__(self) -> int:
        return self._config.num_layers

    @overload
    def __getitem__(self, index: int) -> LayerWeights: ...
    @overload
    def __getitem__(self, index: slice) -> list[LayerWeights]: ...
    def __getitem__(self, index: int | slice) -> LayerWeights | list[LayerWeights]:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [_read_layer(self._source, self._config, self._family, number) for number in numbers]
        return _read_layer(self._source, self._config, self._family, numbers)


def load_ends(
    folder: Path, config: DecoderConfig, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> EndWeights:
    """Read embedding, final norm and lm_head of an HF folder, cast to `dtype`, and nothing between them."""
    family = families.find(config.architecture)
    source = open_source(folder, config, dtype, device)
    _check_ends(source, config)
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = source.read("model.embed_tokens.weight", vocab, hidden)
    norm = _read_norm(source, family, "model.norm.weight", hidden)
    # Other configs may leave out that they are tied, as Gemma's do.
    tied = config.tie_word_embeddings
    may_lack = (tied or bool(config.undecodable)) and "lm_head.weight" not in source
    lm_head = embedding if may_lack else source.read("lm_head.weight", vocab, hidden)
    if tied and not torch.equal(lm_head, embedding):
        raise TargetError(
            f"config.json in {folder} ties lm_head to the embedding, but the weights hold both and they differ: "
            "transformers 5 takes lm_head, vLLM and SGLang the embedding. If lm_head is right write "
            "tie_word_embeddings=false into config.json, else save the model without lm_head"
        )
    if tied:
        lm_head = embedding
    return EndWeights(embedding, norm, _scaled(lm_head, config.logit_scale))


def check_ends(folder: Path, config: DecoderConfig) -> None:
    """Raise a TargetError if no head can be trained for the target, before hours of work; reads names alone."""
    _check_ends(open_source(folder, config, torch.bfloat16), config)


def _check_ends(source: TensorSource, config: DecoderConfig) -> None:
    lacking = [name for name in ("model.embed_tokens.weight", "model.norm.weight") if name not in source]
    odd = [name for name in ("model.norm.bias", "lm_head.bias") if name in source]
    if config.undecodable and (lacking or odd):
        what = " and ".join([f"has no {name}" for name in lacking] + [f"has {name}" for name in odd])
        raise TargetError(
            f"no head can be trained for {config.architecture}: that takes Llama's names for embedding and last norm, "
            f"an RMSNorm, and an lm_head without bias; this one {what}. Use another target"
        )


def load_weights(
    folder: Path,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    ends: EndWeights | None = None,
) -> DecoderWeights:
    """The weights of an HF folder, cast to `dtype` and fused, layers as they are used; `ends`: read already."""
    ends = ends or load_ends(folder, config, dtype, device)
    family = families.find(config.architecture)
    source = open_source(folder, config, dtype, device)
    return DecoderWeights(ends.embedding, ends.norm, ends.lm_head, LayerReader(source, config, family))


def _read_norm(source: TensorSource, family: Family, name: str, size: int) -> Tensor:
    weight = source.read(name, size)
    return weight.float() + 1 if family.norm_adds_one else weight


def _read_layer(source: TensorSource, config: DecoderConfig, family: Family, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    attention = f"{prefix}.self_attn"
    hidden, head, experts = config.hidden_size, config.head_dim, config.experts
    has_rope = index not in config.rope_free_layers
    interleaved = family.interleaved_rope and has_rope
    normed = config.qk_norm and (has_rope or family.qk_norm_weights)
    # Attention itself scales by head_dim ** -0.5.
    query_scale = 1.0 if config.query_scale is None else config.query_scale * head**0.5
    sizes = {"q": config.num_heads * head, "k": config.num_kv_heads * head, "v": config.num_kv_heads * head}

    def read_qkv(kind: str, *columns: int) -> Tensor:
        if family.fused:
            qkv = source.read(f"{attention}.qkv_proj.{kind}", config.qkv_size, *columns)
        else:
            parts = [source.read(f"{attention}.{n}_proj.{kind}", r, *columns) for n, r in sizes.items()]
            qkv = torch.cat(parts)
        if interleaved:
            turned = qkv[: sizes["q"] + sizes["k"]]
            turned.copy_(_rotate_half_order(turned, head))
        if query_scale != 1.0 and not normed:
            qkv[: sizes["q"]] *= query_scale
        return qkv

    def read_head_norm(name: str) -> Tensor | None:
        if not normed:
            return None
        if not family.qk_norm_weights:
            return input_norm.new_ones(head)
        weight = _read_norm(source, family, f"{attention}.{name}.weight", head)
        return _rotate_half_order(weight, head) if interleaved else weight

    def read_norm(name: str) -> Tensor:
        return _read_norm(source, family, f"{prefix}.{name}.weight", hidden)

    input_norm, behind_attention = read_norm("input_layernorm"), read_norm("post_attention_layernorm")
    qkv, q_norm = read_qkv("weight", hidden), read_head_norm("q_norm")
    gate_up, down = _read_mlp(source, config, family, index) or (None, None)
    routed = experts if experts and index in experts.layers else None
    return LayerWeights(
        input_norm=input_norm,
        qkv=qkv,
        qkv_bias=read_qkv("bias") if config.qkv_bias else None,
        q_norm=None if q_norm is None else _scaled(q_norm, query_scale),
        k_norm=read_head_norm("k_norm"),
        o=_scaled(source.read(f"{attention}.o_proj.weight", hidden, sizes["q"]), config.residual_scale),
        post_norm=read_norm("pre_feedforward_layernorm") if config.out_norms else behind_attention,
        gate_up=gate_up,
        down=down,
        experts=family.read_experts(source, f"{prefix}.mlp", routed, hidden) if routed else None,
        attention_out_norm=behind_attention if config.out_norms else None,
        mlp_out_norm=read_norm("post_feedforward_layernorm") if config.out_norms else None,
        o_bias=_scaled(source.read(f"{attention}.o_proj.bias", hidden), config.residual_scale)
        if config.o_bias
        else None,
        sinks=source.read(f"{attention}.sinks", config.num_heads) if config.sinks else None,
    )


def _scaled(weight: Tensor, scale: float) -> Tensor:
    return weight if scale == 1.0 else weight * scale


def _rotate_half_order(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of q or k that rotate in neighbouring pairs, reordered so that dimension i rotates with i + head_dim / 2."""
    heads = weight.view(-1, head_dim // 2, 2, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def _read_mlp(
    source: TensorSource, config: DecoderConfig, family: Family, index: int
) -> tuple[Tensor, Tensor] | None:
    """The MLP every token passes: a dense layer's, or the shared expert; None if the layer has neither."""
    place = f"model.layers.{index}.mlp"
    size = config.intermediate_size
    if experts := config.experts:
        size = experts.shared_size if index in experts.layers else experts.dense_size
        place += ".shared_expert" if index in experts.layers else ""
    if not size:
        return None
    down = _scaled(source.read(f"{place}.down_proj.weight", config.hidden_size, size), config.residual_scale)
    if family.fused:
        return source.read(f"{place}.gate_up_proj.weight", 2 * size, config.hidden_size), down
    gate, up = (source.read(f"{place}.{n}_proj.weight", size, config.hidden_size) for n in ("gate", "up"))
    return torch.cat((gate, up)), down
