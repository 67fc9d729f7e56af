"""A head as one GGUF file, which llama.cpp drafts with: `llama-server -m TARGET -md HEAD --spec-type draft-eagle3`.

Its keys and tensors are those of llama.cpp's architecture `eagle3`, as its own converter writes them. What differs from
the other forms (`forms.py`): rows of q and k lie in the pairs that rotate together, d2t holds target ids instead of
differences, layers are named by the one whose input is read, and the target's tokenizer is in the file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType, quants
from gguf.vocab import SpecialVocab
from numpy.typing import NDArray
from torch import Tensor

from fledge.base.errors import HeadError, TargetError
from fledge.base.storage import local_path, write_atomic
from fledge.draft.description import SWITCHES, TENSORS
from fledge.draft.provenance import HeadParts
from fledge.heads.fields import LAYER_IDS
from fledge.heads.forms import canonical_tensors
from fledge.sources.gguf import is_gguf
from fledge.sources.gguf_header import GgufHeader, GgufTensor
from fledge.target.gguf_config import gguf_rope
from fledge.target.gguf_tensors import head_dim, number, raw_rows
from fledge.target.matrix import Matrix
from fledge.target.rope import llama3_frequencies, plain_frequencies, rotate_half_order

if TYPE_CHECKING:
    from fledge.target.target import Target

GgufType = Literal["bf16", "f16", "f32", "q8_0", "q4_0"]
TYPES: tuple[GgufType, ...] = get_args(GgufType)

_ARCHITECTURE, _D2T, _FACTORS = "eagle3", "d2t", "rope_freqs.weight"
_PARTS = {  # field of HeadWeights -> GGUF's names of its parts
    "embedding": ["token_embd"],
    "fc": ["fc"],
    "input_norm": ["blk.0.attn_norm"],
    "hidden_norm": ["blk.0.attn_norm_2"],
    "qkv": ["blk.0.attn_q", "blk.0.attn_k", "blk.0.attn_v"],
    "o": ["blk.0.attn_output"],
    "post_norm": ["blk.0.ffn_norm"],
    "gate_up": ["blk.0.ffn_gate", "blk.0.ffn_up"],
    "down": ["blk.0.ffn_down"],
    "norm": ["output_norm"],
    "lm_head": ["output"],
}
_NAMES = {  # canonical name -> GGUF's
    ours: f"{theirs}.weight"
    for field, names in _PARTS.items()
    for ours, theirs in zip(TENSORS[field].names, names, strict=True)
}
_ROTATED = TENSORS["qkv"].names[:2]
_READ = frozenset(  # keys of the architecture, besides RoPE's
    [
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "norm_before_fc",
        *(name for name, switch in SWITCHES.items() if "gguf" in switch.forms),
        "target_hidden_size",
        "target_layers",
        "vocab_size",
    ]
)
_KINDS = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
}


def write_gguf(head: HeadParts, url: str, target: Target, kind: GgufType) -> None:
    """Write the head's file with the tokenizer of `target`.

    Raises a HeadError for a head that llama.cpp doesn't compute.
    """
    _refuse(head)
    c = head.config
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "head.gguf"
        writer = GGUFWriter(file, _ARCHITECTURE)
        writer.add_type("model")
        writer.add_name(f"EAGLE-3 head for {head.metadata.target_name or target.name}")
        for name, value in _sizes(head, target).items():
            key = f"{_ARCHITECTURE}.{name}"
            if isinstance(value, list):
                writer.add_array(key, value)
            else:
                writer.add_key_value(key, value, _KINDS[type(value)])
        ftype = {"f32": "ALL_F32"}.get(kind, f"MOSTLY_{kind.upper()}")
        writer.add_file_type(LlamaFileType[ftype])
        writer.add_quantization_version(2)
        _add_tokenizer(writer, target)
        for name, tensor in canonical_tensors(head).items():
            data, stored = _encoded(_in_pairs(tensor, c.head_dim) if name in _ROTATED else tensor, kind)
            writer.add_tensor(_NAMES[name], data, raw_dtype=stored)
        d2t = head.weights.d2t.long()
        writer.add_tensor(_D2T, (d2t + torch.arange(len(d2t))).numpy(), raw_dtype=GGMLQuantizationType.I64)
        if factors := _rope_factors(head):
            writer.add_tensor(_FACTORS, np.array(factors, np.float32), raw_dtype=GGMLQuantizationType.F32)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        write_atomic(url, file.read_bytes())


def rounded(tensor: Tensor, kind: GgufType) -> Tensor:
    """A tensor's numbers as a file of that type has them, in float32."""
    data, stored = _encoded(tensor, kind)
    return torch.from_numpy(quants.dequantize(data, stored)).view(tensor.shape)


