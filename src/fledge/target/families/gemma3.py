"""Gemma 3's text model (arXiv 2503.19786): windows with a RoPE of their own, scales, and norms of all that is added."""

from fledge.target.families.family import Family, Fields


def _fields(raw: Fields) -> Fields:
    local = (raw.get("rope_parameters") or {}).get("sliding_attention") or {}
    return {
        "qk_norm": True,
        "window_rope_theta": float(local.get("rope_theta") or raw.get("rope_local_base_freq") or 10000.0),
        "query_scale": float(raw.get("query_pre_attn_scalar") or 256) ** -0.5,
        "embedding_scale": raw["hidden_size"] ** 0.5,
        "activation": "gelu",
        "out_norms": True,
    }


FAMILY = Family(
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    config_names={"hidden_act": "hidden_activation"},
    defaults=None,
    fields=_fields,
    activations=("gelu_pytorch_tanh",),
    understood=("query_pre_attn_scalar", "rope_local_base_freq", "use_qk_norm"),
    norm_adds_one=True,
)
