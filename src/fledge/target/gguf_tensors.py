"""Tensors of GGUF files, mapped and not copied, by Llama's names and in the order of Hugging Face's checkpoints."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, LlamaFileType
from gguf.tensor_mapping import TensorNameMap
from torch import Tensor

from fledge.base.errors import TargetError
from fledge.sources.gguf import open_gguf
from fledge.sources.gguf_header import GgufHeader, GgufTensor
from fledge.target.blocks import BLOCKS, FLOATS, packed_size
from fledge.target.config import DecoderConfig
from fledge.target.families import Family
from fledge.target.matrix import Matrix, Part, Quantization
from fledge.target.rope import rotate_half_order
from fledge.target.tensors import TensorSource

_ENDS = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)(\..*)")
# RoPE's, which become a part of config.json.
_ROPE = ("rope_freqs.weight",)


def raw_rows(name: str, tensor: GgufTensor) -> Part:
    """A tensor as its file holds it: of a float type, or bytes [..., rows, bytes of a row].

    Raises a TargetError for other types, and where the file ends too early.
    """
    known = {kind.value: kind.name for kind in GGMLQuantizationType}
    kind, columns = known.get(tensor.type, f"type {tensor.type}"), tensor.shape[-1]
    if kind in FLOATS:
        size = columns * FLOATS[kind].itemsize
    elif kind in BLOCKS and columns % BLOCKS[kind].weights == 0:
        size = columns // BLOCKS[kind].weights * BLOCKS[kind].size
    elif kind in BLOCKS:
        raise TargetError(
            f"{name} in {tensor.file} has {columns} columns, no whole blocks: download it again"
        )
    else:
        raise TargetError(
            f"{name} in {tensor.file} is in {kind}, which fledge doesn't read: use a file in one of "
            f"{', '.join([*FLOATS, *BLOCKS])}"
        )
    stop = tensor.offset + math.prod(tensor.shape[:-1]) * size
    if stop > len(tensor.bytes):
        raise TargetError(f"{tensor.file} isn't a whole GGUF file, it ends within {name}: download it again")
    raw = torch.from_numpy(tensor.bytes[tensor.offset : stop]).view(*tensor.shape[:-1], size)
    return Part(kind, raw.view(FLOATS[kind]) if kind in FLOATS else raw)


class GgufSource(TensorSource):
    """Tensors of a GGUF file and its further parts."""

    def __init__(
        self,
        file: Path,
        family: Family,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        quantization: Quantization | None = None,
    ) -> None:
        super().__init__(file, family.tensor_names, dtype, device, quantization)
        self._family = family
        self.header = open_gguf(file)

    @cached_property
    def _map(self) -> TensorNameMap:
        architectures = {name: number for number, name in MODEL_ARCH_NAMES.items()}
        if self.header.architecture not in architectures:
            raise TargetError(
                f"the installed gguf doesn't know {self.header.architecture}, as {self.place} is: pip install -U gguf"
            )
        return TensorNameMap(architectures[self.header.architecture], int(number(self.header, "block_count")))

    def own_name(self, name: str) -> str:
        stem, _, kind = super().own_name(name).rpartition(".")
        own = f"{self._map.get_name(stem)}.{kind}"
        if stem == "model.norm" and own not in self.header.tensors:
            return f"token_embd_norm.{kind}"  # the name of LFM2's last norm
        return own

    def __contains__(self, name: str) -> bool:
        return self.own_name(name) in self.header.tensors

    def read(self, name: str, *shape: int) -> Tensor:
        if len(shape) > 1:
            return self._matrix(name, *shape).dequantise(self.dtype, self.device)
        format, tensor, _ = self._stored(name, *shape)
        if format not in FLOATS:
            raise TargetError(f"{self.own_name(name)} in {self.place} is quantised: use another file")
        if self._family.norm_adds_one and name.endswith("norm.weight"):
            tensor = tensor.float() - 1  # the converter has added it
        return self._in_order(name, tensor).to(device=self.device, dtype=self.dtype)

    def _matrix(self, name: str, rows: int, columns: int) -> Matrix:
        part = self._stored(name, rows, columns)
        return Matrix((part._replace(rows=self._in_order(name, part.rows)),), columns)

    def _stored(self, name: str, *shape: int) -> Part:
        """The tensor as the file holds it, checked for its shape; of stacked experts, one."""
        expert = _EXPERT.fullmatch(name)
        own_name = self.own_name(f"{expert[1]}{expert[3]}" if expert else name)
        tensor = self.header.tensors.get(own_name)
        if tensor is None:
            raise TargetError(f"{self.place} has no tensor {own_name}: download it again")
        stored = tensor.shape[1:] if expert else tensor.shape
        if stored != shape:
            raise TargetError(
                f"{own_name} in {self.place} has shape {stored}, but the file's metadata says {shape}: download it "
                "again"
            )
        part = raw_rows(own_name, tensor)
        return part._replace(rows=part.rows[int(expert[2])]) if expert else part

    def _in_order(self, name: str, rows: Tensor) -> Tensor:
        """Rows of q and k so that dimension i rotates with i + head_dim / 2, where they are stored in pairs."""
        gguf = self._family.gguf
        if gguf is None or not gguf.interleaved or not name.rpartition(".")[0].endswith(("q_proj", "k_proj")):
            return rows
        return rotate_half_order(rows, head_dim(self.header))

    def packed_bytes(self, weights: int, lm_head: int) -> float:
        if self._quantization is not None:
            return super().packed_bytes(weights, lm_head)
        tensors = self.header.tensors.items()
        return sum(packed_size(raw_rows(name, t).format) * math.prod(t.shape) for name, t in tensors)

    def release(self) -> None:
        self.header.release()

    def check(self, config: DecoderConfig) -> None:
        """Raise a TargetError unless the file has all tensors of such a target and no others, each readable."""
        for name, tensor in self.header.tensors.items():
            raw_rows(name, tensor)
        wanted = {self.own_name(name) for name in tensor_names(config, self._family)}
        optional = {self.own_name("lm_head.weight"), *_ROPE}
        lacking, odd = wanted - optional - set(self.header.tensors), set(self.header.tensors) - wanted
        if lacking:
            raise TargetError(f"{self.place} has no tensor {min(lacking)}: download it again")
        if odd - optional:
            raise TargetError(
                f"{self.place} holds {min(odd - optional)}, which {config.architecture} as fledge decodes it doesn't "
                "have: use the model's safetensors checkpoint"
            )


def quantization_name(header: GgufHeader) -> str | None:
    """The form of most matrices, such as Q4_K_M, as the file itself names it; None for plain numbers."""
    known = {kind.value: kind.name.partition("_")[2] for kind in LlamaFileType}
    name = known.get(header.metadata.get("general.file_type"))
    if not name:  # not every writer says it
        sizes: Counter[str] = Counter()
        for key, tensor in header.tensors.items():
            sizes[raw_rows(key, tensor).format] += math.prod(tensor.shape)
        name = sizes.most_common(1)[0][0]
    return None if name in FLOATS else name


def head_dim(header: GgufHeader) -> int:
    """Dimensions of an attention head."""
    usual = number(header, "embedding_length") // number(header, "attention.head_count")
    return int(number(header, "attention.key_length", usual))


def number(header: GgufHeader, name: str, default: float | None = None) -> Any:
    """A number in the metadata, the same for all layers. Raises a TargetError if it isn't one and positive."""
    found = header.value(name, default)
    if isinstance(found, list) and len(set(found)) == 1:  # one for each layer
        found = found[0]
    if not isinstance(found, int | float) or not found > 0:
        raise TargetError(
            f"{header.file} has {name}={found!r} in its metadata, not one positive number: use the model's safetensors "
            "checkpoint"
        )
    return found


def tensor_names(config: DecoderConfig, family: Family) -> Iterator[str]:
    """Llama's names of all tensors of a target; of its experts' matrices, each layer's stack."""
    yield from _ENDS
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config.out_norms:
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    if config.qk_norm:
        norms += ["self_attn.q_norm", "self_attn.k_norm"]
    qkv = ["qkv_proj"] if family.fused else ["q_proj", "k_proj", "v_proj"]
    dense = ["gate_up_proj"] if family.fused else ["gate_proj", "up_proj"]
    for layer in range(config.num_layers):
        routed = config.experts is not None and layer in config.experts.layers
        experts = [f"experts.{name}" for name in dense]
        mlp = ["gate", *experts, "experts.down_proj"] if routed else [*dense, "down_proj"]
        own = [*norms, *(f"self_attn.{name}" for name in (*qkv, "o_proj")), *(f"mlp.{name}" for name in mlp)]
        yield from (f"model.layers.{layer}.{name}.weight" for name in own)
        if config.qkv_bias:
            yield from (f"model.layers.{layer}.self_attn.{name}.bias" for name in qkv)