def read_gguf(url: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A head's file as the config.json and the tensors of the `sglang` form.

    Tensors are bf16 if that loses nothing, else float32. Raises a HeadError for a file that is no head or isn't whole.
    """
    path = local_path(url)
    if path is None:
        raise HeadError(f"{url}: heads in GGUF are read of local files; copy it here")
    try:
        header = GgufHeader(path)
        if header.architecture != _ARCHITECTURE:
            raise HeadError(
                f"{url} holds a model of the architecture {header.architecture!r}, not an EAGLE-3 draft head: "
                "name a head's file"
            )
        return _config(header), _tensors(header)
    except TargetError as error:
        raise HeadError(str(error)) from error


def _config(header: GgufHeader) -> dict[str, Any]:
    heads, size = number(header, "attention.head_count"), head_dim(header)
    if number(header, "block_count", 1) != 1 or header.value("attention.value_length", size) != size:
        raise HeadError(f"{header.file} has another structure than EAGLE-3's one layer: use another head")
    unknown = [
        name
        for key, value in header.metadata.items()
        if (name := key.removeprefix(f"{_ARCHITECTURE}.")) not in (key, *_READ)
        and not name.startswith("rope.")
        and value
    ]
    if unknown:
        raise HeadError(
            f"{header.file} uses {', '.join(unknown)}, which isn't supported: use a plain EAGLE-3 head"
        )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": number(header, "embedding_length"),
        "intermediate_size": number(header, "feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": number(header, "attention.head_count_kv", heads),
        "head_dim": size,
        "rms_norm_eps": number(header, "attention.layer_norm_rms_epsilon"),
        "rope_parameters": gguf_rope(header),
        "partial_rotary_factor": number(header, "rope.dimension_count", size) / size,
        "max_position_embeddings": number(header, "context_length"),
        "vocab_size": number(header, "vocab_size"),
        "target_hidden_size": number(header, "target_hidden_size"),
        **{name: bool(header.value(name)) for name, switch in SWITCHES.items() if "gguf" in switch.forms},
        "norm_before_fc": bool(header.value("norm_before_fc")),
        "eagle_config": {LAYER_IDS: [int(layer) - 1 for layer in header.value("target_layers") or ()]},
    }


def _tensors(header: GgufHeader) -> dict[str, Tensor]:
    canonical = {theirs: ours for ours, theirs in _NAMES.items()}
    found: dict[str, Tensor] = {}
    for theirs, stored in header.tensors.items():
        name = canonical.get(theirs, theirs)
        if theirs == _FACTORS:  # a part of the config
            continue
        if theirs == _D2T:
            found[_D2T] = _offsets(header, stored)
            continue
        part = raw_rows(theirs, stored)
        tensor = part.rows.float()
        if tensor.dim() == 2:
            tensor = Matrix((part,), stored.shape[-1]).dequantise(torch.float32, "cpu")
        if name in _ROTATED:
            tensor = rotate_half_order(tensor, head_dim(header))
        found[name] = tensor.clone()
    numbers = [tensor for tensor in found.values() if tensor.is_floating_point()]
    if all(torch.equal(tensor.bfloat16().float(), tensor) for tensor in numbers):
        return {n: t.bfloat16() if t.is_floating_point() else t for n, t in found.items()}
    return found


def _offsets(header: GgufHeader, stored: GgufTensor) -> Tensor:
    """d2t as the other forms have it."""
    raw = stored.bytes[stored.offset : stored.offset + 8 * stored.shape[0]]
    if stored.type != GGMLQuantizationType.I64 or len(raw) != 8 * stored.shape[0]:
        raise HeadError(f"{header.file} doesn't hold d2t in I64, or ends within it: get the head again")
    ids = torch.from_numpy(raw.copy()).view(torch.int64)
    return ids - torch.arange(len(ids))


def _refuse(head: HeadParts) -> None:
    """Raise a HeadError for what llama.cpp's eagle3 doesn't compute."""
    c = head.config
    named = [name for name, forms in c.engines.items() if "gguf" not in forms]
    kind = (c.rope_scaling or {}).get("rope_type", "default")
    if kind not in ("default", "linear", "llama3", "frequency_factors"):
        named.append(f"RoPE scaling of the type {kind}")
    if named:
        raise HeadError(
            f"this head uses {' and '.join(named)}, which llama.cpp's EAGLE-3 doesn't compute: train one without"
        )


def _sizes(head: HeadParts, target: Target) -> dict[str, Any]:
    """The architecture's own keys."""
    c, m, scaling = head.config, head.metadata, head.config.rope_scaling or {}
    layers = m.feature_layers or target.config.feature_layers
    linear = {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.get("factor", 1.0))}
    return {
        "target_layers": [layer + 1 for layer in layers],
        "target_hidden_size": c.target_hidden_size,
        **{name: getattr(c, name) for name, switch in SWITCHES.items() if "gguf" in switch.forms},
        "norm_before_fc": False,
        "block_count": 1,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_heads,
        "attention.head_count_kv": c.num_kv_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": float(c.rms_norm_eps),
        "rope.freq_base": float(c.rope_theta),
        "rope.dimension_count": c.head_dim,
        "vocab_size": c.vocab_size,
        **(linear if scaling.get("rope_type") == "linear" else {}),
    }


