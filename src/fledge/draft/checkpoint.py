"""Head files: config.json beside model.safetensors, written as SGLang and vLLM load them, read in every known form.

form                      told by                          differences undone here
SGLang, EAGLE, SpecForge  LlamaForCausalLMEagle3           none: `midlayer.*`, flat config
vLLM                      Eagle3LlamaForCausalLM           `layers.0.*`, `model.` prefix
speculators               speculators_model_type           nested `transformer_layer_config`, `layers.0.*`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from fledge.draft.config import HeadConfig, HeadMetadata
from fledge.draft.head import Head, HeadWeights
from fledge.errors import HeadError, StorageError
from fledge.storage import exists, join, read_bytes, read_json, write_atomic, write_json

CONFIG_NAME, WEIGHTS_NAME = "config.json", "model.safetensors"
_LAYER = "midlayer"
_QKV = ("q_proj", "k_proj", "v_proj")
_GATE_UP = ("gate_proj", "up_proj")
_PLAIN = {  # field -> tensor name, for tensors stored as they are
    "fc": "fc.weight",
    "hidden_norm": f"{_LAYER}.hidden_norm.weight",
    "input_norm": f"{_LAYER}.input_layernorm.weight",
    "o": f"{_LAYER}.self_attn.o_proj.weight",
    "post_norm": f"{_LAYER}.post_attention_layernorm.weight",
    "down": f"{_LAYER}.mlp.down_proj.weight",
    "norm": "norm.weight",
    "lm_head": "lm_head.weight",
}


def write_head(head: Head, url: str) -> None:
    """Write a head's folder; the weights go first, so that a folder with a config.json is whole."""
    tensors = {name: t.to(torch.bfloat16).contiguous() for name, t in _to_tensors(head).items()}
    tensors["d2t"] = head.weights.d2t.long().contiguous()
    tensors["t2d"] = head.vocabulary.t2d
    write_atomic(join(url, WEIGHTS_NAME), safetensors.torch.save(tensors, metadata={"format": "pt"}))
    write_json(join(url, CONFIG_NAME), _to_config(head))


def read_head(url: str) -> Head:
    """Read a head's folder."""
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        if not exists(join(url, name)):
            raise HeadError(f"{url} is no draft head, {name} is missing: name a folder with a trained head")
    try:
        raw = read_json(join(url, CONFIG_NAME))
        tensors = safetensors.torch.load(read_bytes(join(url, WEIGHTS_NAME)))
    except StorageError as error:
        raise HeadError(f"can't read the head in {url}: {error}") from error
    except Exception as error:  # safetensors raises its own type for a truncated or foreign file
        raise HeadError(
            f"{join(url, WEIGHTS_NAME)} isn't a whole safetensors file ({error}): get it again"
        ) from error
    named = {_canonical_name(name): tensor for name, tensor in tensors.items()}
    flat = _flat_config(raw, url)
    weights = _to_weights(named, flat, url)
    return Head(_to_head_config(flat, weights, url), weights, _to_metadata(raw))


def _to_tensors(head: Head) -> dict[str, Tensor]:
    w, c = head.weights, head.config
    tensors = {name: getattr(w, field) for field, name in _PLAIN.items()}
    sizes = [c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim, c.num_kv_heads * c.head_dim]
    for name, part in zip(_QKV, w.qkv.split(sizes), strict=True):
        tensors[f"{_LAYER}.self_attn.{name}.weight"] = part
    for name, part in zip(_GATE_UP, w.gate_up.chunk(2), strict=True):
        tensors[f"{_LAYER}.mlp.{name}.weight"] = part
    if w.embedding is not None:
        tensors["embed_tokens.weight"] = w.embedding
    if w.fc_norms is not None:
        tensors |= {f"fc_norm.{i}.weight": row for i, row in enumerate(w.fc_norms)}
    return tensors


def _to_config(head: Head) -> dict[str, Any]:
    """Layer ids are left out on purpose: with the default layers every engine then takes the same three."""
    c, m = head.config, head.metadata
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope_theta,
        "rope_scaling": c.rope_scaling,
        "max_position_embeddings": c.max_position_embeddings,
        "vocab_size": c.vocab_size,
        "draft_vocab_size": c.draft_vocab_size,
        "target_hidden_size": c.target_hidden_size,
        **({"fc_norm": True} if c.fc_norm else {}),
        **({"norm_output": True} if c.norm_output else {}),
        "fledge": {
            "target_name": m.target_name,
            "target_revision": m.target_revision,
            "tokenizer_hash": m.tokenizer_hash,
            "training": dict(m.training),
        },
    }


