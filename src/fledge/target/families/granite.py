"""Granite 3: four multipliers where Llama has 1, and head_dim ** -0.5 of scores."""

from fledge.sources.gguf_header import GgufHeader
from fledge.target.families.family import Family, Fields, Gguf


def _fields(raw: Fields) -> Fields:
    return {
        "query_scale": float(raw.get("attention_multiplier") or 1.0),
        "embedding_scale": float(raw.get("embedding_multiplier") or 1.0),
        "residual_scale": float(raw.get("residual_multiplier") or 1.0),
        "logit_scale": 1.0 / float(raw.get("logits_scaling") or 1.0),
    }


def _gguf_fields(header: GgufHeader, config: Fields) -> Fields:
    rotates = header.value("rope.scaling.finetuned", True)  # llama.cpp's switch of this architecture
    return {
        "attention_multiplier": header.value("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": header.value("embedding_scale", 1.0),
        "residual_multiplier": header.value("residual_scale", 1.0),
        "logits_scaling": header.value("logit_scale", 1.0),
        "position_embedding_type": "rope" if rotates else "nope",
    }


FAMILY = Family(
    ("GraniteForCausalLM",),
    defaults={"max_position_embeddings": 2048},
    fields=_fields,
    understood=("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
    gguf=Gguf({"granite": "granite"}, _gguf_fields, interleaved=True),
)
