"""A small model with random weights, as transformers builds it for a config.json: what a family is tried on.

Sizes, layers and experts are fewer, and windows and original contexts shorter, so that a text of 150 tokens goes beyond
them. All else stays as the config has it. No weight is a constant: a norm of ones, or a bias of zeros, would agree
with a decoder that leaves it out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fledge.base.errors import TargetError, first_line
from fledge.native.abi import MOST_NODES
from fledge.target.families import Family

_LAYERS = 8  # three feature layers and the usual patterns of windows
_SIZES = {  # by Llama's names; the head's size and the hidden size are below
    "vocab_size": 512,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "intermediate_size_mlp": 160,
    "moe_intermediate_size": 64,
}
_MOST = {  # of these the config may have fewer
    "num_local_experts": 5,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": MOST_NODES,
    "original_max_position_embeddings": MOST_NODES,
}
_HEAD = 32  # what the CPU kernels take


def save_small_model(folder: Path, architecture: str, family: Family, place: Path) -> None:
    """Save one in `place` for the config.json in `folder`. Raises a TargetError if transformers can't build it."""
    from transformers import AutoConfig, AutoModelForCausalLM  # a moment to import

    try:
        whole = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        text = whole.get_text_config(decoder=True)
        config = type(text).from_dict(_reduced(text.to_dict(), family))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    _randomise(parameter)
    except Exception as error:  # its validation has types of its own
        raise TargetError(
            f"transformers can't build a small model for {folder / 'config.json'} ({first_line(error)}): compare the "
            "family with the model's own code, as docs/extend.md says"
        ) from error
    model.to(torch.bfloat16).save_pretrained(place)
    path = place / "config.json"  # names the class, which for a multimodal architecture is its text model's
    saved = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(saved | {"architectures": [architecture]}), encoding="utf-8")


def _randomise(parameter: torch.Tensor) -> None:
    noise = torch.randn_like(parameter)
    if parameter.ndim > 1:
        parameter.copy_(noise / parameter.shape[-1] ** 0.5)
    else:  # norms and biases, around the constant they start as
        parameter.add_(noise * 0.1)


def _reduced(raw: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """The config with small sizes; under its own names, of which `family` knows those for Llama's fields."""
    small = {name: value for name, value in raw.items() if name not in ("quantization_config", "dtype")}
    layers, heads, hidden = (
        int(raw[family.config_name(name)])
        for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    kv_heads, head = raw.get(family.config_name("num_key_value_heads")) or heads, raw.get("head_dim")
    filled = (head or hidden // heads) * heads == hidden  # some architectures have it no other way
    sizes = _SIZES | {
        "hidden_size": 4 * _HEAD if filled else 2 * _HEAD,
        "num_key_value_heads": 4 if kv_heads == heads else min(kv_heads, 2),
        "head_dim": _HEAD,
    }
    for name, size in sizes.items():
        if small.get(own := family.config_name(name)):
            small[own] = size
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if small.get(name) is not None:
            small[name] = 0
    for name, value in small.items():
        if isinstance(value, list) and len(value) == layers:  # one entry for each layer
            small[name] = [value[layer % layers] for layer in range(_LAYERS)]
        elif isinstance(value, list) and name.endswith("_layers"):  # numbers of layers
            small[name] = [layer for layer in value if layer < _LAYERS]
    return _limited(small)


def _limited(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The same without numbers above `_MOST`, RoPE's parameters with them."""
    fields: dict[str, Any] = {}
    for name, value in raw.items():
        if isinstance(value, Mapping):
            fields[name] = _limited(value)
        else:
            fields[name] = min(value, _MOST[name]) if name in _MOST and value else value
    return fields
