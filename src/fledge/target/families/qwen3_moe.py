"""Qwen3-MoE: Qwen3 with experts in some layers."""

from fledge.sources.gguf_header import GgufHeader
from fledge.target.experts import ExpertsConfig, Routing, expert_counts
from fledge.target.families import qwen2
from fledge.target.families.family import Family, Fields, Gguf, enabled_windows


def _fields(raw: Fields) -> Fields:
    step, dense = int(raw.get("decoder_sparse_step") or 1), raw.get("mlp_only_layers") or []
    layers = [layer for layer in range(step - 1, int(raw["num_hidden_layers"]), step) if layer not in dense]
    routing: Routing = "renormalised" if raw.get("norm_topk_prob") else "softmax"
    size, dense_size = raw["moe_intermediate_size"], raw["intermediate_size"]
    experts = ExpertsConfig(*expert_counts(raw), size, routing, 0, tuple(layers), dense_size)
    return {"qk_norm": True, "experts": experts}


def _gguf_fields(header: GgufHeader, config: Fields) -> Fields:
    return {
        "num_experts": header.value("expert_count"),
        "num_experts_per_tok": header.value("expert_used_count"),
        "moe_intermediate_size": header.value("expert_feed_forward_length"),
        "norm_topk_prob": True,  # as llama.cpp always does
    }


FAMILY = Family(
    ("Qwen3MoeForCausalLM",),
    defaults=qwen2.DEFAULTS,
    fields=_fields,
    windowed_layers=enabled_windows,
    understood=("qk_norm", "use_qk_norm"),
    gguf=Gguf({"qwen3moe": "qwen3_moe"}, _gguf_fields),
)
