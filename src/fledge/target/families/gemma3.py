"""Gemma 3's text model (arXiv 2503.19786): windows with a RoPE of their own, scales, and norms of all that is added."""

from fledge.sources.gguf_header import GgufHeader
from fledge.target.families.family import Family, Fields, Gguf


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


def _gguf_fields(header: GgufHeader, config: Fields) -> Fields:
    """Every sixth layer sees all and has the scaled RoPE; neither pattern nor the scale of queries is in the file."""
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    window, pattern = (
        header.value("attention.sliding_window"),
        header.value("attention.sliding_window_pattern", 6),
    )
    windowed = pattern if isinstance(pattern, list) else [(layer + 1) % pattern for layer in range(layers)]
    local = {"rope_type": "default", "rope_theta": header.value("rope.freq_base_swa", 10000.0)}
    return {
        "sliding_window": window,
        "layer_types": ["sliding_attention" if window and sees else "full_attention" for sees in windowed],
        "rope_parameters": {"full_attention": config["rope_parameters"], "sliding_attention": local},
        # Of all that were published, only the one of 27 B has another than its heads' size.
        "query_pre_attn_scalar": config["hidden_size"] // heads if layers == 62 else config["head_dim"],
        "final_logit_softcapping": header.value("final_logit_softcapping"),
    }


FAMILY = Family(
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    config_names={"hidden_act": "hidden_activation"},
    defaults=None,
    fields=_fields,
    activations=("gelu_pytorch_tanh",),
    understood=("query_pre_attn_scalar", "rope_local_base_freq", "use_qk_norm"),
    norm_adds_one=True,
    gguf=Gguf({"gemma3": "gemma3_text"}, _gguf_fields),
)
