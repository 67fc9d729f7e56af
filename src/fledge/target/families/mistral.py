"""Mistral, and Mistral Small 3 given text alone."""

from fledge.sources.gguf_header import GgufHeader
from fledge.target.families.family import Family, Fields, Gguf


def _gguf_fields(header: GgufHeader, config: Fields) -> Fields:
    # Ministral 3's temperature, which the decoder doesn't have and refuses.
    temperature = {"llama_4_scaling_beta": header.value("attention.temperature_scale", 0.0)}
    return {"sliding_window": None, "rope_parameters": {**config["rope_parameters"], **temperature}}


FAMILY = Family(
    ("MistralForCausalLM",),
    text_models={"Mistral3ForConditionalGeneration": "mistral"},
    defaults={"max_position_embeddings": 131072, "sliding_window": 4096},
    gguf=Gguf({"mistral3": "mistral"}, _gguf_fields, interleaved=True),
)