def _canonical_name(name: str) -> str:
    name = name.removeprefix("model.")
    return f"{_LAYER}.{name.removeprefix('layers.0.')}" if name.startswith("layers.0.") else name


def _flat_config(raw: Any, url: str) -> dict[str, Any]:
    """One flat mapping for all forms; variants the head can't compute are refused."""
    if not isinstance(raw, dict):
        raise HeadError(f"{join(url, CONFIG_NAME)} is not a JSON object: get the head again")
    if "transformer_layer_config" not in raw:
        flat = dict(raw)
    else:
        if raw.get("speculators_model_type") != "eagle3":
            kind = raw.get("speculators_model_type")
            raise HeadError(f"{url} holds a speculator of type {kind!r}; use an EAGLE-3 head (eagle3)")
        flat = {
            **raw["transformer_layer_config"],
            **{k: v for k, v in raw.items() if k != "transformer_layer_config"},
        }
    eagle = flat.get("eagle_config") or {}
    refused = [key for key in ("norm_before_residual", "norm_before_fc") if flat.get(key) or eagle.get(key)]
    if int(flat.get("num_hidden_layers") or 1) != 1:
        refused.append(f"num_hidden_layers={flat['num_hidden_layers']}")
    if flat.get("attention_bias"):
        refused.append("attention_bias")
    if refused:
        raise HeadError(
            f"the head in {url} uses {', '.join(refused)}, which isn't supported: use a plain EAGLE-3 head"
        )
    return flat


def _to_weights(named: Mapping[str, Tensor], flat: Mapping[str, Any], url: str) -> HeadWeights:
    def take(name: str) -> Tensor:
        if name not in named:
            hint = "; heads that borrow the target's aren't supported" if name == "lm_head.weight" else ""
            raise HeadError(
                f"the head in {url} has no tensor {name}{hint}: export it again with all its tensors"
            )
        return named[name]

    lm_head = take("lm_head.weight")
    d2t = named.get("d2t")
    if d2t is None and lm_head.shape[0] != int(flat.get("vocab_size") or lm_head.shape[0]):
        raise HeadError(f"the head in {url} has a reduced vocabulary but no d2t: export it again with d2t")
    norms = [named[f"fc_norm.{i}.weight"] for i in range(3) if f"fc_norm.{i}.weight" in named]
    return HeadWeights(
        **{field: take(name) for field, name in _PLAIN.items()},
        qkv=torch.cat([take(f"{_LAYER}.self_attn.{name}.weight") for name in _QKV]),
        gate_up=torch.cat([take(f"{_LAYER}.mlp.{name}.weight") for name in _GATE_UP]),
        d2t=torch.zeros(lm_head.shape[0], dtype=torch.int64) if d2t is None else d2t.long(),
        embedding=named.get("embed_tokens.weight"),
        fc_norms=torch.stack(norms) if len(norms) == 3 else None,
    )


def _to_head_config(flat: Mapping[str, Any], w: HeadWeights, url: str) -> HeadConfig:
    try:
        heads, hidden = int(flat["num_attention_heads"]), int(flat["hidden_size"])
        parameters = dict(flat.get("rope_parameters") or flat.get("rope_scaling") or {})
        theta = float(parameters.pop("rope_theta", None) or flat.get("rope_theta") or 10000.0)
        kind = parameters.pop("rope_type", None) or parameters.pop("type", None) or "default"
        return HeadConfig(
            hidden_size=hidden,
            intermediate_size=int(flat["intermediate_size"]),
            num_heads=heads,
            num_kv_heads=int(flat.get("num_key_value_heads") or heads),
            head_dim=int(flat.get("head_dim") or hidden // heads),
            rms_norm_eps=float(flat.get("rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=None if kind == "default" else {"rope_type": kind, **parameters},
            max_position_embeddings=int(flat["max_position_embeddings"]),
            vocab_size=int(flat["vocab_size"]),
            draft_vocab_size=w.lm_head.shape[0],
            target_hidden_size=w.fc.shape[1] // 3,
            fc_norm=bool(flat.get("fc_norm")),
            norm_output=bool(flat.get("norm_output")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HeadError(f"{join(url, CONFIG_NAME)} lacks or misstates {error}: get the head again") from error


def _to_metadata(raw: Mapping[str, Any]) -> HeadMetadata:
    own = raw.get("fledge") or {}
    known = {key: str(own.get(key, "")) for key in ("target_name", "target_revision", "tokenizer_hash")}
    return HeadMetadata(**known, training=own.get("training") or {})
