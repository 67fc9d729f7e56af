"""A target's weights, fused: one matrix for Q, K and V, one for gate and up.

`read_weights` gives matrices as the checkpoint holds them, for the kernels; `load_weights` gives tensors, for torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.target import families
from fledge.target.config import DecoderConfig
from fledge.target.experts import ExpertWeights
from fledge.target.families import Family
from fledge.target.matrix import Matrix
from fledge.target.rope import rotate_half_order
from fledge.target.source import open_source
from fledge.target.tensors import TensorSource

M = TypeVar("M")  # a matrix: a Tensor, or a Matrix as the file holds it


@dataclass(frozen=True)
class LayerWeights(Generic[M]):
    """One decoder layer. H hidden, I intermediate, D head_dim, q = heads * D, kv = kv_heads * D.

    Granite's multipliers are in the matrices, as Gemma's on queries is in their norm. Norms are float32 where the
    checkpoint holds them less one, as Gemma's does: bf16 would round them once more.
    """

    input_norm: Tensor  # [H]
    qkv: M  # [q + 2 * kv, H]
    qkv_bias: Tensor | None  # [q + 2 * kv]
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    o: M  # [H, q]
    post_norm: Tensor  # [H], before the MLP
    gate_up: M | None  # [2 * I, H], gate rows first; None in a layer of routed experts alone
    down: M | None  # [H, I]
    experts: ExpertWeights | None = None
    attention_out_norm: Tensor | None = None  # [H], of what attention adds to the residual
    mlp_out_norm: Tensor | None = None  # [H]
    o_bias: Tensor | None = None  # [H]
    sinks: Tensor | None = None  # [heads], logits that take their part of attention's softmax

    @property
    def dense_mlp(self) -> tuple[M, M]:
        """gate_up and down where they must be; a TargetError in a layer that has routed experts alone."""
        if self.gate_up is None or self.down is None:
            raise TargetError(
                "the target's layer has routed experts alone, no MLP that every token passes: a head can't start as a "
                "copy of it; use train.init=lm_head or train.init=random"
            )
        return self.gate_up, self.down


@dataclass(frozen=True)
class EndWeights(Generic[M]):
    """A target's two ends: all that training a head takes of it.

    `lm_head` is `embedding` where they are tied, and has Granite's multiplier of logits in it.
    """

    embedding: M  # [V, H]
    norm: Tensor  # [H]
    lm_head: M  # [V, H]


@dataclass(frozen=True)
class DecoderWeights(EndWeights[M]):
    """All weights of a target."""

    layers: Sequence[LayerWeights[M]]


class Layers(Sequence[LayerWeights[M]]):
    """A target's layers, each read from its file when it is used: a loop over them holds one at a time."""

    def __init__(self, count: int, read: Callable[[int], LayerWeights[M]]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> LayerWeights[M]: ...
    @overload
    def __getitem__(self, index: slice) -> list[LayerWeights[M]]: ...
    def __getitem__(self, index: int | slice) -> LayerWeights[M] | list[LayerWeights[M]]:
        numbers = range(self._count)[index]
        return (
            [self._read(number) for number in numbers] if isinstance(numbers, range) else self._read(numbers)
        )


def read_ends(source: TensorSource, config: DecoderConfig) -> EndWeights[Matrix]:
    """Embedding, final norm and lm_head, and nothing between them."""
    family = families.find(config.architecture)
    _check_ends(source, config)
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = source.matrix("model.embed_tokens.weight", vocab, hidden)
    norm = _read_norm(source, family, "model.norm.weight", hidden)
    # Other configs may leave out that they are tied, as Gemma's do.
    tied = config.tie_word_embeddings
    may_lack = (tied or bool(config.undecodable)) and "lm_head.weight" not in source
    lm_head = embedding if may_lack else source.matrix("lm_head.weight", vocab, hidden)
    if tied and lm_head is not embedding and not lm_head.equals(embedding):
        raise TargetError(
            f"config.json of {source.place} ties lm_head to the embedding, but the weights hold both and they differ: "
            "transformers 5 takes lm_head, vLLM and SGLang the embedding. If lm_head is right write "
            "tie_word_embeddings=false into config.json, else save the model without lm_head"
        )
    if tied:
        lm_head = embedding
    return EndWeights(embedding, norm, lm_head.scaled(config.logit_scale))


def check_ends(place: Path, config: DecoderConfig) -> None:
    """Raise a TargetError if no head can be trained for the target, before hours of work; reads names alone."""
    _check_ends(open_source(place, config, torch.bfloat16), config)


def _check_ends(source: TensorSource, config: DecoderConfig) -> None:
    lacking = [name for name in ("model.embed_tokens.weight", "model.norm.weight") if name not in source]
    odd = [name for name in ("model.norm.bias", "lm_head.bias") if name in source]
    if config.undecodable and (lacking or odd):
        what = " and ".join([f"has no {name}" for name in lacking] + [f"has {name}" for name in odd])
        raise TargetError(
            f"no head can be trained for {config.architecture}: that takes Llama's names for embedding and last norm, "
            f"an RMSNorm, and an lm_head without bias; this one {what}. Use another target"
        )


def read_weights(source: TensorSource, config: DecoderConfig) -> DecoderWeights[Matrix]:
    """All weights, fused, layers as they are used."""
    ends = read_ends(source, config)
    return DecoderWeights(ends.embedding, ends.norm, ends.lm_head, _layers(source, config))


def _layers(source: TensorSource, config: DecoderConfig) -> Layers[Matrix]:
    family = families.find(config.architecture)

    def read(index: int) -> LayerWeights[Matrix]:
        source.release()
        return _read_layer(source, config, family, index)

    return Layers(config.num_layers, read)


def load_ends(source: TensorSource, config: DecoderConfig) -> EndWeights[Tensor]:
    """`read_ends` as tensors of the source's dtype, on its device."""
    ends = read_ends(source, config)
    embedding = ends.embedding.dequantise(source.dtype, source.device)
    tied = ends.lm_head is ends.embedding
    lm_head = embedding if tied else ends.lm_head.dequantise(source.dtype, source.device)
    return EndWeights(embedding, ends.norm, lm_head)


def load_weights(
    source: TensorSource, config: DecoderConfig, ends: EndWeights[Tensor] | None = None
) -> DecoderWeights[Tensor]:
    """`read_weights` as tensors of the source's dtype, on its device. `ends`: loaded already."""
    ends, layers = ends or load_ends(source, config), _layers(source, config)

    def load(index: int) -> LayerWeights[Tensor]:
        w: LayerWeights[Any] = layers[index]
        matrices = {"qkv": w.qkv, "o": w.o, "gate_up": w.gate_up, "down": w.down}
        tensors = {name: m and m.dequantise(source.dtype, source.device) for name, m in matrices.items()}
        return replace(w, **tensors)

    return DecoderWeights(ends.embedding, ends.norm, ends.lm_head, Layers(len(layers), load))


def _read_norm(source: TensorSource, family: Family, name: str, size: int) -> Tensor:
    weight = source.read(name, size)
    return weight.float() + 1 if family.norm_adds_one else weight


def _read_layer(
    source: TensorSource, config: DecoderConfig, family: Family, index: int
) -> LayerWeights[Matrix]:
    prefix = f"model.layers.{index}"
    attention = f"{prefix}.self_attn"
    hidden, head, experts = config.hidden_size, config.head_dim, config.experts
    has_rope = index not in config.rope_free_layers
    interleaved = family.interleaved_rope and has_rope
    normed = config.qk_norm and (has_rope or family.qk_norm_weights)
    # Attention itself scales by head_dim ** -0.5.
    query_scale = 1.0 if config.query_scale is None else config.query_scale * head**0.5
    sizes = {"q": config.num_heads * head, "k": config.num_kv_heads * head, "v": config.num_kv_heads * head}

    # The order of rows in which dimension i of a head rotates with i + head_dim / 2.
    order = torch.arange(config.qkv_size)
    if interleaved:
        turned = sizes["q"] + sizes["k"]
        order[:turned] = rotate_half_order(order[:turned], head)

    def read_qkv() -> Matrix:
        if family.fused:
            qkv = source.matrix(f"{attention}.qkv_proj.weight", config.qkv_size, hidden)
        else:
            parts = [source.matrix(f"{attention}.{n}_proj.weight", rows, hidden) for n, rows in sizes.items()]
            qkv = Matrix.joined(parts)
        if interleaved:
            qkv = qkv.rows(order)
        if query_scale != 1.0 and not normed:
            queries, others = qkv.rows(slice(sizes["q"])), qkv.rows(slice(sizes["q"], None))
            qkv = Matrix.joined([queries.scaled(query_scale), others])
        return qkv

    def read_bias() -> Tensor:
        if family.fused:
            bias = source.read(f"{attention}.qkv_proj.bias", config.qkv_size)
        else:
            bias = torch.cat([source.read(f"{attention}.{n}_proj.bias", rows) for n, rows in sizes.items()])
        bias = bias[order.to(bias.device)]
        if query_scale != 1.0 and not normed:
            bias[: sizes["q"]] *= query_scale
        return bias

    def read_head_norm(name: str) -> Tensor | None:
        if not normed:
            return None
        if not family.qk_norm_weights:
            return input_norm.new_ones(head)
        weight = _read_norm(source, family, f"{attention}.{name}.weight", head)
        return rotate_half_order(weight, head) if interleaved else weight

    def read_norm(name: str) -> Tensor:
        return _read_norm(source, family, f"{prefix}.{name}.weight", hidden)

    input_norm, behind_attention = read_norm("input_layernorm"), read_norm("post_attention_layernorm")
    q_norm = read_head_norm("q_norm")
    gate_up, down = _read_mlp(source, config, family, index) or (None, None)
    routed = experts if experts and index in experts.layers else None
    return LayerWeights(
        input_norm=input_norm,
        qkv=read_qkv(),
        qkv_bias=read_bias() if config.qkv_bias else None,
        q_norm=None if q_norm is None else _scaled(q_norm, query_scale),
        k_norm=read_head_norm("k_norm"),
        o=source.matrix(f"{attention}.o_proj.weight", hidden, sizes["q"]).scaled(config.residual_scale),
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


def _read_mlp(
    source: TensorSource, config: DecoderConfig, family: Family, index: int
) -> tuple[Matrix, Matrix] | None:
    """The MLP every token passes: a dense layer's, or the shared expert; None if the layer has neither."""
    place = f"model.layers.{index}.mlp"
    size = config.intermediate_size
    if experts := config.experts:
        size = experts.shared_size if index in experts.layers else experts.dense_size
        place += ".shared_expert" if index in experts.layers else ""
    if not size:
        return None
    down = source.matrix(f"{place}.down_proj.weight", config.hidden_size, size).scaled(config.residual_scale)
    if family.fused:
        return source.matrix(f"{place}.gate_up_proj.weight", 2 * size, config.hidden_size), down
    parts = [source.matrix(f"{place}.{n}_proj.weight", size, config.hidden_size) for n in ("gate", "up")]
    return Matrix.joined(parts), down
