"""Mistral, and Mistral Small 3 given text alone."""

from fledge.target.families.family import Family

FAMILY = Family(
    ("MistralForCausalLM",),
    text_models={"Mistral3ForConditionalGeneration": "mistral"},
    defaults={"max_position_embeddings": 131072, "sliding_window": 4096},
)
