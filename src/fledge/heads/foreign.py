"""Reads heads of SGLang, vLLM, speculators, EAGLE and SpecForge into one canonical form.

form                      recognised by                    differences removed here
SGLang, EAGLE, SpecForge  LlamaForCausalLMEagle3           none: `midlayer.*`, flat config (older: `aux_norm_low`)
vLLM                      Eagle3LlamaForCausalLM           `layers.0.*`, `model.` prefix
speculators               speculators_model_type           nested `transformer_layer_config`, `layers.0.*`
EAGLE-4                   LlamaForCausalLMEagle4           `layers.0.*`, all tokens, a window without sinks
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fledge.base.errors import HeadError
from fledge.draft.description import (
    LAYER,
    SWITCHES,
    TENSORS,
    WINDOW,
    WINDOW_SINKS,
    HeadConfig,
    HeadWeights,
    TensorInfo,
)
from fledge.draft.provenance import HeadMetadata
from fledge.heads.fields import EAGLE4, LAYER_IDS, OTHER_LAYER_IDS, unsupported_fields, window_fields
from fledge.heads.forms import CANDIDATES, LATER_LAYER, LOW_RANK
from fledge.target.rope_fields import read_rope

_FORMER_PARTS = {  # SGLang's former names of parts
    LATER_LAYER: LAYER,
    **{f"aux_norm_{name}": f"fc_norm.{i}" for i, name in enumerate(("low", "mid", "high"))},
}
_USED = frozenset(name for info in TENSORS.values() for name in info.names) | {"t2d"}
_UNUSED = frozenset(
    ("verifier_norm.weight", "verifier_lm_head.weight")
)  # the target's, which speculators trains with


def canonical_name(name: str) -> str:
    """The canonical name of a tensor, from its name in any form."""
    name = name.removeprefix("model.")
    for former, part in _FORMER_PARTS.items():
        if name.startswith(f"{former}."):
            return f"{part}.{name.removeprefix(f'{former}.')}"
    return name


def canonically_named(tensors: Mapping[str, Tensor], url: str) -> dict[str, Tensor]:
    """The tensors by canonical name; raises a HeadError if two have the same."""
    named = {canonical_name(name): tensor for name, tensor in tensors.items()}
    if len(named) < len(tensors):
        twice = [name for name in tensors if canonical_name(name) != name and canonical_name(name) in tensors]
        raise HeadError(
            f"the head in {url} has {', '.join(twice)} under a second name, too: export it again with each tensor once"
        )
    return named


def flat_config(raw: Mapping[str, Any], named: Mapping[str, Tensor], url: str) -> dict[str, Any]:
    """One flat mapping for all forms; raises a HeadError for variants the head can't compute.

    `named`: the head's tensors, whose shapes tell how many hidden states it reads.
    """
    kind, nested = raw.get("speculators_model_type"), "transformer_layer_config" in raw
    if kind != "eagle3" and (kind or nested):
        raise HeadError(f"{url} holds a speculator of type {kind!r}; use an EAGLE-3 head (eagle3)")
    if not nested:
        flat = dict(raw)
    else:
        layer = raw["transformer_layer_config"]
        outer = {k: v for k, v in raw.items() if k != "transformer_layer_config" and v is not None}
        flat = {**layer, **outer}
    if EAGLE4 in (flat.get("architectures") or ()) and flat.get(WINDOW):
        flat.setdefault(WINDOW_SINKS, 0)
    if flat.get("use_aux_norm"):
        flat["fc_norm"] = True  # its name in older versions of SGLang
    if "fc.weight" in named:
        _check_features(flat, named["fc.weight"], url)
    read_rope(flat, int(flat.get("max_position_embeddings") or 0))
    # A nested field counts, too, where an outer one hides it.
    hidden = unsupported_fields(raw["transformer_layer_config"]) if nested else []
    refused = list(dict.fromkeys([*unsupported_fields(flat), *hidden]))
    _refuse(url, refused, "; a field without effect on this head can be deleted from config.json")
    return flat | _read_candidates(flat.get(CANDIDATES))


def _read_candidates(fields: Any) -> dict[str, int]:
    """Fields of `HeadConfig`, from EAGLE-4's; raises a ValueError for another kind of estimate."""
    if not fields:
        return {}
    known = {"type", "rank", "num_candidates"}
    numbers: list[Any] = []
    if isinstance(fields, dict):
        numbers = [fields.get(name) for name in ("num_candidates", "rank")]
    positive = bool(numbers) and all(type(number) is int and number > 0 for number in numbers)
    if not positive or fields.get("type") != LOW_RANK or fields.keys() - known:
        raise ValueError(
            f"{CANDIDATES}={fields}: it must have type {LOW_RANK}, num_candidates and rank, positive integers, alone"
        )
    return dict(zip(("candidates", "candidate_rank"), numbers, strict=True))


