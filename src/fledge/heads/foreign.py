"""Reads heads of SGLang, vLLM, speculators, EAGLE and SpecForge into one canonical form.

form                      recognised by                    differences removed here
SGLang, EAGLE, SpecForge  LlamaForCausalLMEagle3           none: `midlayer.*`, flat config
vLLM                      Eagle3LlamaForCausalLM           `layers.0.*`, `model.` prefix
speculators               speculators_model_type           nested `transformer_layer_config`, `layers.0.*`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fledge.base.errors import HeadError
from fledge.draft.config import HeadConfig, HeadMetadata
from fledge.draft.weights import HeadWeights
from fledge.heads.forms import EMBEDDING, FC_NORMS, GATE_UP, LATER_LAYER, LAYER, PLAIN, QKV, REQUIRED
from fledge.target.rope_fields import SUPPORTED_SCALING, read_rope, rotary_share

_IDS = "eagle_aux_hidden_state_layer_ids"


def canonical_name(name: str) -> str:
    """The canonical name of a tensor, from its name in any form."""
    name = name.removeprefix("model.")
    later = f"{LATER_LAYER}."
    return f"{LAYER}.{name.removeprefix(later)}" if name.startswith(later) else name


def flat_config(raw: Mapping[str, Any], url: str) -> dict[str, Any]:
    """One flat mapping for all forms; raises a HeadError for variants the head can't compute."""
    if "transformer_layer_config" not in raw:
        flat = dict(raw)
    else:
        if raw.get("speculators_model_type") != "eagle3":
            kind = raw.get("speculators_model_type")
            raise HeadError(f"{url} holds a speculator of type {kind!r}; use an EAGLE-3 head (eagle3)")
        layer = raw["transformer_layer_config"]
        outer = {k: v for k, v in raw.items() if k != "transformer_layer_config" and v is not None}
        flat = {**layer, **outer}
    eagle = flat.get("eagle_config") or {}
    refused = [
        f"{key} in eagle_config" for key in ("norm_before_residual", "norm_before_fc") if eagle.get(key)
    ]
    required = ("use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm")
    refused += [f"{key}=false in eagle_config" for key in required if eagle.get(key) is False]
    if int(flat.get("num_hidden_layers") or 1) != 1:
        refused.append(f"num_hidden_layers={flat['num_hidden_layers']}")
    refused += [key for key in ("norm_before_fc", "attention_bias", "mlp_bias", "bias") if flat.get(key)]
    if flat.get("hidden_act", "silu") not in ("silu", "swish"):
        refused.append(f"hidden_act={flat['hidden_act']}")
    _refuse(url, refused)
    return flat


def _refuse(url: str, unsupported: Sequence[str]) -> None:
    """Raise a HeadError if the head uses anything unsupported."""
    if unsupported:
        raise HeadError(
            f"the head in {url} uses {', '.join(unsupported)}, which isn't supported: use a plain EAGLE-3 head"
        )


def head_weights(named: Mapping[str, Tensor], flat: Mapping[str, Any], url: str) -> HeadWeights:
    """The fused weights, from tensors with canonical names; a tensor of the head that wouldn't be used is an error."""
    expected = {*REQUIRED, *FC_NORMS}
    parts = {"layers", *(name.partition(".")[0] for name in expected)}
    unexpected = [name for name in named if name.partition(".")[0] in parts and name not in expected]
    _refuse(url, [name for name in unexpected if not name.endswith("inv_freq")])  # RoPE's are recomputed
    coarse = [name for name in (*expected, EMBEDDING) if name in named and named[name].dtype.itemsize < 2]
    _refuse(url, [f"{name} in 8 bits" for name in sorted(coarse)])

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
    t2d = named.get("t2d")
    if d2t is not None and t2d is not None:
        ids = d2t.long() + torch.arange(len(d2t))
        if not torch.equal(ids.sort().values, t2d.bool().nonzero().flatten()):
            raise HeadError(
                f"d2t and t2d of the head in {url} name different tokens; d2t must hold offsets, not ids: "
                "export the head again"
            )
    norms = [named[name] for name in FC_NORMS if name in named]
    if flat.get("fc_norm") and len(norms) != len(FC_NORMS):
        missing = next(name for name in FC_NORMS if name not in named)
        raise HeadError(
            f"the head in {url} has no tensor {missing}, though its config has fc_norm: export it again"
        )
    if norms and not flat.get("fc_norm"):
        raise HeadError(
            f"the head in {url} has fc_norm tensors, but its config doesn't switch them on: "
            'write "fc_norm": true into its config.json if it was trained with them, or export it again'
        )
    return HeadWeights(
        **{field: take(name) for field, name in PLAIN.items()},
        qkv=torch.cat([take(name) for name in QKV]),
        gate_up=torch.cat([take(name) for name in GATE_UP]),
        d2t=torch.zeros(lm_head.shape[0], dtype=torch.int64) if d2t is None else d2t.long(),
        embedding=named.get(EMBEDDING),
        fc_norms=torch.stack(norms) if norms else None,
    )


