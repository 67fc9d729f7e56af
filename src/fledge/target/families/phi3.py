"""Phi-3 and 4: Llama with fused matrices."""

from fledge.target.families.family import Family, Gguf

FAMILY = Family(
    ("Phi3ForCausalLM",),
    defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    fused=True,
    gguf=Gguf(
        {"phi3": "phi3"}, lambda header, config: {"sliding_window": header.value("attention.sliding_window")}
    ),
)