def _refuse(url: str, unsupported: Sequence[str], hint: str = "") -> None:
    """Raise a HeadError if the head uses anything unsupported."""
    if unsupported:
        raise HeadError(
            f"the head in {url} uses {', '.join(unsupported)}, which isn't supported: use a plain EAGLE-3 head{hint}"
        )


def unused_tensors(named: Mapping[str, Tensor]) -> list[str]:
    """Tensors, by canonical name, that a head would run without."""
    unknown = [name for name in named if name not in _USED and name not in _UNUSED]
    return [name for name in unknown if not name.endswith("rotary_emb.inv_freq")]  # recomputed


def _check_features(flat: Mapping[str, Any], fc: Tensor, url: str) -> None:
    """Raise a HeadError unless the head reads three hidden states of the target, by its fc's shape and its config."""
    size = int(flat.get("target_hidden_size") or flat.get("hidden_size") or 0)
    count, rest = divmod(fc.shape[1], size) if fc.dim() == 2 and size > 0 else (3, 0)
    if rest:
        raise HeadError(
            f"the head in {url} has an fc of shape {tuple(fc.shape)}, which doesn't read hidden states of {size}: "
            "correct target_hidden_size in its config.json, or get the head again"
        )
    says = [(f"fc is of shape {tuple(fc.shape)}, a hidden state of {size}", count)]
    for fields in (flat, flat.get("eagle_config") or {}):
        says.append(("num_aux_hidden_states", fields.get("num_aux_hidden_states") or 3))
        for name in (LAYER_IDS, *OTHER_LAYER_IDS):
            ids = fields.get(name) or ()
            # The fourth of four is the last layer.
            says.append((f"{name}={list(ids)}", 3 if len(ids) in (0, 4) else len(ids)))
    for where, number in says:
        if number != 3:
            raise HeadError(
                f"the head in {url} reads {number} hidden states of the target ({where}), but fledge's heads read "
                "three: use a head that reads three"
            )


def head_weights(named: Mapping[str, Tensor], flat: Mapping[str, Any], url: str) -> HeadWeights:
    """The fused weights, from tensors with canonical names; a tensor of the head that wouldn't be used is an error."""
    _refuse(url, unused_tensors(named))
    coarse = [name for name in _USED - {"d2t", "t2d"} if name in named and named[name].dtype.itemsize < 2]
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
    fused: dict[str, Tensor] = {}
    for field, info in TENSORS.items():
        if info.switch:
            _check_switched(info, named, flat, url)
        if flat.get(info.switch) if info.switch else not info.frozen:
            fused[field] = info.join({name: take(name) for name in info.names})
    return HeadWeights(
        **fused,
        d2t=torch.zeros(lm_head.shape[0], dtype=torch.int64) if d2t is None else d2t.long(),
        embedding=named.get(*TENSORS["embedding"].names),
    )


def _check_switched(info: TensorInfo, named: Mapping[str, Tensor], flat: Mapping[str, Any], url: str) -> None:
    """Raise a HeadError unless tensors of a switch are there where it is on, and only there."""
    missing, switch = [name for name in info.names if name not in named], info.switch
    on = bool(flat.get(switch))
    if switch not in SWITCHES:
        switch = CANDIDATES
        if not on and not missing:
            raise HeadError(
                f"the head in {url} has the tensor {info.names[0]}, but its config no {switch}: export it again"
            )
    if on and missing:
        raise HeadError(
            f"the head in {url} has no tensor {missing[0]}, though its config has {switch}: export it again"
        )
    if not on and len(missing) < len(info.names):
        raise HeadError(
            f"the head in {url} has {switch} tensors, but its config doesn't switch them on: "
            f'write "{switch}": true into its config.json if it was trained with them, or export it again'
        )


def head_config(flat: Mapping[str, Any], w: HeadWeights, url: str) -> HeadConfig:
    """The head's shape, from a flat config and the weights."""
    try:
        heads, hidden = int(_number(flat, "num_attention_heads")), int(_number(flat, "hidden_size"))
        positions = int(_number(flat, "max_position_embeddings"))
        theta, scaling = read_rope(flat, positions)
        window, sinks = window_fields(flat)
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
            **{name: bool(flat.get(name)) for name in SWITCHES},
            candidates=int(_number(flat, "candidates", 0)),
            candidate_rank=int(_number(flat, "candidate_rank", 0)),
            window=window,
            sinks=sinks,
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
        target_quantization=str(recorded.get("target_quantization", "")),
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
    nested = (flat.get("eagle_config") or {}).get(LAYER_IDS)
    top = flat.get(LAYER_IDS)
    ids = [int(i) for i in (top or nested or [])][:3]  # speculators may name the last layer as a fourth
    if not ids:
        return ()
    architecture = (flat.get("architectures") or [""])[0]
    inputs = bool(top) or architecture.startswith("Eagle3")
    return tuple(i - 1 for i in ids) if inputs else tuple(ids)
