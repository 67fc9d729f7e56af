"""Mixtral (arXiv 2401.04088): Mistral with experts in every layer."""

from fledge.target.experts import ExpertsConfig, expert_counts
from fledge.target.families.family import Family, Fields


def _fields(raw: Fields) -> Fields:
    layers = tuple(range(int(raw["num_hidden_layers"])))
    size = raw["intermediate_size"]
    return {"experts": ExpertsConfig(*expert_counts(raw), size, "renormalised", 0, layers, 0)}


FAMILY = Family(
    ("MixtralForCausalLM",),
    defaults={"max_position_embeddings": 131072, "rope_theta": 1e6, "rms_norm_eps": 1e-5},
    fields=_fields,
    tensor_names={"mlp": "block_sparse_moe", "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"},
)
