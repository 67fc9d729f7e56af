"""Llama 2 and 3, SmolLM 1 and 2, and all that publishes itself as Llama."""

from fledge.target.families.family import Family, Gguf

FAMILY = Family(
    ("LlamaForCausalLM",),
    defaults={"max_position_embeddings": 2048},
    windowed_layers=lambda raw: (),
    gguf=Gguf({"llama": "llama"}, interleaved=True),
)