def _rope_factors(head: HeadParts) -> list[float]:
    """Divisors of RoPE's frequencies; empty: there are none."""
    c, scaling = head.config, head.config.rope_scaling or {}
    if scaling.get("rope_type") == "frequency_factors":
        return list(scaling["factors"])
    if scaling.get("rope_type") != "llama3":
        return []
    plain = plain_frequencies(c.head_dim, c.rope_theta)
    return [float(factor) for factor in plain / llama3_frequencies(plain, scaling)]


def _encoded(tensor: Tensor, kind: GgufType) -> tuple[NDArray[Any], GGMLQuantizationType]:
    """A tensor's data and type: as llama.cpp keeps them, norms in F32, and rows that are no whole blocks in F16."""
    stored = GGMLQuantizationType.F32 if tensor.dim() == 1 else GGMLQuantizationType[kind.upper()]
    if kind.startswith("q") and tensor.shape[-1] % 32:
        stored = GGMLQuantizationType.F16
    return quants.quantize(tensor.float().numpy(), stored), stored


def _in_pairs(rows: Tensor, size: int) -> Tensor:
    """Rows of q or k in which dimension i lies beside i + size / 2, which it rotates with."""
    order = torch.arange(len(rows)).view(-1, 2, size // 2).transpose(1, 2)
    return rows[order.flatten()]


def copy_tokenizer(file: Path, writer: GGUFWriter) -> None:
    """Add all that a model's file says of its tokenizer, chat template included."""
    for field in GGUFReader(file).fields.values():
        if field.name.startswith("tokenizer."):
            kind, *of = field.types
            writer.add_key_value(field.name, field.contents(), kind, of[0] if of else None)


def _add_tokenizer(writer: GGUFWriter, target: Target) -> None:
    """The target's tokenizer and chat template: as its GGUF file has them, or of its folder."""
    if is_gguf(target.place):
        copy_tokenizer(target.place, writer)
        return
    backend = target.tokenizer.backend_tokenizer
    if type(backend.model).__name__ != "BPE" or "ByteLevel" not in str(backend.decoder):
        raise HeadError(
            f"the tokenizer of {target.name} is no byte-level BPE, which alone is written of a folder: "
            "name the target's GGUF file with --target"
        )
    special = set(target.tokenizer.all_special_ids)
    added = target.tokenizer.added_tokens_decoder
    tokens, kinds = [], []
    for i in range(target.config.vocab_size):
        token = target.tokenizer.convert_ids_to_tokens(i) if i < len(target.tokenizer) else None
        tokens.append(f"[PAD{i}]" if token is None else token)
        control = i in special or (i in added and added[i].special)
        kinds.append(5 if token is None else 3 if control else 4 if i in added else 1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")  # how text is split: a draft head splits none
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    SpecialVocab(target.place, load_merges=True, n_vocab=len(tokens)).add_to_gguf(writer)
