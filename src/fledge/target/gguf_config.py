"""A GGUF file's metadata as a folder of config.json, generation_config.json and the tokenizer's files."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from transformers import PreTrainedTokenizerFast

from fledge.base.errors import TargetError, first_line
from fledge.sources.gguf import open_gguf
from fledge.sources.gguf_header import GgufHeader
from fledge.sources.made_once import made_once
from fledge.target import families
from fledge.target.config import DecoderConfig
from fledge.target.families import Family
from fledge.target.gguf_tensors import GgufSource, head_dim, number, raw_rows
from fledge.target.rope import llama3_frequencies, plain_frequencies

_FORMAT = 5  # part of the folder's name: a change writes it again
# What scales RoPE further and isn't computed, with the value that changes nothing.
_UNKNOWN_SCALING = {"attn_factor": 1.0, "alpha": 0.0, "yarn_ext_factor": 1.0, "yarn_log_multiplier": 0.0}
# Llama 3.1 and later: GGUF holds their results alone, a factor for each pair of dimensions.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Pre-tokenizers that split text at every digit before anything else, which transformers doesn't read of a file.
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell")
_LOGITS = ("final_logit_softcapping", "logit_scale")  # what changes logits, for which heads can't be trained
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def described_folder(file: Path, cache: Path) -> Path:
    """The cached folder of a GGUF file, written if missing. Raises a TargetError as `write_folder` does."""
    header = open_gguf(file)
    folder = cache / "targets" / f"{file.stem}-{header.digest[:16]}-v{_FORMAT}"
    return made_once(folder, lambda new: write_folder(header, new))


def write_folder(header: GgufHeader, folder: Path) -> None:
    """Write the files. Raises a TargetError for a model whose file doesn't hold it whole, or whose text can't be read.

    Of a model that fledge doesn't decode, config.json has what a head needs to know.
    """
    family = families.find_gguf(header.architecture)
    config, generation = _config(_largest_layer(header), None) if family is None else _config(header, family)
    for name, fields in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(fields, indent=2), encoding="utf-8")
    decoder = DecoderConfig.from_folder(folder)
    if family is not None and not decoder.undecodable:
        GgufSource(header.file, family, torch.bfloat16).check(decoder)
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(header.file.parent, gguf_file=header.file.name)
    except (ImportError, ValueError, KeyError, IndexError, TypeError, OSError) as error:
        raise TargetError(
            f"can't read the tokenizer in {header.file} ({first_line(error)}): use the model's safetensors checkpoint"
        ) from error
    if header.metadata.get("tokenizer.ggml.pre") in _SINGLE_DIGITS:
        digits, rest = Digits(individual_digits=True), ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizers([digits, rest])
    if header.templates:  # transformers reads the default one alone
        tokenizer.chat_template = header.templates
    tokenizer.save_pretrained(folder)


def _config(header: GgufHeader, family: Family | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json, and generation_config.json; `family`: None for an architecture that fledge doesn't decode."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise TargetError(f"{header.file} has no tensor token_embd.weight: download it again")
    layers = number(header, "block_count")
    if layers > len(header.tensors):  # before a loop over billions
        raise TargetError(
            f"{header.file} has {layers} layers in its metadata, and fewer tensors: download it again"
        )
    tokens = {
        name: header.metadata.get(f"tokenizer.ggml.{name}")
        for name in (*_ENDS, "bos_token_id", "padding_token_id")
    }
    ends = [end for name in _ENDS if (end := tokens[name]) is not None]
    ids = {
        "bos_token_id": tokens["bos_token_id"],
        "eos_token_id": (ends[0] if len(set(ends)) == 1 else sorted(set(ends))) if ends else None,
        "pad_token_id": tokens["padding_token_id"],
    }
    size, heads = head_dim(header), number(header, "attention.head_count")
    if header.value("attention.value_length", size) != size:
        raise TargetError(
            f"{header.file} has values of another size than keys, which fledge doesn't decode: use another model"
        )
    config = {
        "vocab_size": embedding.shape[0],
        "hidden_size": number(header, "embedding_length"),
        "intermediate_size": number(header, "feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": number(header, "attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": number(header, "context_length"),
        "rms_norm_eps": number(header, "attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **ids,
    }
    if family is None:
        return {**config, **_undecoded(header, layers)}, ids
    assert family.gguf is not None
    config |= {
        "architectures": [family.architectures[0]],
        "model_type": family.gguf.model_types[header.architecture],
        "rope_parameters": gguf_rope(header),
        "partial_rotary_factor": number(header, "rope.dimension_count", size) / size,
    }
    return {**config, **family.gguf.fields(header, config)}, ids


def _undecoded(header: GgufHeader, layers: int) -> dict[str, Any]:
    """Fields of config.json for an architecture that is known by its name in GGUF files alone.

    Without model_type, by which transformers would look for names of its own.
    """
    logits = {name: header.value(name) for name in _LOGITS if header.value(name) is not None}
    return {
        "architectures": [header.architecture],
        "num_hidden_layers": layers - int(header.value("nextn_predict_layers", 0)),
        "rope_parameters": {"rope_type": "default", "rope_theta": number(header, "rope.freq_base", 10000.0)},
        **logits,
    }


def _largest_layer(header: GgufHeader) -> GgufHeader:
    """The header with one number where it has one for each layer, as those of hybrid models do."""
    other, own = copy.copy(header), f"{header.architecture}."
    other.metadata = {
        key: max(value) if key.startswith(own) and value and isinstance(value, list) else value
        for key, value in header.metadata.items()
    }
    return other


def gguf_rope(header: GgufHeader) -> dict[str, Any]:
    """RoPE's base and scaling as config.json has them."""
    theta = number(header, "rope.freq_base", 10000.0)
    named = {key: header.value(f"rope.scaling.{key}") for key in _UNKNOWN_SCALING}
    odd = [
        f"rope.scaling.{key}={named[key]}"
        for key, same in _UNKNOWN_SCALING.items()
        if named[key] not in (None, same)
    ]
    kind, factor = header.value("rope.scaling.type"), header.value("rope.scaling.factor")
    factor = factor or number(header, "rope.scale_linear", 1.0)
    parameters: dict[str, Any] = {"rope_type": kind or "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = header.value("rope.scaling.original_context_length") or header.value("context_length")
        beta = {"attention_factor": "attn_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}
        theirs = {ours: header.value(f"rope.scaling.yarn_{name}") for ours, name in beta.items()}
        parameters |= {"original_max_position_embeddings": original}
        parameters |= {ours: value for ours, value in theirs.items() if value is not None}
    elif kind == "none" or (kind in (None, "linear") and factor == 1.0):
        parameters = {"rope_type": "default", "rope_theta": theta}
    elif kind not in (None, "linear"):
        odd.append(f"rope.scaling.type={kind}")
    if "rope_freqs.weight" in header.tensors:
        if parameters["rope_type"] != "default":
            odd.append(f"rope.scaling.type={kind} together with rope_freqs.weight")
        parameters = _factors(header, theta)
    odd += [name for name in header.tensors if name.startswith("rope_factors")]
    if odd:
        raise TargetError(
            f"{header.file} scales its RoPE in a way that fledge doesn't compute ({', '.join(odd)}): use another model"
        )
    return parameters


def _factors(header: GgufHeader, theta: float) -> dict[str, Any]:
    """RoPE with a divisor for each frequency: Llama 3's scaling if they are what it gives, else as they are."""
    factors = raw_rows("rope_freqs.weight", header.tensors["rope_freqs.weight"]).rows.float()
    plain = plain_frequencies(head_dim(header), theta)
    llama3 = {"factor": _rounded(float(factors.max())), **_LLAMA3}
    if factors.shape == plain.shape and torch.allclose(
        plain / llama3_frequencies(plain, llama3), factors, rtol=1e-4
    ):
        return {"rope_type": "llama3", "rope_theta": theta, **llama3}
    numbers = [_rounded(factor) for factor in factors.tolist()]
    return {"rope_type": "frequency_factors", "rope_theta": theta, "factors": numbers}


def _rounded(number: float) -> float:
    """A float32 as it was written down."""
    return float(f"{number:.7g}")
