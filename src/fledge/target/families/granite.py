"""Granite 3: four multipliers where Llama has 1, and head_dim ** -0.5 of scores."""

from fledge.target.families.family import Family, Fields


def _fields(raw: Fields) -> Fields:
    return {
        "query_scale": float(raw.get("attention_multiplier") or 1.0),
        "embedding_scale": float(raw.get("embedding_multiplier") or 1.0),
        "residual_scale": float(raw.get("residual_multiplier") or 1.0),
        "logit_scale": 1.0 / float(raw.get("logits_scaling") or 1.0),
    }


FAMILY = Family(
    ("GraniteForCausalLM",),
    defaults={"max_position_embeddings": 2048},
    fields=_fields,
    understood=("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
)
