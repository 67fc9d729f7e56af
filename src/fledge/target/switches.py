"""Fields of config.json that change a target's computation and that not every decoder of Llama's kind has.

A target that uses one runs without it, and writes other answers, unless it is named here or its family knows it. What
isn't named changes nothing, or shows in the tensors' names and shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fledge.target.rope_fields import rope_parameters

_SWITCHES: Mapping[
    str, tuple[Any, ...]
] = {  # values that switch nothing on, besides null, false, 0 and empty ones
    **dict.fromkeys(
        ("attention_bias", "mlp_bias", "qkv_bias", "use_bias", "use_bidirectional_attention"), ()
    ),
    **dict.fromkeys(
        ("attn_logit_softcapping", "attn_logit_softcap", "attn_soft_cap", "clip_qkv", "qk_clip"), ()
    ),
    **dict.fromkeys(("attention_sinks", "use_attention_sinks", "attention_sink", "swiglu_limit"), ()),
    **dict.fromkeys(("attn_temperature_tuning", "attention_chunk_size", "query_pre_attn_scalar"), ()),
    **dict.fromkeys(("use_qk_norm", "qk_norm", "qk_layernorm", "attn_output_gate"), ()),
    **dict.fromkeys(("alibi", "use_alibi", "parallel_attn", "use_parallel_residual"), ()),
    **dict.fromkeys(
        ("rope_interleave", "rope_interleaved", "rotary_interleaved", "rope_local_base_freq"), ()
    ),
    **dict.fromkeys(("embedding_multiplier", "residual_multiplier", "attention_multiplier"), (1,)),
    **dict.fromkeys(("scale_emb", "embedding_scale", "scale_depth", "residual_scale"), (1,)),
    **dict.fromkeys(("rotary_pct", "rope_pct", "rotary_percent"), (1,)),
    "compression_config": (),  # the older name of quantization_config
}
_ROPE: Mapping[str, Any] = {"attn_factor": 1, "llama_4_scaling_beta": 0, "apply_yarn_scaling": True}
_POSITIONS_ELSEWHERE = ("alibi", "nope", "none", "learned")
_KINDS = ("full_attention", "sliding_attention")


def unknown_switches(
    raw: Mapping[str, Any], understood: Sequence[str], windowed: Sequence[int]
) -> Iterator[str]:
    """Settings that aren't computed, each with what the decoder supports. `windowed`: the layers that get a window."""
    for name, neutral in _SWITCHES.items():
        value = raw.get(name)
        if name not in understood and value not in (None, False, "", [], {}, *neutral):
            known = "false" if value is True else (neutral or ("none",))[0]
            yield f"{name}={'true' if value is True else value} ({known})"
    if (kind := raw.get("position_embedding_type")) in _POSITIONS_ELSEWHERE:
        yield f"position_embedding_type={kind!r} (rope)"
    if "no_rope_layers" not in understood and not all(raw.get("no_rope_layers") or ()):
        yield f"no_rope_layers={raw['no_rope_layers']} (RoPE in all layers)"
    parameters = rope_parameters(raw)[1]
    for name, neutral in _ROPE.items():
        if parameters.get(name, neutral) not in (None, neutral):
            yield f"{name}={parameters[name]} of RoPE ({neutral})"
    yield from _kinds(raw, understood, windowed)


def _kinds(raw: Mapping[str, Any], understood: Sequence[str], windowed: Sequence[int]) -> Iterator[str]:
    kinds = raw.get("layer_types") or []
    others = sorted({str(kind) for kind in kinds} - {*_KINDS, *understood})
    if others:
        yield f"layer_types {', '.join(others)} ({', '.join(_KINDS)})"
    sliding = [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]
    window = raw.get("sliding_window") or 0
    if (
        not windowed
        and sliding
        and 0 < window < raw["max_position_embeddings"]
        and "use_sliding_window" not in raw
    ):
        yield f"layer_types with windows of {window} (full attention in this architecture)"
    own = (raw.get("rope_parameters") or {}).get("sliding_attention")
    if own and windowed:
        full = (raw.get("rope_parameters") or {}).get("full_attention") or own
        if "rope_local_base_freq" not in understood and own != full:
            yield "rope_parameters of their own for windowed layers (those of all layers)"
        elif own.get("rope_type", "default") != "default":
            yield f"RoPE scaling {own['rope_type']!r} in windowed layers (default)"
