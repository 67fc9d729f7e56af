"""A target's weights, read from safetensors and fused: one matrix for Q, K and V, one for gate and up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.sources.files import weight_files
from fledge.target.config import DecoderConfig
from fledge.target.experts import ExpertsConfig, ExpertWeights
from fledge.target.mxfp4 import dequantise


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

    layers: list[LayerWeights]


# Architectures whose norms multiply by 1 + weight.
_ONE_PLUS = ("GemmaFor", "Gemma2For", "Gemma3For", "MiniMaxM3", "Qwen3Next", "Qwen3_5", "Qwen4Exp", "Step3p7")


def open_weights(file: Path) -> Any:
    """A safetensors file, whose tensors are read one by one. Raises a TargetError for a truncated or foreign one."""
    try:
        return safe_open(str(file), framework="pt")
    except Exception as error:  # safetensors has a type of its own
        raise TargetError(f"{file} isn't a whole safetensors file ({error}): download it again") from error


def load_ends(
    folder: Path, config: DecoderConfig, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> EndWeights:
    """Read embedding, final norm and lm_head of an HF folder, cast to `dtype`, and nothing between them."""
    source = _TensorSource(folder, dtype, torch.device(device))
    _check_ends(source, config)
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = source.read("model.embed_tokens.weight", vocab, hidden)
    norm = _read_norm(source, config, "model.norm.weight", hidden)
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
    _check_ends(_TensorSource(folder, torch.bfloat16, torch.device("cpu")), config)


def _check_ends(source: _TensorSource, config: DecoderConfig) -> None:
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
    """Read and fuse the weights of an HF folder, cast to `dtype`; `ends`: those that are read already."""
    ends = ends or load_ends(folder, config, dtype, device)
    source = _TensorSource(folder, dtype, torch.device(device))
    layers = [_read_layer(source, config, index) for index in range(config.num_layers)]
    return DecoderWeights(ends.embedding, ends.norm, ends.lm_head, layers)


class _TensorSource:
    """Tensors by the name they have in a text model, whichever shard they are in, checked for their shape."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device) -> None:
        files = weight_files(folder)
        if not files:
            raise TargetError(
                f"{folder} lacks some or all safetensors weights: download or save the model again"
            )
        self._folder, self._dtype, self._device = folder, dtype, device
        self._tensors: dict[str, tuple[Any, str]] = {}
        for file in files:
            handle = open_weights(file)
            names: list[str] = list(handle.keys())
            for name in names:  # in a multimodal checkpoint the text model has a prefix
                plain = name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)
                self._tensors[plain] = handle, name

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def read(self, name: str, *shape: int) -> Tensor:
        tensor = self.read_stored(name, *shape)
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise TargetError(
                f"{name} in {self._folder} is quantised, {str(tensor.dtype).removeprefix('torch.')} without its scale: "
                "use the checkpoint in bfloat16"
            )
        return tensor.to(device=self._device, dtype=self._dtype)

    def read_mxfp4(self, name: str, count: int, rows: int, columns: int) -> Tensor:
        """Matrices [count, rows, columns], one at a time: on the way each takes a few times the memory."""
        out = torch.empty(count, rows, columns, dtype=self._dtype, device=self._device)
        blocks = self.read_stored(f"{name}_blocks", count, rows, columns // 32, 16)
        scales = self.read_stored(f"{name}_scales", count, rows, columns // 32)
        if columns % 32 or blocks.dtype != torch.uint8 or scales.dtype != torch.uint8:
            raise TargetError(
                f"{name} in {self._folder} isn't in MXFP4 as OpenAI writes it, bytes of blocks of 32: use the "
                "checkpoint in bfloat16"
            )
        for matrix in range(count):
            out[matrix] = dequantise(blocks[matrix].to(self._device), scales[matrix].to(self._device))
        return out

    def read_stored(self, name: str, *shape: int) -> Tensor:
        """The tensor as the file holds it, checked for its shape."""
        if name not in self._tensors:
            raise TargetError(f"{self._folder} has no tensor {name}: download or save the model again")
        handle, stored_name = self._tensors[name]
        tensor: Tensor = handle.get_tensor(stored_name)
        if tuple(tensor.shape) != shape:
            raise TargetError(
                f"{name} in {self._folder} has shape {tuple(tensor.shape)}, but config.json says {shape}: "
                "download or save the model again"
            )
        return tensor


def _read_norm(source: _TensorSource, config: DecoderConfig, name: str, size: int) -> Tensor:
    weight = source.read(name, size)
    return weight.float() + 1 if config.architecture.startswith(_ONE_PLUS) else weight


def _read_layer(source: _TensorSource, config: DecoderConfig, index: int) -> LayerWeights:
    prefix = f"model.layers.{index}"
    attention = f"{prefix}.self_attn"
    hidden, head = config.hidden_size, config.head_dim
    llama4 = config.architecture.startswith("Llama4")
    has_rope = index not in config.rope_free_layers
    sizes = {"q": config.num_heads * head, "k": config.num_kv_heads * head, "v": config.num_kv_heads * head}

    def read_qkv(kind: str, *columns: int) -> Tensor:
        if config.architecture == "Phi3ForCausalLM":
            return source.read(f"{attention}.qkv_proj.{kind}", config.qkv_size, *columns)
        parts = {n: source.read(f"{attention}.{n}_proj.{kind}", rows, *columns) for n, rows in sizes.items()}
        if llama4 and has_rope:
            parts |= {n: _rotate_half_order(parts[n], head) for n in ("q", "k")}
        return torch.cat(list(parts.values()))

    def read_head_norm(name: str) -> Tensor | None:
        if llama4:  # it has no weights, and only layers with RoPE have it
            return input_norm.new_ones(head) if config.qk_norm and has_rope else None
        return _read_norm(source, config, f"{attention}.{name}.weight", head) if config.qk_norm else None

    def read_norm(name: str) -> Tensor:
        return _read_norm(source, config, f"{prefix}.{name}.weight", hidden)

    input_norm, behind_attention = read_norm("input_layernorm"), read_norm("post_attention_layernorm")
    qkv, q_norm = read_qkv("weight", hidden), read_head_norm("q_norm")
    if config.query_scale is not None:
        scale = config.query_scale * head**0.5  # attention itself scales by head_dim ** -0.5
        if q_norm is not None:
            q_norm = q_norm * scale
        else:
            qkv[: sizes["q"]] *= scale
    gate_up, down = _read_mlp(source, config, prefix, index) or (None, None)
    return LayerWeights(
        input_norm=input_norm,
        qkv=qkv,
        qkv_bias=read_qkv("bias") if config.qkv_bias else None,
        q_norm=q_norm,
        k_norm=read_head_norm("k_norm"),
        o=_scaled(source.read(f"{attention}.o_proj.weight", hidden, sizes["q"]), config.residual_scale),
        post_norm=read_norm("pre_feedforward_layernorm") if config.out_norms else behind_attention,
        gate_up=gate_up,
        down=down,
        experts=_read_experts(source, config, prefix, index),
        attention_out_norm=behind_attention if config.out_norms else None,
        mlp_out_norm=read_norm("post_feedforward_layernorm") if config.out_norms else None,
        o_bias=source.read(f"{attention}.o_proj.bias", hidden) if config.o_bias else None,
        sinks=source.read(f"{attention}.sinks", config.num_heads) if config.sinks else None,
    )


def _scaled(weight: Tensor, scale: float) -> Tensor:
    return weight if scale == 1.0 else weight * scale


def _rotate_half_order(weight: Tensor, head_dim: int) -> Tensor:
    """Rows of q or k that rotate in neighbouring pairs, reordered so that dimension i rotates with i + head_dim / 2."""
    heads = weight.view(-1, head_dim // 2, 2, weight.shape[-1])
    return heads.transpose(1, 2).reshape(weight.shape)


def _read_mlp(
    source: _TensorSource, config: DecoderConfig, prefix: str, index: int
) -> tuple[Tensor, Tensor] | None:
    """The MLP every token passes: a dense layer's, or the shared expert; None if the layer has neither."""
    place = f"{prefix}.feed_forward" if config.architecture.startswith("Llama4") else f"{prefix}.mlp"
    size = config.intermediate_size
    if experts := config.experts:
        size = experts.shared_size if index in experts.layers else experts.dense_size
        place += ".shared_expert" if index in experts.layers else ""
    if not size:
        return None
    down = _scaled(source.read(f"{place}.down_proj.weight", config.hidden_size, size), config.residual_scale)
    if config.architecture == "Phi3ForCausalLM":
        return source.read(f"{place}.gate_up_proj.weight", 2 * size, config.hidden_size), down
    gate, up = (source.read(f"{place}.{n}_proj.weight", size, config.hidden_size) for n in ("gate", "up"))
    return torch.cat((gate, up)), down


def _read_experts(
    source: _TensorSource, config: DecoderConfig, prefix: str, index: int
) -> ExpertWeights | None:
    experts, hidden = config.experts, config.hidden_size
    if experts is None or index not in experts.layers:
        return None
    count, inner = experts.count, experts.intermediate_size
    if config.architecture.startswith("Llama4"):  # all experts in one tensor, its columns the outputs
        place = f"{prefix}.feed_forward"
        return ExpertWeights(
            router=source.read(f"{place}.router.weight", count, hidden),
            gate_up=source.read(f"{place}.experts.gate_up_proj", count, hidden, 2 * inner).mT.contiguous(),
            down=source.read(f"{place}.experts.down_proj", count, inner, hidden).mT.contiguous(),
        )
    if config.architecture == "GptOssForCausalLM":
        return _read_gpt_oss_experts(source, f"{prefix}.mlp", experts, hidden)
    mixtral = config.architecture == "MixtralForCausalLM"
    place = f"{prefix}.block_sparse_moe" if mixtral else f"{prefix}.mlp"
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    router = source.read(f"{place}.gate.weight", count, hidden)
    gate_ups, downs = router.new_empty(count, 2 * inner, hidden), router.new_empty(count, hidden, inner)
    for expert in range(count):
        own = f"{place}.experts.{expert}"
        gate_ups[expert, :inner] = source.read(f"{own}.{gate}.weight", inner, hidden)
        gate_ups[expert, inner:] = source.read(f"{own}.{up}.weight", inner, hidden)
        downs[expert] = source.read(f"{own}.{down}.weight", hidden, inner)
    return ExpertWeights(router, gate_ups, downs)


def _read_gpt_oss_experts(
    source: _TensorSource, place: str, config: ExpertsConfig, hidden: int
) -> ExpertWeights:
    """All experts in one tensor: in MXFP4, or with the outputs as its columns. Each gate has its `up` beside it."""
    count, inner = config.count, config.intermediate_size

    def read_matrices(name: str, outputs: int, inputs: int) -> Tensor:
        if f"{place}.experts.{name}_blocks" in source:
            return source.read_mxfp4(f"{place}.experts.{name}", count, outputs, inputs)
        return source.read(f"{place}.experts.{name}", count, inputs, outputs).mT

    def gates_first(pairs: Tensor) -> Tensor:  # [E, 2 * I, ...]
        return torch.cat((pairs[:, 0::2], pairs[:, 1::2]), dim=1)

    return ExpertWeights(
        router=source.read(f"{place}.router.weight", count, hidden),
        gate_up=gates_first(read_matrices("gate_up_proj", 2 * inner, hidden)),
        down=read_matrices("down_proj", hidden, inner).contiguous(),
        router_bias=source.read(f"{place}.router.bias", count),
        gate_up_bias=gates_first(source.read(f"{place}.experts.gate_up_proj_bias", count, 2 * inner)),
        down_bias=source.read(f"{place}.experts.down_proj_bias", count, hidden),
    )