def head_config(flat: Mapping[str, Any], w: HeadWeights, url: str) -> HeadConfig:
    """The head's shape, from a flat config and the weights."""
    try:
        heads, hidden = int(_number(flat, "num_attention_heads")), int(_number(flat, "hidden_size"))
        positions = int(_number(flat, "max_position_embeddings"))
        theta, scaling = read_rope(flat, positions)
        if scaling is not None and scaling["rope_type"] not in SUPPORTED_SCALING:
            _refuse(url, [f"RoPE scaling {scaling['rope_type']!r}"])
        if (share := rotary_share(flat)) != 1.0:
            _refuse(url, [f"partial_rotary_factor={share:g}"])
        return HeadConfig(
            hidden_size=hidden,
            intermediate_size=int(_number(flat, "intermediate_size")),
            num_heads=heads,
            num_kv_heads=int(flat.get("num_key_value_heads") or heads),
            head_dim=int(flat.get("head_dim") or hidden // heads),
            rms_norm_eps=float(_number(flat, "rms_norm_eps", 1e-6)),
            rope_theta=theta,
            rope_scaling=scaling,
            max_position_embeddings=positions,
            vocab_size=int(_number(flat, "vocab_size")),
            draft_vocab_size=w.lm_head.shape[0],
            target_hidden_size=w.fc.shape[1] // 3,
            fc_norm=bool(flat.get("fc_norm")),
            norm_output=bool(flat.get("norm_output")),
            norm_before_residual=bool(flat.get("norm_before_residual")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HeadError(f"{url}/config.json lacks or misstates {error}: get the head again") from error


def _number(flat: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = flat.get(key, default)
    if not isinstance(value, int | float):
        raise ValueError(f"{key}={value!r}")
    return value


def head_metadata(raw: Mapping[str, Any], flat: Mapping[str, Any]) -> HeadMetadata:
    """The head's recorded origin; layers named in the config take precedence over fledge's record."""
    recorded = raw.get("fledge") or {}
    verifier = (raw.get("speculators_config") or {}).get("verifier") or {}
    architectures = verifier.get("architectures") or [""]
    return HeadMetadata(
        target_name=str(recorded.get("target_name", verifier.get("name_or_path") or "")),
        target_revision=str(recorded.get("target_revision", "")),
        vocabulary_hash=str(recorded.get("vocabulary_hash", "")),
        template_hash=str(recorded.get("template_hash", "")),
        chat_template_kwargs=recorded.get("chat_template_kwargs") or {},
        target_architecture=str(recorded.get("target_architecture", "" if recorded else architectures[0])),
        target_layers=int(recorded.get("target_layers") or 0),
        feature_layers=named_layers(flat) or tuple(recorded.get("feature_layers") or ()),
        training=recorded.get("training") or {},
    )


def named_layers(flat: Mapping[str, Any]) -> tuple[int, ...]:
    """The feature layers named in a config, counted by output; empty if none are.

    Top-level ids, and all ids of vLLM's and speculators' own classes, count inputs; nested ids count outputs, as
    SGLang and SpecForge read them.
    """
    nested = (flat.get("eagle_config") or {}).get(_IDS)
    top = flat.get(_IDS)
    ids = [int(i) for i in (top or nested or [])][:3]  # speculators may name the last layer as a fourth
    if not ids:
        return ()
    architecture = (flat.get("architectures") or [""])[0]
    inputs = bool(top) or architecture.startswith("Eagle3")
    return tuple(i - 1 for i in ids) if inputs else tuple(ids)
